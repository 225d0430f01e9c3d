"""Submissions on their server: who submits puts them there, and workers with driver slots take, keep and end them."""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

import redis

from mqtune.core.errors import AccessDenied, CodeRefused, MessageVersionError, NameTaken
from mqtune.core.keys import EXPERIMENTS, SUBMISSIONS, ExperimentKeys, is_name
from mqtune.core.submission import Submission
from mqtune.journal.code import CodeExchange
from mqtune.journal.connection import timing_of
from mqtune.journal.redis import number, retrying
from mqtune.journal.script import script
from mqtune.journal.stream import naming
from mqtune.trainable.bundle import KEY_VARIABLE, Bundle, is_digest, is_path, is_signed, signature

T = TypeVar("T")

#: Which experiments a worker heals the submissions of: those begun or submitted last.
_NEWEST: Final = 1_000
#: By how much the place of a submission may be in the future: what a read takes, in which the server's clock goes on.
_SKEW_S: Final = 1.0
#: So many short runs in a row end a submission: it may be what ends its workers.
MOST_SHORT: Final = 3
#: How many workers are named that may not run a submission: as many as people read.
MOST_REFUSED: Final = 20
#: How much is kept of the output of a run that has ended.
OUTPUT_BYTES: Final = 4096

#: How a run has ended: well; by an error; as a person wanted; given back; or lost.
RunEnd = Literal["done", "failed", "stopped", "again", "lost"]
#: The outcome of a wish to end a submission; see the halt script.
Halted = Literal["unknown", "ended", "stopped", "told"]
#: The answer to a worker that keeps one; see the attend script.
Kept = Literal["", "stop", "over", "unknown"]


