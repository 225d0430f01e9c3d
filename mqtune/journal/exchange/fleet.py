"""The fleet's register: its workers, and the resources of their slots."""

from __future__ import annotations

import contextlib
import json
import logging
import reprlib
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

import redis

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import AccessDenied, BrokerUnavailable, MessageVersionError, NameTaken
from mqtune.core.events import WorkerInfo
from mqtune.core.keys import FLEET, TASK_NAME, WORKERS, control_channel, drain_key, name_key, worker_key
from mqtune.core.machine import describe_process
from mqtune.core.priorities import lists_of
from mqtune.core.resources import QUEUES
from mqtune.journal.server.connection import database_of, timing_of
from mqtune.journal.server.retry import retrying
from mqtune.journal.server.script import script

logger = logging.getLogger(__name__)

#: For how many holds of a heartbeat the worker's description is kept; it is written when it has changed, and else
#: once in a hold only, as it is ten times as long as all else in a heartbeat.
DESCRIBED_HOLDS: Final = 2
#: Entries of the stream that wakes drivers, which read only the last few.
FLEET_LENGTH: Final = 1_000
#: A queue with more messages than this is not searched: an attempt that waits there is not presumed lost.
MAX_QUEUE_SCAN: Final = 1_000
#: How long a request to drain is kept for a worker that can't be reached.
DRAIN_WISH_S: Final = 3600
#: A message on a control channel for the worker itself, which should look at the register.
LOOK: Final = ["", "", 0, ""]
T = TypeVar("T")


