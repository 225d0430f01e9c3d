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
from mqtune.core.keys import FLEET, TASK_NAME, WORKERS, control_channel, drain_key, name_key, worker_key
from mqtune.core.machine import describe_process
from mqtune.core.priorities import lists_of
from mqtune.core.resources import QUEUES
from mqtune.core.worker_info import WorkerInfo
from mqtune.journal.server.connection import database_of, timing_of
from mqtune.journal.server.retry import RetryingCaller
from mqtune.journal.server.script import script

logger = logging.getLogger(__name__)

#: Lifetime of a worker's description, in lifetimes of its heartbeat. The description is ten times as long as the rest
#: of a heartbeat, so it is sent when it has changed, and else only once in a heartbeat's lifetime.
DESCRIBED_HOLDS: Final = 2
#: The number of entries in the stream that wakes drivers. Drivers read only the newest few.
FLEET_LENGTH: Final = 1_000
#: A queue with more messages than this is not searched. Attempts in it never count as lost.
MAX_QUEUE_SCAN: Final = 1_000
#: Lifetime of an order to drain, in seconds, for a worker that can't be reached.
DRAIN_ORDER_S: Final = 3600
#: A message on a worker's control channel: send a heartbeat now, whose answer has the operator's orders.
LOOK: Final = ["", "", 0, ""]
T = TypeVar("T")


