"""Submissions on their server: users add them, and workers claim, renew and end them."""

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
from mqtune.journal import CodeExchange, naming, number, retrying, script_in, timing_of
from mqtune.trainable import KEY_VARIABLE, Bundle, is_digest, is_path, is_signed, signature

T = TypeVar("T")

#: Package of the Lua scripts.
_PACKAGE: Final = "mqtune.services.submissions"

#: Number of newest experiments that are checked for submissions without a queue entry.
_NEWEST: Final = 1_000
#: Tolerance for queue entries in the future: the clock advances during a read.
_SKEW_S: Final = 1.0
#: After this many lost short runs in a row a submission is given up, because it may be killing its workers.
MOST_SHORT: Final = 3
#: Maximum number of named workers that may not run a submission.
MOST_REFUSED: Final = 20
#: Stored bytes of an ended run's output.
OUTPUT_BYTES: Final = 4096

#: How a run ended: successfully, by an error, by a user's stop, returned by its worker's shutdown, or lost.
RunEnd = Literal["done", "failed", "stopped", "again", "lost"]
#: Result of a request to end a submission; see the halt script.
Halted = Literal["unknown", "ended", "stopped", "told"]
#: Answer to a worker that renews a submission; see the attend script.
Kept = Literal["", "stop", "over", "unknown"]


