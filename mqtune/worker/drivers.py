"""A worker's driver slots: in each runs a script that somebody has submitted, and drives its experiments."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqtune.core.errors import AccessDenied, BrokerRefused, CodeRefused, MqtuneError
from mqtune.core.impairment import WHOLE_WORKER
from mqtune.core.machine import describe_process, signal_name
from mqtune.core.resources import serves
from mqtune.core.submission import DRIVER, SubmittedRun
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.journal.base import Claim
from mqtune.journal.submissions import OUTPUT_BYTES, RunEnd, Submissions, Taken
from mqtune.trainable.bundle import KEY_VARIABLE, Bundle, CodeKeys, unpack
from mqtune.trainable.process.descendants import signal_group
from mqtune.trainable.process.protocol import UNBUFFERED
from mqtune.worker.devices import without_devices
from mqtune.worker.impairments import Cause, Impairments
from mqtune.worker.logs import Logs, open_log
from mqtune.worker.privileges import without_secrets
from mqtune.worker.processes import reaper
from mqtune.worker.scratch import Scratch
from mqtune.worker.script_process import AGAIN_CODE, COMMAND, start_message
from mqtune.worker.threads import Step, guarded

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

#: How long a script may take to end once a person has it stopped: what its driver takes to requeue its trials, and some
#: more.
STOP_S: Final = 30.0
#: How long giving back all scripts may take when the worker shuts down.
_CLOSE_S: Final = 5.0
#: Exit codes of a driver that SIGINT or SIGTERM has ended in an orderly way, as a machine does that shuts down.
_SIGNALLED_CODES: Final = frozenset({128 + signal.SIGINT, 128 + signal.SIGTERM})
#: How many experiments are checked, each ``lock_s``, for a submission that has lost its place: a millisecond of
#: the server's.
_HEALED: Final = 100


@dataclass(slots=True)
class _Run:
    """A script that runs here."""

    taken: Taken
    token: str
    bundle: Bundle
    process: subprocess.Popen[bytes]
    #: The process, as its driver's lock names it.
    description: str
    #: Its working directory, which is deleted with it, and its output.
    folder: Path
    log: Path
    kept_at: float
    #: When it was told to end because a person has it stopped.
    told_at: float | None = None


class DriverSlots:
    """Takes submissions that wait, runs their scripts, and says how these have ended, in a thread of its own.

    A script has a process group and a working directory of its own. It ends with this worker, as does whatever it has
    started; another worker with a driver slot then runs it again.

    Args:
        submissions: those of the broker, by a driver's account.
        slots: how many scripts may run at once.
        worker: this worker's name.
        experiments: the patterns of the names that it serves.
        broker: the URL by which scripts are to reach the broker.
        key: the key that submissions must be signed with, as ``CodeKeys`` reads it.
        logs: keeps the output.
        scratch: has the working directories.
        impairments: learns that the broker refuses the login of the driver's account.
    """

    def __init__(
        self,
        submissions: Submissions,
        *,
        slots: int,
        worker: str,
        experiments: str,
        broker: str,
        key: str,
        logs: Logs,
        scratch: Scratch,
        impairments: Impairments,
        timing: Timing = Timing(),
    ) -> None:
        self.slots = slots
        self._timing = timing
        #: How long a submission is passed over that this worker may not run, or lacks free memory for: its sender waits
        #: no longer than for a worker that is gone.
        self._pass_over_s = timing.lock_s
        self._submissions = submissions
        self._worker = worker
        self._experiments = experiments
        self._broker = broker
        self._keys = CodeKeys(key)
        self._logs = logs
        self._scratch = scratch
        self._impairments = impairments
        #: That the broker refuses the login; None while it does not.
        self._refused: Cause | None = None
        self._runs: list[_Run] = []
        #: The names of those that this worker may not run, or lacks room for, and until when they are passed over.
        self._passed_over: dict[str, float] = {}
        self._heal_at = 0.0
        #: Since when each submission is due, as far as this worker has seen.
        self._due_since: dict[str, float] = {}
        self._leaving = threading.Event()
        self._thread = guarded("mqtune-drivers", self._steps)

    @property
    def busy(self) -> int:
        """How many scripts run."""
        return len(self._runs)

    @property
    def offered(self) -> int:
        """How many slots take scripts: none while the broker refuses the login."""
        return self.slots if self._refused is None else 0

    def start(self) -> None:
        """Take submissions from now on."""
        self._thread.start()

    def give_back(self) -> None:
        """Take no more, end all scripts, whose trials go on, and have other workers run them; returns at once."""
        self._leaving.set()

    def close(self) -> None:
        """Give all back, and wait for that some seconds; the server finds out by itself what it could not be told."""
        self.give_back()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def _steps(self) -> Iterator[Step]:
        # Of an account that is refused each look is a failed login, which the server logs.
        while not self._leaving.wait(
            self._timing.look_at_scripts_s if self._refused is None else self._timing.keep_lock_s
        ):
            for run in tuple(self._runs):
                yield partial(self._logged_in, partial(self._look, run))
            if len(self._runs) < self.slots:
                yield partial(self._logged_in, self._take)
        # The thread that starts processes must not end before them, as the kernel ends them with it.
        for run in tuple(self._runs):
            yield partial(self._logged_in, partial(self._end, run, "again", "its worker was shut down"))

    def _logged_in(self, step: Step) -> None:
        """Take a step that asks the broker.

        Where that refuses the login, say so and leave the scripts to other workers in time.
        """
        try:
            step()
        except BrokerRefused as error:
            if self._refused is None:
                self._refused = Cause(f"its driver account can't log in: {error}", "the broker takes the login")
                self._impairments.put([WHOLE_WORKER], "account", self._refused)
            # Another worker may have them by now.
            for run in [each for each in self._runs if time.monotonic() - each.kept_at >= self._timing.lock_s]:
                logger.warning("submission %s could not be kept: its script ends here", run.taken.name)
                self._clear(run)

    def _note_login(self) -> None:
        if self._refused is not None:
            refused, self._refused = self._refused, None
            self._impairments.lift(refused)

    def _look(self, run: _Run) -> None:
        code = run.process.poll()
        if code is not None:
            self._end(run, *self._ending(run, code), code=code)
            return
        now = time.monotonic()
        if run.told_at is not None and now - run.told_at >= STOP_S:
            self._end(run, "stopped", "")
        elif now - run.kept_at >= self._timing.keep_lock_s:
            self._keep(run)

    def _keep(self, run: _Run) -> None:
        name = run.taken.name
        answer = self._submissions.keep(name, run.token)
        self._note_login()
        run.kept_at = time.monotonic()
        if answer == "over":
            logger.warning("submission %s is another worker's by now: its script ends here", name)
            self._clear(run)
        elif answer == "unknown":
            logger.warning("the server has lost submission %s, which runs here: it is put back", name)
            self._submissions.put_back(run.taken, run.bundle, self._worker, run.token)
        elif answer == "stop" and run.told_at is None:
            run.told_at = run.kept_at
            signal_group(run.process.pid, signal.SIGTERM)

    def _ending(self, run: _Run, code: int) -> tuple[RunEnd, str]:
        """Return how a run has ended that has ended by itself, and why."""
        if run.told_at is not None:
            return "stopped", ""
        if code == 0:
            return "done", ""
        if code < 0:
            # By whom is not known: a machine without memory, or a person.
            return "lost", f"it was ended by {signal_name(-code)}"
        if code in _SIGNALLED_CODES:
            return "lost", "it was told to end"
        if code == AGAIN_CODE:
            return "lost", "it found no server, or another driver"
        return "failed", f"exit code {code}"

    def _take(self) -> None:
        now = time.monotonic()
        # After an outage nothing is taken for twice the time within which each worker keeps what it has.
        if now - self._submissions.back_at < 2 * self._timing.keep_lock_s:
            return
        self._passed_over = {name: until for name, until in self._passed_over.items() if until > now}
        if now >= self._heal_at:
            self._heal_at = now + self._pass_over_s
            self._submissions.heal_some(_HEALED, partial(serves, self._experiments))
        due = self._submissions.due()
        self._note_login()
        self._due_since = {name: self._due_since.get(name, now) for name in due}
        for name in due:
            if len(self._runs) >= self.slots or self._leaving.is_set():
                return
            if name in self._passed_over or not serves(self._experiments, name):
                continue
            if now - self._due_since[name] < self._timing.spread_s * len(self._runs) / self.slots:
                continue
            token = uuid.uuid4().hex
            try:
                taken = self._submissions.take(name, self._worker, token) if self._may_run(name) else None
            except AccessDenied:
                # Another account's drivers have it alone.
                self._passed_over[name] = now + self._pass_over_s
                continue
            if taken is not None:
                self._begin(taken, token)

    def _may_run(self, name: str) -> bool:
        """Return whether a submission is signed for this worker.

        One that is not is left to others, which ``mqtune why`` tells.
        """
        if (signed := self._submissions.signed(name)) is None:
            # To take it removes its name.
            return True
        try:
            signed.submission(self._keys.of(name))
        except CodeRefused as error:
            self._passed_over[name] = time.monotonic() + self._pass_over_s
            if self._submissions.refuse(signed, self._worker, str(error)):
                logger.warning("submission %s is left to other workers: %s", name, error)
            return False
        return True

    def _begin(self, taken: Taken, token: str) -> None:
        """Run a submission that this worker has taken.

        One that can't be run has failed, unless another worker may run it.
        """
        folder = self._scratch.folder(taken.name, Claim(TrialId(DRIVER), taken.run, token))
        try:
            self._start(taken, token, folder)
        except (MqtuneError, OSError) as error:
            logger.warning("submission %s can't run here: %s", taken.name, error)
            self._scratch.remove(folder)
            how: RunEnd = "lost" if isinstance(error, OSError) else "failed"
            if how == "lost":
                # Other workers first: this one may lack room for longer than a submission has runs that may be lost so
                # soon.
                self._passed_over[taken.name] = time.monotonic() + self._pass_over_s
            self._submissions.leave(taken.name, token, how, code=None, reason=f"it can't run: {error}", output="")

    def _start(self, taken: Taken, token: str, folder: Path) -> None:
        key = self._keys.of(taken.name)
        submission = taken.submission(key)
        bundle = self._submissions.bundle(taken.name, submission.bundle)
        if bundle is None:
            raise CodeRefused("its code is not on the server any more: submit it again")
        files = bundle.files()
        if submission.script not in files:
            raise CodeRefused(f"its code has no {submission.script}")
        unpack(files, folder)
        run = SubmittedRun(taken.name, taken.is_first, submission.owner)
        secrets = {"MQTUNE_BROKER": self._broker, KEY_VARIABLE: key}
        message = start_message(folder / submission.script, submission.arguments, secrets)
        log, _ = self._logs.files(taken.name, Claim(TrialId(DRIVER), taken.run, token))
        self._logs.begin(log)
        with open_log(log) as output:
            process = reaper.start(
                COMMAND,
                {**without_secrets(), **UNBUFFERED, **without_devices(), **run.variables()},
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        description = describe_process(process.pid)
        self._runs.append(_Run(taken, token, bundle, process, description, folder, log, time.monotonic()))
        assert process.stdin is not None  # noqa: S101 - it was asked for
        # One that has ended already is found by the next look.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(message)
        logger.info(
            "submission %s: run %d begins, %s of %s", taken.name, taken.run, submission.script, submission.owner
        )

    def _end(self, run: _Run, how: RunEnd, reason: str, *, code: int | None = None) -> None:
        """End all processes of a run, and say how it has ended."""
        output = self._clear(run)
        logger.info("submission %s: run %d has ended: %s %s", run.taken.name, run.taken.run, how, reason)
        self._submissions.leave(
            run.taken.name, run.token, how, code=code, reason=reason, output=output, process=run.description
        )

    def _clear(self, run: _Run) -> str:
        """End all processes of a run, delete its folder, and return the end of its output."""
        signal_group(run.process.pid, signal.SIGKILL)
        # With what has left its group.
        reaper.kill(run.process, 0)
        self._runs.remove(run)
        self._scratch.remove(run.folder)
        return self._logs.end(run.log, OUTPUT_BYTES)