class Fleet(RetryingCaller):
    """The register of workers in Redis, and their queues.

    A worker without a heartbeat leaves the register.

    Args:
        token: a unique token of the worker's process; by default a new one.
    """

    def __init__(
        self, client: redis.Redis, *, patience_s: float, closing: threading.Event | None = None, token: str = ""
    ) -> None:
        super().__init__(client, patience_s=patience_s, closing=closing)
        self.token = token or f"{describe_process()} {uuid.uuid4().hex}"
        #: The worker's description that was sent last, and when.
        self._described, self._described_at = b"", 0.0
        #: The worker's disabled devices, with the person who disabled each, as of the last ``keep``.
        self.disabled: dict[str, str] = {}
        #: The decoded descriptions of the last call of ``workers``. Few of a thousand change between two calls.
        self._decoded: dict[bytes, WorkerInfo] = {}

    def take_name(self, worker: str, hold_s: float, *, dead: str = "") -> None:
        """Take or renew a worker's name for *hold_s* seconds. With 0 seconds, release it.

        Args:
            hold_s: how long the name is reserved.
            dead: the token of a worker that is known to be dead. Its name is taken without waiting.

        Raises:
            NameTaken: another process has it.
        """
        args = [self.token, round(hold_s * 1000), dead]
        holder, left_ms = self._retrying(lambda: script("name")(self._client, [name_key(worker)], args))
        _check_holder(worker, holder, left_ms)

    def join(self, info: WorkerInfo, hold_s: float) -> None:
        """Register a worker, remove workers whose heartbeat has expired, and wake all drivers.

        Raises:
            NameTaken: another process has its name.
        """
        self.keep(info, hold_s)
        self._retrying(self._remove_expired)
        self.announce(info.name, "joined")

    def keep(self, info: WorkerInfo, hold_s: float) -> bool:
        """Send a worker's heartbeat, which lasts *hold_s* seconds.

        Return whether the worker should drain.

        Raises:
            NameTaken: another process has taken its name.
        """
        now, description = time.monotonic(), info.encode()
        is_known = description == self._described and now - self._described_at < hold_s
        orders, is_described = self._send_heartbeat(info.name, b"" if is_known else description, hold_s)
        if not is_described:
            is_known, (orders, _) = False, self._send_heartbeat(info.name, description, hold_s)
        if not is_known:
            self._described, self._described_at = description, now
        mark, self.disabled = _decode_orders(orders)
        # The order may have been for an earlier process of this name.
        return bool(mark) and mark == _process_mark(info)

    def _send_heartbeat(self, worker: str, description: bytes, hold_s: float) -> tuple[bytes, int]:
        """Send a heartbeat. An empty *description* leaves the stored one.

        Return the operator's encoded orders, and 1 if a description is stored, else 0.
        """
        hold_ms = round(hold_s * 1000)
        args = [self.token, hold_ms, description, worker, DESCRIBED_HOLDS * hold_ms]
        holder, left_ms, *answer = self._retrying(lambda: script("keep")(self._client, [WORKERS], args))
        _check_holder(worker, holder, left_ms)
        orders, is_described = answer
        return orders, is_described

    def drain(self, info: WorkerInfo) -> None:
        """Order a worker to requeue its trials and end.

        The worker is notified now. If it can't be reached, its next heartbeat gets the order.
        """
        self._change_orders(info, lambda _, disabled: (_process_mark(info), disabled))

    def disable(self, info: WorkerInfo, device: str, by: str) -> None:
        """Order a worker to start no trial on a device until it is enabled, even after a restart.

        Trials that run on the device continue. *by* is the person who disables it.
        """
        self._change_orders(info, lambda mark, disabled: (mark, {**disabled, device: by}))

    def enable(self, info: WorkerInfo, device: str) -> None:
        """Allow a worker to start trials on a disabled device again. Do nothing for other devices."""
        self._change_orders(
            info, lambda mark, disabled: (mark, {name: by for name, by in disabled.items() if name != device})
        )

    def _change_orders(
        self, info: WorkerInfo, change: Callable[[bytes, dict[str, str]], tuple[bytes, dict[str, str]]]
    ) -> None:
        key = drain_key(info.name)

        def write() -> None:
            mark, disabled = change(*_decode_orders(self._client.get(key) or b""))
            with self._client.pipeline() as pipe:
                # Disabled devices stay disabled. An order to drain is for one process of the worker, so it may expire.
                pipe.set(key, encode_value([mark, disabled]), ex=None if disabled else DRAIN_ORDER_S)
                pipe.publish(control_channel(info.name, database_of(self._client)), encode_value([LOOK]))
                pipe.execute()

        self._retrying(write)

    def _remove_expired(self) -> None:
        seconds, _ = self._client.time()
        self._client.zremrangebyscore(WORKERS, "-inf", seconds * 1000)

    def leave(self, worker: str) -> None:
        """Remove a worker and wake all drivers. Do nothing if another process has its name."""

        def remove() -> None:
            # Without a transaction: a full server refuses any transaction, even one that only deletes.
            with self._client.pipeline(transaction=False) as pipe:
                pipe.delete(worker_key(worker))
                pipe.zrem(WORKERS, worker)
                pipe.execute()

        with contextlib.suppress(NameTaken):
            self.take_name(worker, 0)
            self._retrying(remove)
            self.announce(worker, "left")

    def announce(self, worker: str, change: str) -> None:
        """Wake all drivers. *change* is "joined", "left" or another change of the worker."""

        def add() -> None:
            # A heartbeat must not wait until a full server has memory. Drivers also check the register regularly.
            with contextlib.suppress(redis.exceptions.OutOfMemoryError):
                self._client.xadd(FLEET, {"worker": worker, "what": change}, maxlen=FLEET_LENGTH)

        self._retrying(add)

    def workers(self) -> list[WorkerInfo]:
        """Return the workers whose heartbeat has not expired, by name."""

        def fetch() -> list[bytes | None]:
            seconds, _ = self._client.time()
            # Expired workers are not removed here, because a reader's account may not write.
            names = _texts(self._client.zrangebyscore(WORKERS, f"({seconds * 1000}", "+inf"))
            return list(self._client.mget([worker_key(name) for name in names])) if names else []

        workers = {}
        for data in self._retrying(fetch):
            try:
                if data is not None:
                    workers[data] = self._decoded.get(data) or WorkerInfo.decode(data)
            except MessageVersionError as error:
                logger.warning("a worker in the fleet's register is ignored: %s", error)
        self._decoded = workers
        return sorted(workers.values(), key=lambda info: info.name)

    def waiting(self, queue: str) -> int:
        """Return the number of Celery messages in a queue."""
        return sum(self._run_on_lists(int, queue, "llen"))

    def queued(self, queue: str) -> list[dict[str, object]] | None:
        """Return the headers of the Celery messages in a queue. None if it has too many to search."""
        messages = list(chain.from_iterable(self._run_on_lists(list[bytes], queue, "lrange", 0, MAX_QUEUE_SCAN)))
        return None if len(messages) > MAX_QUEUE_SCAN else [_headers(message) for message in messages]

    def _run_on_lists(self, _: type[T], queue: str, command: str, *args: int) -> list[T]:
        """Run a command on each Redis list of a queue. Return the results, whose type is given."""

        def run() -> list[T]:
            with self._client.pipeline(transaction=False) as pipe:
                for name in lists_of(queue):
                    getattr(pipe, command)(name, *args)
                return list(pipe.execute())

        return self._retrying(run)

    def messages_of(self, experiment: str, queues: Iterable[str]) -> list[tuple[str, bytes]]:
        """Return the Celery messages for an experiment's attempts as pairs: Redis list, message.

        It searches *queues*, and all others that this account sees.
        """
        return [(queue, message) for name, queue, message in self.messages(queues) if name == experiment]

    def messages(self, queues: Iterable[str]) -> list[tuple[str, str, bytes]]:
        """Return all Celery messages for attempts as tuples: experiment, Redis list, message.

        It searches *queues*, and all others that this account sees.
        """
        return [
            (str(_headers(message).get("id")).partition("/")[0], queue, message)
            for queue in dict.fromkeys([*chain.from_iterable(map(lists_of, queues)), *self._visible_queues()])
            for message in self._messages_in(queue)
            if _headers(message).get("task") == TASK_NAME
        ]

    def _messages_in(self, queue: str) -> list[bytes]:
        # A team's account can't read the queues of other teams, and has no messages there.
        with contextlib.suppress(AccessDenied):
            return self._retrying(lambda: list(self._client.lrange(queue, 0, -1)))
        return []

    def _visible_queues(self) -> list[str]:
        def scan() -> list[str]:
            return [name.decode(errors="replace") for name in self._client.scan_iter(QUEUES, count=1_000, _type="list")]

        # A driver's account may not be allowed to list all keys.
        with contextlib.suppress(AccessDenied):
            return self._retrying(scan)
        return []

    def remove(self, messages: Iterable[tuple[str, bytes]]) -> int:
        """Remove messages, given with their Redis lists, and return how many were removed."""
        return sum(self._retrying(partial(self._client.lrem, queue, 0, message)) for queue, message in messages)


