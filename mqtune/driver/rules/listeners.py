"""Listeners of the driver: each gets every new event, and returns actions."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Final, Protocol

from mqtune.backends.base import BackendSession, TakesResources
from mqtune.core import errors
from mqtune.core.errors import (
    CodeDiffers,
    CodeRefused,
    MetricMissing,
    MqtuneError,
    StoreMissing,
    StoreUnavailable,
    TrainableLost,
    TrainableNotFound,
    TrialFailed,
)
from mqtune.core.events import (
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    DecisionTaken,
    Event,
    TrialClosed,
    TrialStaged,
)
from mqtune.core.experiment import Experiment
from mqtune.core.resources import Resources
from mqtune.core.tasks import task_name
from mqtune.core.text import printable
from mqtune.core.trial import Action, AttemptEnd, CheckpointId, Trial, TrialId, TrialStatus
from mqtune.driver.setup.options import FailFast
from mqtune.driver.setup.requirements import differences
from mqtune.driver.writing.actions import Decide, DriverAction
from mqtune.results.callbacks import CallbackDispatcher

logger = logging.getLogger(__name__)

#: Errors for which a run ends under the same type if no attempt could start. For other errors it is TrainableNotFound.
_NOT_STARTED: Final[dict[str, type[MqtuneError]]] = {
    kind.__name__: kind for kind in (CodeDiffers, CodeRefused, StoreUnavailable)
}

#: The name and text of an error about an unsendable report, in an attempt's error text. That is a traceback, or the end
#: of a script's output.
_UNSENDABLE: Final = re.compile(r"^mqtune\.core\.errors\.(ReportInvalid|ReportTooLarge): (.+)", re.MULTILINE)

#: If this many trials have ended, and all have failed, a warning says how to end the run.
_ALL_FAILED: Final = 10


class Listener(Protocol):
    """Gets the events of an experiment, and returns actions."""

    def hear(self, event: Event) -> Sequence[DriverAction]:
        """Process an event, after the fold has applied it.

        Return actions for the driver to carry out.
        """


class BackendListener:
    """Notifies the backend of attempts that begin and end, so that it can count busy slots."""

    def __init__(self, backend: BackendSession) -> None:
        self._backend = backend

    def hear(self, event: Event) -> tuple[()]:
        """Notify the backend of a started task or an ended attempt.

        If the resources depend on the config, also notify it of staged attempts.
        """
        if isinstance(event, TrialStaged):
            if event.resources is not None and isinstance(self._backend, TakesResources):
                self._backend.asks(event.trial, event.attempt, event.resources)
        elif isinstance(event, AttemptStarted):
            self._backend.started(task_name(event.trial, event.task), event.attempt, event.queue)
        elif isinstance(event, AttemptEnded):
            self._backend.ended(event.trial, event.attempt)
        return ()


class OfferWatch:
    """Finds attempts whose resources no slot offers.

    Such a trial waits, and a warning is logged once for its resources; or it fails.

    Args:
        may_wait: whether such trials may wait.
    """

    def __init__(self, backend: BackendSession, experiment: Experiment, *, may_wait: bool) -> None:
        self._backend = backend
        self._experiment = experiment
        self._may_wait = may_wait
        #: Resources for which a warning was logged.
        self._warned: set[Resources] = set()

    def hear(self, event: Event) -> Sequence[DriverAction]:
        """Check a staged attempt."""
        if not isinstance(event, TrialStaged) or event.resources is None or self._backend.offered(event.resources):
            return ()
        reason = f"{event.resources.not_offered}; there are {self._backend.resource_string()}"
        if not self._may_wait:
            trial = self._experiment.trials[event.trial]
            return (Decide(trial=trial, action=Action.FAIL, by="driver", reason=reason),)
        if event.resources not in self._warned:
            self._warned.add(event.resources)
            name = self._experiment.name
            logger.warning("trial %s waits: %s; mqtune why %s %s says more", event.trial, reason, name, event.trial)
        return ()


class FailureWatch:
    """Finds failures that end the whole run, and warns of workers with other code or packages."""

    def __init__(self, experiment: Experiment, fail_fast: FailFast) -> None:
        #: The error that ends the run, or None.
        self.failure: MqtuneError | None = None
        #: Why all trials are to be stopped, or empty.
        self.stops = ""
        self._experiment = experiment
        self._fail_fast = fail_fast
        # Warnings that were logged already.
        self._logged_other_code: set[tuple[str, ...]] = set()
        self._logged_differences = {""}
        self._logged_slow_starts = {""}

    def hear(self, event: Event) -> tuple[()]:
        """Check an attempt that has started or ended."""
        if isinstance(event, AttemptStarted):
            self._check_code(event)
            self._check_start_time(event)
            self._check_packages(event)
        elif isinstance(event, AttemptEnded):
            self._check_end(event)
        return ()

    def _check_code(self, event: AttemptStarted) -> None:
        """Warn, once for each worker, if its files differ from the experiment's."""
        differs = event.environment.get("differs")
        if not isinstance(differs, list):
            return
        files = tuple(map(str, differs))
        if (event.worker, *files) not in self._logged_other_code:
            self._logged_other_code.add((event.worker, *files))
            logger.warning(
                "worker %s runs other code than this experiment's: %s there is not as it was here when the experiment "
                "began. Make them the same. With code='strict' such a worker runs no trial of the experiment",
                event.worker,
                ", ".join(files),
            )

    def _check_start_time(self, event: AttemptStarted) -> None:
        """Warn if each trial takes long to start, once for each reason."""
        why = event.environment.get("start")
        if isinstance(why, str) and why not in self._logged_slow_starts:
            self._logged_slow_starts.add(why)
            logger.warning("the program takes long to begin: %s. See docs/processes.md", why)

    def _check_packages(self, event: AttemptStarted) -> None:
        """Warn if a worker runs the driver's code with other packages, once for equal differences."""
        if event.environment.get("bundle") and (text := differences(event.environment)) not in self._logged_differences:
            self._logged_differences.add(text)
            logger.warning(
                "the code runs on worker %s with other versions than here: %s", event.worker, printable(text)
            )

    def _check_end(self, event: AttemptEnded) -> None:
        trial = self._experiment.trials[event.trial]
        attempt = trial.attempts[event.attempt - 1]
        if attempt.could_not_start and not self._could_ever_start():
            error = _NOT_STARTED.get(attempt.error_type, TrainableNotFound)
            self.failure = error(f"trial {trial.id} could not be started: {attempt.error}")
        elif attempt.error_type == TrainableLost.__name__:
            # No later attempt can start.
            name = self._experiment.name
            self.failure = TrainableLost(f"{attempt.error}. Run the same program again with name={name!r} to continue")
        elif attempt.error_type == TrainableNotFound.__name__ and not self._experiment.reports:
            # Only the spawned process has found that its trainable can't be imported.
            self.failure = TrainableNotFound(f"trial {trial.id} could not be started: {trial.reason}")
        elif (
            attempt.end is AttemptEnd.FAILED
            and not self._experiment.reports
            and (unsendable := _UNSENDABLE.search(attempt.error))
        ):
            # No trial has reported, so other trials would probably fail in the same way.
            self.failure = getattr(errors, unsendable[1])(f"trial {trial.id}: {unsendable[2]}")
        elif attempt.error_type == StoreMissing.__name__:
            # No trial can save a folder.
            message = attempt.error.rpartition(f"{attempt.error_type}: ")[2].strip()
            # The store is fixed when an experiment begins.
            self.failure = StoreMissing(
                f"trial {trial.id}: {message}. With a store, also give another name, or run=RunOptions(overwrite=True)"
            )
        if trial.status is TrialStatus.FAILED:
            self._check_failed_trial(trial)

    def _could_ever_start(self) -> bool:
        """Whether any attempt of the experiment has started.

        If none has, the cause is the trainable or the store, and not a single worker.
        """
        trials = self._experiment.trials.values()
        return bool(self._experiment.reports) or any(a.environment for trial in trials for a in trial.attempts)

    def _check_failed_trial(self, trial: Trial) -> None:
        self._warn_if_all_failed(trial)
        is_decided = trial.decision is not None and trial.decision.action is Action.FAIL
        experiment = self._experiment
        is_missed = experiment.metric and not experiment.metric_seen and not experiment.accept_no_report
        if trial.attempt.reports and is_missed and not is_decided:
            self.failure = MetricMissing(f"trial {trial.id}: {trial.reason}")
        elif self._fail_fast == "raise" and self.failure is None:
            self.failure = TrialFailed(f"trial {trial.id} failed: {trial.attempt.error or trial.reason}")
        elif self._fail_fast:
            self.stops = f"trial {trial.id} failed: {trial.reason}"

    def _warn_if_all_failed(self, trial: Trial) -> None:
        """Log how to end the run if the first ten trials have all failed."""
        counts = self._experiment.counts
        ended = sum(count for status, count in counts.items() if status.is_terminal)
        if counts[TrialStatus.FAILED] == ended == _ALL_FAILED:
            logger.warning(
                "all %d trials that have ended have failed, the last one with %s. The run continues with other trials; "
                "Ctrl-C ends it. With failures=mqtune.Failures(fail_fast=True), or "
                "stop=mqtune.schedulers.stopping.TrialsFailed(%d), a run ends by itself",
                ended,
                printable(trial.reason),
                ended,
            )