class Fleet:
    """The register of workers; an entry lives as long as its worker's heartbeat.

    Args:
        client: a checked connection.
        patience_s: how long calls are repeated while the server is away.
        closing: once set, calls are not repeated.
        token: the token of the worker's process, which no other process with its name has; by default a new one.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        patience_s: float,
        closing: threading.Event | None = None,
        token: str = "",
    ) -> None:
        self.token = token or f"{describe_process()} {uuid.uuid4().hex}"
        # redis-py's types allow for the answers of other settings.
        self._client: Any = client
        self._patience_s = patience_s
        self._closing = closing
        #: The worker's last description, and its time.
        self._described, self._described_at = b"", 0.0
        #: The worker's disabled devices, each with the person who disabled it, as of the last ``keep``.
        self.disabled: dict[str, str] = {}
        #: The workers that were found last, by their descriptions: few of a thousand have changed when a driver looks
        #: again.
        self._found: dict[bytes, WorkerInfo] = {}

    def _retrying(self, call: Callable[[], T]) -> T:
        return retrying(call, patience_s=self._patience_s, closing=self._closing)

    def take_name(self, worker: str, hold_s: float, *, dead: str = "") -> None:
        """Take or keep a worker's name for *hold_s* seconds.

        Args:
            worker: the name.
            hold_s: how long it is held.
            dead: the token of a worker that is known to be dead; its name is taken without waiting.

        Raises:
            NameTaken: another process has it.
        """
        args = [self.token, round(hold_s * 1000), dead]
        holder, left_ms = self._retrying(lambda: script("name")(self._client, [name_key(worker)], args))
        _check_holder(worker, holder, left_ms)

    def join(self, info: WorkerInfo, hold_s: float) -> None:
        """Register a worker, remove those whose heartbeat expired, and wake all drivers.

        Raises:
            NameTaken: another process has its name.
        """
        self.keep(info, hold_s)
        self._retrying(self._sweep)
        self.announce(info.name, "joined")

    def keep(self, info: WorkerInfo, hold_s: float) -> bool:
        """Keep a worker in the register for *hold_s* more seconds; return whether it should drain.

        Args:
            info: the worker's description.
            hold_s: how long its entry lasts.

        Raises:
            NameTaken: another process has its name by now.
        """
        now, description = time.monotonic(), info.encode()
        is_said = description == self._described and now - self._described_at < hold_s
        drained, is_described = self._keep(info.name, b"" if is_said else description, hold_s)
        if not is_described:
            is_said, (drained, _) = False, self._keep(info.name, description, hold_s)
        if not is_said:
            self._described, self._described_at = description, now
        mark, self.disabled = _decoded_wish(drained)
        # A worker that was started since, under the same name, is another one.
        return bool(mark) and mark == _mark(info)

    def _keep(self, worker: str, description: bytes, hold_s: float) -> tuple[bytes, int]:
        """Keep a worker in the register.

        Return what is wished of it, and whether there is a description.
        """
        hold_ms = round(hold_s * 1000)
        args = [self.token, hold_ms, description, worker, DESCRIBED_HOLDS * hold_ms]
        holder, left_ms, *answer = self._retrying(lambda: script("keep")(self._client, [WORKERS], args))
        _check_holder(worker, holder, left_ms)
        drained, is_described = answer
        return drained, is_described

    def drain(self, info: WorkerInfo) -> None:
        """Have a worker requeue its trials and end.

        It learns of it now, or with a heartbeat when it is back.
        """
        self._wish(info, lambda _, disabled: (_mark(info), disabled))

    def disable(self, info: WorkerInfo, device: str, by: str) -> None:
        """Have a worker start no trial on a device, also after it has begun anew, until that is enabled.

        Trials that run there go on.
        """
        self._wish(info, lambda mark, disabled: (mark, {**disabled, device: by}))

    def enable(self, info: WorkerInfo, device: str) -> None:
        """Have a worker start trials on a device again; a no-op where nobody has disabled it."""
        self._wish(info, lambda mark, disabled: (mark, {name: by for name, by in disabled.items() if name != device}))

    def _wish(self, info: WorkerInfo, change: Callable[[bytes, dict[str, str]], tuple[bytes, dict[str, str]]]) -> None:
        key = drain_key(info.name)

        def write() -> None:
            mark, disabled = change(*_decoded_wish(self._client.get(key) or b""))
            with self._client.pipeline() as pipe:
                # A wish to drain is for one start of the worker, and is left when that is over.
                pipe.set(key, encode_value([mark, disabled]), ex=None if disabled else DRAIN_WISH_S)
                pipe.publish(control_channel(info.name, database_of(self._client)), encode_value([LOOK]))
                pipe.execute()

        self._retrying(write)

    def _sweep(self) -> None:
        seconds, _ = self._client.time()
        self._client.zremrangebyscore(WORKERS, "-inf", seconds * 1000)

    def leave(self, worker: str) -> None:
        """Remove a worker and wake all drivers; a no-op when another process has its name."""

        def remove() -> None:
            # No transaction, which a full server may refuse whatever is in it.
            with self._client.pipeline(transaction=False) as pipe:
                pipe.delete(worker_key(worker))
                pipe.zrem(WORKERS, worker)
                pipe.execute()

        with contextlib.suppress(NameTaken):
            self.take_name(worker, 0)
            self._retrying(remove)
            self.announce(worker, "left")

    def announce(self, worker: str, change: str) -> None:
        """Wake all drivers: a worker has joined, left, or changed its description."""

        def add() -> None:
            # Drivers look by themselves, too; a heartbeat must not wait until a full server has room.
            with contextlib.suppress(redis.exceptions.OutOfMemoryError):
                self._client.xadd(FLEET, {"worker": worker, "what": change}, maxlen=FLEET_LENGTH)

        self._retrying(add)

    def workers(self) -> list[WorkerInfo]:
        """Return the workers whose heartbeat has not expired, by name."""

        def look() -> list[bytes | None]:
            seconds, _ = self._client.time()
            # It writes nothing: a reader's account may not.
            names = _texts(self._client.zrangebyscore(WORKERS, f"({seconds * 1000}", "+inf"))
            return list(self._client.mget([worker_key(name) for name in names])) if names else []

        workers = {}
        for data in self._retrying(look):
            try:
                if data is not None:
                    workers[data] = self._found.get(data) or WorkerInfo.decode(data)
            except MessageVersionError as error:
                logger.warning("a worker is left out: %s", error)
        self._found = workers
        return sorted(workers.values(), key=lambda info: info.name)

    def waiting(self, queue: str) -> int:
        """Return how many Celery messages wait in a queue."""
        return sum(self._of_each_list(int, queue, "llen"))

    def queued(self, queue: str) -> list[dict[str, object]] | None:
        """Return the headers of the Celery messages in a queue; None if there are too many."""
        messages = list(chain.from_iterable(self._of_each_list(list[bytes], queue, "lrange", 0, MAX_QUEUE_SCAN)))
        return None if len(messages) > MAX_QUEUE_SCAN else [_headers(message) for message in messages]

    def _of_each_list(self, _: type[T], queue: str, command: str, *args: int) -> list[T]:
        """Return the answers, of this type, to a command for each of the lists of a queue."""

        def look() -> list[T]:
            with self._client.pipeline(transaction=False) as pipe:
                for name in lists_of(queue):
                    getattr(pipe, command)(name, *args)
                return list(pipe.execute())

        return self._retrying(look)

    def messages_of(self, experiment: str, queues: Iterable[str]) -> list[tuple[str, bytes]]:
        """Return the Celery messages about an experiment's attempts, each with its queue.

        It searches these queues, or any that this account sees.
        """
        return [(queue, message) for name, queue, message in self.messages(queues) if name == experiment]

    def messages(self, queues: Iterable[str]) -> list[tuple[str, str, bytes]]:
        """Return the Celery messages in these queues, and in any that this account sees.

        Each has its experiment and its queue.
        """
        return [
            (str(_headers(message).get("id")).partition("/")[0], queue, message)
            for queue in dict.fromkeys([*chain.from_iterable(map(lists_of, queues)), *self._queues_there_are()])
            for message in self._messages_in(queue)
            if _headers(message).get("task") == TASK_NAME
        ]

    def _messages_in(self, queue: str) -> list[bytes]:
        # A team's account can't look into the queues of others, and has nothing there.
        with contextlib.suppress(AccessDenied):
            return self._retrying(lambda: list(self._client.lrange(queue, 0, -1)))
        return []

    def _queues_there_are(self) -> list[str]:
        def look() -> list[str]:
            return [name.decode(errors="replace") for name in self._client.scan_iter(QUEUES, count=1_000, _type="list")]

        # A driver's account need not see the names of all keys.
        with contextlib.suppress(AccessDenied):
            return self._retrying(look)
        return []

    def remove(self, messages: Iterable[tuple[str, bytes]]) -> int:
        """Remove messages from their queues, and return their number. Others stay, in their order."""
        return sum(self._retrying(partial(self._client.lrem, queue, 0, message)) for queue, message in messages)


def _texts(names: list[bytes]) -> list[str]:
    """Return the names of workers, without malformed ones."""
    texts = []
    for name in names:
        try:
            texts.append(name.decode())
        except UnicodeDecodeError:
            logger.warning("a worker is left out: its name is %r", name[:100])
    return texts


def _headers(message: bytes) -> dict[str, object]:
    """Return a message's headers; empty for a malformed message, which no worker runs either."""
    try:
        headers = json.loads(message)["headers"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return headers if isinstance(headers, dict) else {}


def _check_holder(worker: str, holder: bytes, left_ms: int) -> None:
    if holder:
        token = holder.decode(errors="replace")
        who = token.rpartition(" ")[0]
        raise NameTaken(f"the fleet has a worker {worker} ({who})", holder=token, left_s=left_ms / 1000)


def _decoded_wish(data: bytes) -> tuple[bytes, dict[str, str]]:
    """Return for which start of a worker the wish to drain is, and the devices that are disabled.

    It is nothing where it can't be read.
    """
    try:
        mark, disabled = decode_value(data) if data else (b"", {})
        if type(mark) is bytes and all(type(text) is str for pair in disabled.items() for text in pair):
            return mark, disabled
    except (ValueError, TypeError, AttributeError):
        pass
    return b"", {}


def _mark(info: WorkerInfo) -> bytes:
    """Return what distinguishes a worker from all others that had, or will have, its name."""
    return repr(info.joined_at).encode()


class ControlChannel:
    """A worker's control channel: hints of intents, which may be lost, as renewals repeat these.

    One thread uses it.
    """

    def __init__(self, client: redis.Redis, worker: str) -> None:
        self._client: Any = client
        self._channel = control_channel(worker, database_of(client))
        self._silence_s = timing_of(client).channel_silence_s
        self._subscription: Any = None
        self._heard_at = 0.0
        self._rest: deque[Any] = deque()

    def next(self, timeout_s: float) -> list[Any] | None:
        """Return the next hint, ``[experiment, trial, attempt, answer]``.

        Return None after *timeout_s* seconds, or for a malformed one.

        Raises:
            BrokerUnavailable: the connection broke; the next call makes a new one.
        """
        if not self._rest:
            self._rest.extend(self._listen(timeout_s))
        if not self._rest:
            return None
        hint = self._rest.popleft()
        try:
            experiment, trial, attempt, answer = hint
            if [type(part) for part in (experiment, trial, attempt, answer)] != [str, str, int, str]:
                raise TypeError
        except (ValueError, TypeError):
            logger.warning("an unreadable hint on %s: %s", self._channel, reprlib.repr(hint))
            return None
        return [experiment, trial, attempt, answer]

    def _listen(self, timeout_s: float) -> list[Any]:
        """Return the hints in the next message."""
        try:
            if self._subscription is None:
                self._subscription = self._client.pubsub()
                self._subscription.subscribe(self._channel)
                self._heard_at = time.monotonic()
            # The rest of redis-py's get_message takes longer than this, and in lockstep a trial waits for it.
            self._subscription.check_health()
            connection = self._subscription.connection
            message = connection.read_response() if connection.can_read(timeout=timeout_s) else None
            now = time.monotonic()
            if message is not None:
                self._heard_at = now
            elif now - self._heard_at > self._silence_s:
                raise redis.ConnectionError(f"not a word for {now - self._heard_at:.0f} s")
        except (redis.RedisError, OSError) as error:
            self._subscription = None
            raise BrokerUnavailable(f"the control channel {self._channel} broke: {error}") from None
        # Beside messages come the answers to the subscription and to the questions whether the server is there.
        if message is None or message[0] != b"message":
            return []
        data = message[2]
        try:
            return list(decode_value(data))
        except (ValueError, TypeError):
            logger.warning("an unreadable message on %s: %r", self._channel, data[:100])
            return []
