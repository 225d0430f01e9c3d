"""A worker's driver slots: each runs a submitted script, which drives its experiments."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from mqtune.core.errors import AccessDenied, BrokerRefused, CodeRefused, MqtuneError
from mqtune.core.impairment import WHOLE_WORKER
from mqtune.core.machine import describe_process, signal_name
from mqtune.core.resources import serves
from mqtune.core.submission import DRIVER, SubmittedRun
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.journal import Claim
from mqtune.services.submissions.board import OUTPUT_BYTES, RunEnd, Submissions, Taken
from mqtune.services.submissions.script_process import AGAIN_CODE, COMMAND, start_message
from mqtune.trainable import KEY_VARIABLE, UNBUFFERED, Bundle, CodeKeys, signal_group, unpack
from mqtune.worker import (
    ImpairmentCause,
    Impairments,
    Logs,
    Scratch,
    Step,
    guarded,
    open_log,
    reaper,
    without_devices,
    without_secrets,
)
from mqtune.worker.ports import WorkerService

logger = logging.getLogger(__name__)

#: Time for a script to end after a user's stop.
STOP_S: Final = 30.0
#: Time for returning all scripts at shutdown.
_CLOSE_S: Final = 5.0
#: Time for ending the scripts after that, without the server.
_END_S: Final = 1.0
#: Exit codes of a driver ended properly by SIGINT or SIGTERM, as at the shutdown of a machine.
_SIGNALLED_CODES: Final = frozenset({128 + signal.SIGINT, 128 + signal.SIGTERM})
#: Number of experiments that are checked every ``lock_s`` for a submission without a queue entry.
_HEALED: Final = 100
#: The kind of its impairments.
_KIND: Final = "account"


@dataclass(slots=True)
class _Run:
    """A running script."""

    taken: Taken
    token: str
    bundle: Bundle
    process: subprocess.Popen[bytes]
    #: The process's description, as its driver's lock has it.
    description: str
    #: Its working directory, deleted at its end, and its output.
    folder: Path
    log: Path
    #: When the submission was claimed or renewed last, by the monotonic clock.
    kept_at: float
    #: When it got the order to end, after a user's stop.
    told_at: float | None = None


class DriverSlots(WorkerService):
    """Claims waiting submissions, runs their scripts, and records their ends, in a thread.

    A script has its own process group and working directory. It ends with this worker, with all its child processes.
    Then another worker with a driver slot runs it again.

    Args:
        submissions: the broker's submissions, with a driver's account.
        experiments: patterns of the served names.
        key: the key of signed submissions, as ``CodeKeys`` reads it.
        impairments: gets notified if the broker refuses the driver account's login.
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
        logs: Callable[[], Logs],
        scratch: Scratch,
        impairments: Impairments,
        timing: Timing = Timing(),
    ) -> None:
        self.slots = slots
        self._timing = timing
        #: How long a submission is skipped that this worker may not run, or could not start.
        self._pass_over_s = timing.lock_s
        self._submissions = submissions
        self._worker = worker
        self._experiments = experiments
        self._broker = broker
        self._keys = CodeKeys(key)
        self._logs = logs
        self._scratch = scratch
        self._impairments = impairments
        #: The impairment while the broker refuses the login.
        self._refused: ImpairmentCause | None = None
        self._runs: list[_Run] = []
        #: Until when submissions are skipped, by name and the monotonic clock.
        self._passed_over: dict[str, float] = {}
        self._heal_at = 0.0
        #: When this worker first saw each due submission.
        self._due_since: dict[str, float] = {}
        self._leaving = threading.Event()
        self._thread = guarded("mqtune-drivers", self._steps)

    @property
    def busy(self) -> int:
        """Number of running scripts."""
        return len(self._runs)

    @property
    def offered(self) -> int:
        """Number of slots that accept scripts.

        It is 0 while the broker refuses the login, and after the worker begins to drain.
        """
        return 0 if self._leaving.is_set() or self._refused is not None else self.slots

    def describe(self) -> Mapping[str, Any]:
        """Return the numbers of slots and of running scripts."""
        return {"drivers": self.offered, "driving": self.busy}

    def start(self) -> None:
        """Start to claim submissions."""
        self._thread.start()

    def drain(self) -> None:
        """Claim no more submissions, and end all scripts.

        Their trials continue, and other workers run the scripts again. Returns immediately.
        """
        self._leaving.set()

    def close(self) -> None:
        """End all scripts, and wait some seconds until the server knows.

        Without an answer, the server notices it by the missing renewals.
        """
        self.drain()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        self._submissions.close()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _steps(self) -> Iterator[Step]:
        # The server logs a failed login for each request of a refused account.
        while not self._leaving.wait(
            self._timing.look_at_scripts_s if self._refused is None else self._timing.keep_lock_s
        ):
            for run in tuple(self._runs):
                yield partial(self._run_step, partial(self._check, run))
            if len(self._runs) < self.slots:
                yield partial(self._run_step, self._claim_due)
        # The thread that starts processes must not end before them, as the kernel ends them with it.
        for run in tuple(self._runs):
            yield partial(self._run_step, partial(self._end, run, "again", "its worker was shut down"))

    def _run_step(self, step: Step) -> None:
        """Run a step that calls the broker. If the broker refuses the login, add an impairment.

        Scripts that could not be renewed in time are ended then, because other workers may run them.
        """
        try:
            step()
        except BrokerRefused as error:
            if self._refused is None:
                self._refused = ImpairmentCause(
                    f"its driver account can't log in: {error}", "the broker takes the login"
                )
                self._impairments.put([WHOLE_WORKER], _KIND, self._refused)
            # Another worker may run them by now.
            for run in [run for run in self._runs if time.monotonic() - run.kept_at >= self._timing.lock_s]:
                logger.warning("submission %s could not be renewed: its script ends here", run.taken.name)
                self._clear(run)

    def _note_login(self) -> None:
        if self._refused is not None:
            refused, self._refused = self._refused, None
            self._impairments.lift(refused)

    def _check(self, run: _Run) -> None:
        code = run.process.poll()
        if code is not None:
            self._end(run, *self._ending(run, code), code=code)
            return
        now = time.monotonic()
        if run.told_at is not None and now - run.told_at >= STOP_S:
            self._end(run, "stopped", "")
        elif now - run.kept_at >= self._timing.keep_lock_s:
            self._renew(run)

    def _renew(self, run: _Run) -> None:
        name = run.taken.name
        answer = self._submissions.keep(name, run.token)
        self._note_login()
        run.kept_at = time.monotonic()
        if answer == "over":
            logger.warning("submission %s is another worker's by now: its script ends here", name)
            self._clear(run)
        elif answer == "unknown":
            logger.warning("the server has lost submission %s, which runs here: it is restored", name)
            self._submissions.restore(run.taken, run.bundle, self._worker, run.token)
        elif answer == "stop" and run.told_at is None:
            run.told_at = run.kept_at
            signal_group(run.process.pid, signal.SIGTERM)

    def _ending(self, run: _Run, code: int) -> tuple[RunEnd, str]:
        if run.told_at is not None:
            return "stopped", ""
        if code == 0:
            return "done", ""
        if code < 0:
            # A machine without memory, or a user.
            return "lost", f"it was ended by {signal_name(-code)}"
        if code in _SIGNALLED_CODES:
            return "lost", "it was told to end"
        if code == AGAIN_CODE:
            return "lost", "it found no server, or another driver"
        return "failed", f"exit code {code}"

    def _claim_due(self) -> None:
        now = time.monotonic()
        # After an outage, every worker first gets twice the time that it needs to renew its own submissions.
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
                # It is for another account's drivers.
                self._passed_over[name] = now + self._pass_over_s
                continue
            if taken is not None:
                self._begin(taken, token)

    def _may_run(self, name: str) -> bool:
        """Whether a submission is signed for this worker.

        If it isn't, other workers may run it, and ``mqtune why`` shows the reason.
        """
        if (signed := self._submissions.signed(name)) is None:
            # Claiming it removes its name.
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
        """Run a submission that this worker has claimed.

        If it can't run, it has failed. After an error of this machine, another worker may run it.
        """
        folder = self._scratch.folder(taken.name, Claim(TrialId(DRIVER), taken.run, token))
        try:
            self._start(taken, token, folder)
        except (MqtuneError, OSError) as error:
            logger.warning("submission %s can't run here: %s", taken.name, error)
            self._scratch.remove(folder)
            how: RunEnd = "lost" if isinstance(error, OSError) else "failed"
            if how == "lost":
                # Other workers first: this one may lack space for longer than the submission has runs to lose.
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
        logs = self._logs()
        log, _ = logs.files(taken.name, Claim(TrialId(DRIVER), taken.run, token))
        logs.begin(log)
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
        # It may have ended already. The next check notices that.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(message)
        logger.info(
            "submission %s: run %d begins, %s of %s", taken.name, taken.run, submission.script, submission.owner
        )

    def _end(self, run: _Run, how: RunEnd, reason: str, *, code: int | None = None) -> None:
        output = self._clear(run)
        logger.info("submission %s: run %d has ended: %s %s", run.taken.name, run.taken.run, how, reason)
        self._submissions.leave(
            run.taken.name, run.token, how, code=code, reason=reason, output=output, process=run.description
        )

    def _clear(self, run: _Run) -> str:
        signal_group(run.process.pid, signal.SIGKILL)
        # Including processes that have left its group.
        reaper.kill(run.process, 0)
        self._runs.remove(run)
        self._scratch.remove(run.folder)
        return self._logs().end(run.log, OUTPUT_BYTES)