class SubmissionState(NamedTuple):
    """The state of a submission. Times are in seconds since the epoch, by the server's clock.

    Attributes:
        submission: the submitted script; None if it can't be read.
        state: "waiting", "running" or "ended".
        run: number of its newest run; 0 before the first.
        worker: last worker that claimed it.
        began: time of that claim.
        is_kept: whether that worker has renewed it recently.
        how: "done", "failed" or "stopped" after its end.
        code: exit code of its last ended run, if there is one.
        reason: why it has ended.
        output: end of its last run's output.
        refused_by: the last ``MOST_REFUSED`` workers that may not run it, since its last run.
        refusal: reason of the last of these.
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
    """A submission from the server, unchecked: other accounts may have changed it."""

    name: str
    description: bytes
    signature: str

    def submission(self, key: str) -> Submission:
        """Return the submission.

        Raises:
            CodeRefused: it is not signed with this key, or is invalid.
        """
        if not is_signed(key, _digest(self.description), self.signature, "submission"):
            raise CodeRefused(f"it is not signed with the {KEY_VARIABLE} of the worker")
        try:
            submission = Submission.decode(self.description)
        except MessageVersionError as error:
            raise CodeRefused(str(error)) from None
        if submission.name != self.name or not is_digest(submission.bundle) or not is_path(submission.script):
            raise CodeRefused(f"its description is of {submission.name!r}, or names no script")
        return submission


@dataclass(frozen=True, slots=True)
class Taken(Signed):
    """A claimed submission, with the number of its run, and whether that is its first run."""

    run: int
    is_first: bool


class Submissions:
    """The submissions of a broker. Thread-safe.

    A refused login is an immediate error (BrokerRefused).

    Args:
        client: a checked connection. Submitting and running scripts needs a driver's account.
        patience_s: how long a call retries while the server is away.
    """

    def __init__(self, client: redis.Redis, *, patience_s: float) -> None:
        # redis-py's types include the results of other settings.
        self._client: Any = client
        self._patience_s = patience_s
        #: Has the times by which workers renew their submissions.
        self.timing = timing_of(client)
        self._hold_ms = _ms(self.timing.lock_s)
        self._closing = threading.Event()
        #: End of the last outage of the server, by the monotonic clock.
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
            return self._retrying(lambda: script_in(_PACKAGE, name)(self._client, keys, args))

    def close(self) -> None:
        """End calls that wait for an unavailable server, with BrokerUnavailable."""
        self._closing.set()

    # For users that submit scripts.

    def submit(self, submission: Submission, bundle: Bundle, key: str) -> None:
        """Submit a script, signed with the key of the workers that may run it.

        Raises:
            NameTaken: a submission of its name has not ended, or the experiment of its name has a driver.
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

    # For readers.

    def state(self, name: str) -> SubmissionState | None:
        """Return the state of the submission of this name, or None if it does not exist.

        Raises:
            AccessDenied: the account may not read it.
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
            known, until, (seconds, _) = self._retrying(look)
        state, description, *others = known
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
        """Request the end of a submission, and return what became of it.

        The result is "unknown" if it does not exist, "ended" if it had ended, "stopped" if it has ended now, and "told"
        if its worker will end it within some seconds.

        Raises:
            AccessDenied: the account may not end it.
            BrokerUnavailable: no server answers.
        """
        state = self._run("halt", [ExperimentKeys(name).submission, SUBMISSIONS], [name, reason])
        return cast("Halted", state.decode())

    def heal(self, names: Sequence[str]) -> None:
        """Restore the queue entries of submissions that have not ended.

        All teams share one queue, so one team's account can remove or postpone another's submission. Names that this
        account may not change are skipped.
        """
        for name in names:
            with contextlib.suppress(AccessDenied):
                self._run("heal", [ExperimentKeys(name).submission, SUBMISSIONS], [name, self._hold_ms])

    # For workers that run scripts.

    def due(self) -> list[str]:
        """Return the names of due submissions, the longest due first.

        Raises:
            AccessDenied: the account is not a driver's.
            BrokerUnavailable: no server answers.
        """

        def look() -> list[bytes]:
            seconds, micros = self._client.time()
            return list(self._client.zrangebyscore(SUBMISSIONS, "-inf", seconds * 1000 + micros // 1000))

        names = [_text(name) for name in self._retrying(look)]
        return [name for name in names if is_name(name)]

    def heal_some(self, count: int, serves: Callable[[str], bool]) -> None:
        """Restore the queue entries of up to *count* of the newest submissions, chosen at random.

        Only names for which *serves* returns True are chosen. In time, all workers together check each submission.

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
        """Return the submission of a name, unchecked, or None if it does not exist.

        Raises:
            AccessDenied: the account is not a driver's for this name.
            BrokerUnavailable: no server answers.
        """
        key = ExperimentKeys(name).submission
        with naming(key):
            description, signed = self._retrying(lambda: self._client.hmget(key, "description", "signature"))
        return None if description is None else Signed(name, description, _text(signed))

    def refuse(self, signed: Signed, worker: str, reason: str) -> bool:
        """Record that a worker may not run a submission. Return False if that was known."""
        args = [worker, signed.signature, reason, MOST_REFUSED]
        return bool(self._run("refuse", [ExperimentKeys(signed.name).submission], args))

    def take(self, name: str, worker: str, token: str) -> Taken | None:
        """Claim a due submission for ``lock_s`` seconds.

        Return None if another worker has claimed it, it has ended, or its experiment has a driver.

        Args:
            token: unique to this call.
        """
        keys = ExperimentKeys(name)
        args = [name, worker, token, self._hold_ms, _ms(self.timing.short_run_s), MOST_SHORT]
        run, before, description, signed = self._run("take", [keys.submission, SUBMISSIONS, keys.meta], args)
        return Taken(name, description, _text(signed), run, run == before + 1) if run else None

    def bundle(self, name: str, digest: str) -> Bundle | None:
        """Return the bundle of a submission, unchecked, or None if the server lacks it."""
        exchange = CodeExchange(self._client, name, submitted=True, patience_s=self._patience_s, closing=self._closing)
        return exchange.bundle(digest)

    def keep(self, name: str, token: str) -> Kept:
        """Renew a submission for ``lock_s`` seconds. Return why its run may not continue.

        The result is empty if it may, "stop" after a user's stop, "over" if it has ended or another worker has claimed
        it, and "unknown" if the server has lost it.
        """
        answer = self._run("attend", [ExperimentKeys(name).submission, SUBMISSIONS], [name, token, self._hold_ms])
        return cast("Kept", answer.decode())

    def restore(self, taken: Taken, bundle: Bundle, worker: str, token: str) -> None:
        """Restore a submission that runs on this worker and that the server has lost."""
        args = [taken.description, taken.signature, bundle.digest, bundle.data, taken.run, worker, token, self._hold_ms]
        self._put(taken.name, args)

    def leave(
        self, name: str, token: str, how: RunEnd, *, code: int | None, reason: str, output: str, process: str = ""
    ) -> None:
        """Record the end of this worker's run of a submission.

        Nothing happens if another worker has claimed it. *process* describes the run's process, which is dead. If it
        drove the experiment of the submission's name, its lock is released.
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