class CallbackListener:
    """Notifies callbacks of events. They get the trial as it is after the event."""

    def __init__(self, experiment: Experiment, callbacks: CallbackDispatcher) -> None:
        self._experiment = experiment
        self._callbacks = callbacks

    def hear(self, event: Event) -> tuple[()]:
        """Notify callbacks of an event."""
        match event:
            case TrialStaged():
                self._tell("on_queue", event.trial)
                if event.outside:
                    self._tell("on_trial_start", event.trial)
                trial = self._experiment.trials[event.trial]
                if len(trial.attempts) > 1 and trial.history[-2].status is TrialStatus.PAUSED:
                    self._tell("on_trial_resume", event.trial)
            case AttemptStarted(task=0):
                self._tell("on_trial_start", event.trial)
            case DecisionTaken():
                if (decision := self._experiment.trials[event.trial].decision) is not None:
                    self._tell("on_decision", event.trial, decision)
            case CheckpointSaved():
                self._tell("on_checkpoint", event.trial, CheckpointId(event.checkpoint))
            case AttemptEnded():
                self._tell(
                    "on_attempt_end", event.trial, self._experiment.trials[event.trial].attempts[event.attempt - 1]
                )
                self._notify_of_rest(event.trial)
            case TrialClosed():
                self._notify_of_rest(event.trial)
            case _:
                pass
        return ()

    def _notify_of_rest(self, trial: TrialId) -> None:
        """Notify callbacks if a trial has ended or is paused."""
        status = self._experiment.trials[trial].status
        if status.is_terminal:
            self._tell("on_trial_end", trial)
        elif status is TrialStatus.PAUSED:
            self._tell("on_trial_pause", trial)

    def _tell(self, method: str, trial: TrialId, *more: object) -> None:
        if self._callbacks.hears(method):
            self._callbacks.tell(method, self._experiment.trials[trial], *more)