def _texts(names: list[bytes]) -> list[str]:
    """Decode the names of workers, and leave out malformed ones."""
    texts = []
    for name in names:
        try:
            texts.append(name.decode())
        except UnicodeDecodeError:
            logger.warning("a worker in the fleet's register is ignored: its name is %r", name[:100])
    return texts


def _headers(message: bytes) -> dict[str, object]:
    """Return a message's headers, or an empty dict for a malformed message.

    Workers ignore these, too.
    """
    try:
        headers = json.loads(message)["headers"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return headers if isinstance(headers, dict) else {}


def _check_holder(worker: str, holder: bytes, left_ms: int) -> None:
    if holder:
        token = holder.decode(errors="replace")
        who = token.rpartition(" ")[0]
        raise NameTaken(f"the fleet already has a worker {worker} ({who})", holder=token, left_s=left_ms / 1000)


def _decode_orders(data: bytes) -> tuple[bytes, dict[str, str]]:
    """Decode an operator's orders to a worker.

    Return the mark of the process that has to drain, or empty bytes, and the disabled devices with the person who
    disabled each. Malformed orders count as none.
    """
    try:
        mark, disabled = decode_value(data) if data else (b"", {})
        if type(mark) is bytes and all(type(text) is str for pair in disabled.items() for text in pair):
            return mark, disabled
    except (ValueError, TypeError, AttributeError):
        pass
    return b"", {}


def _process_mark(info: WorkerInfo) -> bytes:
    """Return a mark that tells a worker's process from other processes with its name."""
    return repr(info.joined_at).encode()


class ControlChannel:
    """Receives the hints on a worker's control channel. Only one thread may use it.

    Hints may get lost, because the answers to heartbeats and renewals repeat all orders.
    """

    def __init__(self, client: redis.Redis, worker: str) -> None:
        self._client: Any = client
        self._channel = control_channel(worker, database_of(client))
        self._silence_s = timing_of(client).channel_silence_s
        self._subscription: Any = None
        self._heard_at = 0.0
        self._received: deque[Any] = deque()

    def next(self, timeout_s: float) -> list[Any] | None:
        """Return the next hint as ``[experiment, trial, attempt, orders]``.

        Return None if none came within *timeout_s* seconds, or if it is malformed.

        Raises:
            BrokerUnavailable: the connection broke. The next call opens a new one.
        """
        if not self._received:
            self._received.extend(self._listen(timeout_s))
        if not self._received:
            return None
        hint = self._received.popleft()
        try:
            experiment, trial, attempt, answer = hint
            if [type(part) for part in (experiment, trial, attempt, answer)] != [str, str, int, str]:
                raise TypeError
        except (ValueError, TypeError):
            logger.warning("a hint on %s can't be read: %s", self._channel, reprlib.repr(hint))
            return None
        return [experiment, trial, attempt, answer]

    def _listen(self, timeout_s: float) -> list[Any]:
        """Return the hints in the next message, or an empty list after *timeout_s* seconds."""
        try:
            if self._subscription is None:
                self._subscription = self._client.pubsub()
                self._subscription.subscribe(self._channel)
                self._heard_at = time.monotonic()
            # This is redis-py's get_message without its slower half. A trial may be waiting for the hint.
            self._subscription.check_health()
            connection = self._subscription.connection
            message = connection.read_response() if connection.can_read(timeout=timeout_s) else None
            now = time.monotonic()
            if message is not None:
                self._heard_at = now
            elif now - self._heard_at > self._silence_s:
                raise redis.ConnectionError(f"no message for {now - self._heard_at:.0f} s")
        except (redis.RedisError, OSError) as error:
            self._subscription = None
            raise BrokerUnavailable(f"the control channel {self._channel} broke: {error}") from None
        # Answers to the subscription and to pings arrive here, too.
        if message is None or message[0] != b"message":
            return []
        data = message[2]
        try:
            return list(decode_value(data))
        except (ValueError, TypeError):
            logger.warning("a message on %s can't be read: %r", self._channel, data[:100])
            return []