class SubmissionState(NamedTuple):
    """How a submission stands; times are in seconds since the epoch, by the server's clock.

    Attributes:
        submission: the script that was submitted; None where that can't be read.
        state: "waiting", "running" or "ended".
        run: the number of its newest run; 0 before the first.
        worker: who has taken it last.
        began: when that was.
        is_kept: whether a worker that has taken it has kept it of late.
        how: "done", "failed" or "stopped" once it has ended.
        code: the exit code of its last run that has ended; None where it has none.
        reason: why it has ended.
        output: the end of the output of its last run.
        refused_by: the workers that have found since its last run that they may not run it, the last ``MOST_REFUSED``
            of them.
        refusal: why the last of those may not.
    """

    submission: Submission | None
    state: str
    run: int
    worker: str
    began: float
    is_kept: bool
    how: str
    code: int | None
    reason: str
    output: str
    refused_by: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether no run of it will follow."""
        return self.state == "ended"


@dataclass(frozen=True, slots=True)
class Signed:
    """A submission as it is on the server, unchecked: whoever may write there may have changed it."""

    name: str
    description: bytes
    signature: str

    def submission(self, key: str) -> Submission:
        """Return the submission.

        Raises:
            CodeRefused: it is not signed with this key, or makes no sense.
        """
        if not is_signed(key, _digest(self.description), self.signature, "submission"):
            raise CodeRefused(f"it is not signed with the {KEY_VARIABLE} of the worker")
        try:
            found = Submission.decode(self.description)
        except MessageVersionError as error:
            raise CodeRefused(str(error)) from None
        if found.name != self.name or not is_digest(found.bundle) or not is_path(found.script):
            raise CodeRefused(f"it is {found.name!r} in its description, or names no script")
        return found


@dataclass(frozen=True, slots=True)
class Taken(Signed):
    """A submission that a worker has taken: the number of its run, and whether that is the first."""

    run: int
    is_first: bool


class Submissions:
    """The submissions of a broker. Any thread may call it. A refused login is an error at once (BrokerRefused).

    Args:
        client: a checked connection; to submit, and to run what was, takes a driver's account.
        patience_s: how long a call goes on trying while the server is away.
    """

    def __init__(self, client: redis.Redis, *, patience_s: float) -> None:
        # redis-py's types allow for what other settings would return.
        self._client: Any = client
        self._patience_s = patience_s
        #: The times by which workers keep submissions.
        self.timing = timing_of(client)
        self._hold_ms = _ms(self.timing.lock_s)
        self._closing = threading.Event()
        #: When the server was back after an outage, by the monotonic clock.
        self.back_at = -math.inf

    def _retrying(self, call: Callable[[], T]) -> T:
        return retrying(
            call,
            patience_s=self._patience_s,
            refused_patience_s=0.0,
            closing=self._closing,
            on_return=self._on_return,
        )

    def _on_return(self) -> None:
        self.back_at = time.monotonic()

    def _run(self, name: str, keys: list[str], args: Sequence[object]) -> Any:
        with naming(keys[0]):
            return self._retrying(lambda: script(name)(self._client, keys, args))

    def close(self) -> None:
        """Have calls that wait for a server that is away end, with BrokerUnavailable."""
        self._closing.set()

    # Who submits.

    def submit(self, submission: Submission, bundle: Bundle, key: str) -> None:
        """Submit a script, signed with the key of the workers that may run it.

        Raises:
            NameTaken: one of its name has not ended, or somebody drives the experiment of its name.
            AccessDenied: the account may not submit, or not under this name.
            BrokerUnavailable: no server answers.
        """
        description = submission.encode()
        signed = signature(key, _digest(description), "submission")
        self._put(submission.name, [description, signed, bundle.digest, bundle.data, 0, "", "", 0])

    def _put(self, name: str, args: Sequence[object]) -> None:
        keys = ExperimentKeys(name)
        names = [keys.submission, keys.submitted_code, SUBMISSIONS, EXPERIMENTS, keys.meta]
        refused, worker = self._run("submit", names, [name, secrets.token_hex(8), *args])
        if refused:
            self.heal([name])
            by = worker.decode(errors="replace")
            runs = f"a script that was submitted as {name!r} runs on {by}"
            why = {b"waits": f"a script that was submitted as {name!r} waits for a driver slot", b"runs": runs}
            raise NameTaken(why.get(refused, f"somebody drives experiment {name!r}"), holder=by)

    # Who looks.

    def state(self, name: str) -> SubmissionState | None:
        """Return how the submission of this name stands; None if there is none.

        Raises:
            AccessDenied: the account may not know it.
            BrokerUnavailable: no server answers.
        """
        key = ExperimentKeys(name).submission
        fields = (
            "state",
            "description",
            "run",
            "worker",
            "began",
            "how",
            "code",
            "reason",
            "output",
            "refused",
            "refusal",
        )

        def look() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                pipe.hmget(key, *fields)
                pipe.zscore(SUBMISSIONS, name)
                pipe.time()
                return list(pipe.execute())

        with naming(key):
            found, until, (seconds, _) = self._retrying(look)
        state, description, *others = found
        if state is None:
            return None
        now_ms = seconds * 1000
        latest = now_ms if state == b"waiting" else now_ms + self._hold_ms
        if state != b"ended" and (until is None or until > latest + _ms(_SKEW_S)):
            self.heal([name])
        run, worker, began, how, code, reason, output, refused, refusal = others
        try:
            submission = Submission.decode(description or b"")
        except MessageVersionError:
            submission = None
        return SubmissionState(
            submission,
            _text(state),
            number(run),
            _text(worker),
            number(began) / 1000,
            state == b"running" and (until or 0.0) > seconds * 1000,
            _text(how),
            _code(code),
            _text(reason),
            _text(output),
            tuple(_text(refused).splitlines()),
            _text(refusal),
        )

    def halt(self, name: str, reason: str) -> Halted:
        """Have a submission end; its worker learns of it within some seconds.

        Raises:
            AccessDenied: the account may not.
            BrokerUnavailable: no server answers.
        """
        found = self._run("halt", [ExperimentKeys(name).submission, SUBMISSIONS], [name, reason])
        return cast("Halted", found.decode())

    def heal(self, names: Sequence[str]) -> None:
        """Put submissions that have not ended back among those that workers look for.

        The set of these is one for all teams: an account of one can remove the submission of another, or put it off.
        Nothing is done about names that this account may not change.
        """
        for name in names:
            with contextlib.suppress(AccessDenied):
                self._run("heal", [ExperimentKeys(name).submission, SUBMISSIONS], [name, self._hold_ms])

    # Who runs them.

    def due(self) -> list[str]:
        """Return the names of submissions that wait, or that their worker has not kept, the oldest first.

        Raises:
            AccessDenied: the account is no driver's.
            BrokerUnavailable: no server answers.
        """

        def look() -> list[bytes]:
            seconds, micros = self._client.time()
            return list(self._client.zrangebyscore(SUBMISSIONS, "-inf", seconds * 1000 + micros // 1000))

        names = [_text(name) for name in self._retrying(look)]
        return [name for name in names if is_name(name)]

    def heal_some(self, count: int, serves: Callable[[str], bool]) -> None:
        """Heal some of the newest experiments that *serves* accepts, chosen by chance.

        All workers together come to each of them.

        Raises:
            BrokerUnavailable: no server answers.
        """
        newest = self._retrying(lambda: self._client.zrevrange(EXPERIMENTS, 0, _NEWEST - 1))
        names = [name for name in map(_text, newest) if is_name(name) and serves(name)]
        some = random.sample(names, min(count, len(names)))

        def look() -> list[object]:
            with self._client.pipeline(transaction=False) as pipe:
                for name in some:
                    pipe.hget(ExperimentKeys(name).submission, "state")
                return list(pipe.execute(raise_on_error=False))

        states = self._retrying(look) if some else []
        self.heal([name for name, state in zip(some, states, strict=True) if state in (b"waiting", b"running")])

    def signed(self, name: str) -> Signed | None:
        """Return the submission of a name, unchecked; None if there is none.

        Raises:
            AccessDenied: the account is no driver's of this name.
            BrokerUnavailable: no server answers.
        """
        key = ExperimentKeys(name).submission
        with naming(key):
            description, signed = self._retrying(lambda: self._client.hmget(key, "description", "signature"))
        return None if description is None else Signed(name, description, _text(signed))

    def refuse(self, signed: Signed, worker: str, reason: str) -> bool:
        """Say that a worker may not run a submission, and leaves it to others; return whether that is new."""
        args = [worker, signed.signature, reason, MOST_REFUSED]
        return bool(self._run("refuse", [ExperimentKeys(signed.name).submission], args))

    def take(self, name: str, worker: str, token: str) -> Taken | None:
        """Take a submission that is due for ``lock_s`` seconds.

        Return None where somebody else has, it has ended, or its experiment is driven.

        Args:
            name: its name.
            worker: who takes it.
            token: unique to this call.
        """
        keys = ExperimentKeys(name)
        args = [name, worker, token, self._hold_ms, _ms(self.timing.short_run_s), MOST_SHORT]
        run, before, description, signed = self._run("take", [keys.submission, SUBMISSIONS, keys.meta], args)
        return Taken(name, description, _text(signed), run, run == before + 1) if run else None

    def bundle(self, name: str, digest: str) -> Bundle | None:
        """Return the bundle of a submission, unchecked; None if it is not there."""
        exchange = CodeExchange(self._client, name, submitted=True, patience_s=self._patience_s, closing=self._closing)
        return exchange.bundle(digest)

    def keep(self, name: str, token: str) -> Kept:
        """Keep a submission for ``lock_s`` more seconds, and return whether its run is to go on."""
        answer = self._run("attend", [ExperimentKeys(name).submission, SUBMISSIONS], [name, token, self._hold_ms])
        return cast("Kept", answer.decode())

    def put_back(self, taken: Taken, bundle: Bundle, worker: str, token: str) -> None:
        """Put a submission back that this worker runs, and the server has lost."""
        args = [taken.description, taken.signature, bundle.digest, bundle.data, taken.run, worker, token, self._hold_ms]
        self._put(taken.name, args)

    def leave(
        self, name: str, token: str, how: RunEnd, *, code: int | None, reason: str, output: str, process: str = ""
    ) -> None:
        """Say how this worker's run of a submission has ended; nothing happens where it is not this worker's any more.

        *process* describes the run's process, which is dead. Where it drove the experiment of the submission's name,
        its lock is released.
        """
        keys = ExperimentKeys(name)
        args = [name, token, how, "" if code is None else code, reason, output, process]
        self._run("leave", [keys.submission, SUBMISSIONS, keys.driver, keys.meta], args)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _digest(description: bytes) -> str:
    return hashlib.sha256(description).hexdigest()


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


def _code(value: bytes | None) -> int | None:
    digits = (value or b"").removeprefix(b"-")
    return int(value or b"0") if digits.isdigit() and len(digits) < 10 else None  # noqa: PLR2004 - of any exit code
