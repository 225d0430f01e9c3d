"""The driver's listeners get each event, in one order, and return actions."""

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
from mqtune.core.seats import seat_name
from mqtune.core.text import printable
from mqtune.core.trial import Action, AttemptEnd, CheckpointId, Trial, TrialId, TrialStatus
from mqtune.driver.setup.options import FailFast
from mqtune.driver.setup.requirements import differences
from mqtune.driver.writing.actions import Decide, DriverAction
from mqtune.results.callbacks import CallbackDispatcher

logger = logging.getLogger(__name__)

#: The error that ends the run when no attempt could be started because of it; any other is the trainable's.
_NOT_STARTED: Final[dict[str, type[MqtuneError]]] = {
    kind.__name__: kind for kind in (CodeDiffers, CodeRefused, StoreUnavailable)
}

#: An unsendable report in the error of an attempt: a traceback of the trial's process, or the end of its script's
#: output.
_UNSENDABLE: Final = re.compile(r"^mqtune\.core\.errors\.(ReportInvalid|ReportTooLarge): (.+)", re.MULTILINE)

#: The number of failures without another end after which a warning tells how to end the run.
_ALL_FAILED: Final = 10


class Listener(Protocol):
    """Hears of events, and returns the actions that it wants carried out because of them."""

    def hear(self, event: Event) -> Sequence[DriverAction]:
        """Handle an event that the fold has applied."""


class BackendListener:
    """Tells the backend which attempts have a slot."""

    def __init__(self, backend: BackendSession) -> None:
        self._backend = backend

    def hear(self, event: Event) -> tuple[()]:
        """Tell it of staged attempts with resources of their own, of started seats, and of ends."""
        if isinstance(event, TrialStaged):
            if event.resources is not None and isinstance(self._backend, TakesResources):
                self._backend.asks(event.trial, event.attempt, event.resources)
        elif isinstance(event, AttemptStarted):
            self._backend.started(seat_name(event.trial, event.seat), event.attempt, event.queue)
        elif isinstance(event, AttemptEnded):
            self._backend.ended(event.trial, event.attempt)
        return ()


class OfferWatch:
    """Looks whether any slot offers what an attempt asks for by its config.

    Else the trial waits, with a warning, or fails.

    Args:
        backend: has the slots.
        experiment: the fold.
        may_wait: whether the trial may wait for a slot that nobody offers.
    """

    def __init__(self, backend: BackendSession, experiment: Experiment, *, may_wait: bool) -> None:
        self._backend = backend
        self._experiment = experiment
        self._may_wait = may_wait
        #: The resources without an offer of which a warning told.
        self._told: set[Resources] = set()

    def hear(self, event: Event) -> Sequence[DriverAction]:
        """Look at an attempt that is staged."""
        if not isinstance(event, TrialStaged) or event.resources is None or self._backend.offered(event.resources):
            return ()
        reason = f"{event.resources.not_offered}; there are {self._backend.resource_string()}"
        if not self._may_wait:
            trial = self._experiment.trials[event.trial]
            return (Decide(trial=trial, action=Action.FAIL, by="driver", reason=reason),)
        if event.resources not in self._told:
            self._told.add(event.resources)
            name = self._experiment.name
            logger.warning("trial %s waits: %s; mqtune why %s %s says more", event.trial, reason, name, event.trial)
        return ()


class FailureWatch:
    """Notices what ends an experiment early: trials that can't be started, or that fail where none may."""

    def __init__(self, experiment: Experiment, fail_fast: FailFast) -> None:
        #: The error that ends the run, or None.
        self.failure: MqtuneError | None = None
        #: Why all trials are to be stopped, or empty.
        self.stops = ""
        self._experiment = experiment
        self._fail_fast = fail_fast
        #: Where code was not the experiment's, and which, as far as that was logged.
        self._said_other_code: set[tuple[str, ...]] = set()
        #: In what workers differ from this machine, as far as that was logged.
        self._said_differences = {""}
        self._said_begins = {""}

    def hear(self, event: Event) -> tuple[()]:
        """Look at an attempt that has started, or ended."""
        if isinstance(event, AttemptStarted):
            self._look_at_code(event)
            self._look_at_begin(event)
            self._look_at_requirements(event)
        elif isinstance(event, AttemptEnded):
            self._look_at_end(event)
        return ()

    def _look_at_code(self, event: AttemptStarted) -> None:
        """Warn, once for each worker, that its code is not the experiment's."""
        differs = event.environment.get("differs")
        if not isinstance(differs, list):
            return
        files = tuple(map(str, differs))
        if (event.worker, *files) not in self._said_other_code:
            self._said_other_code.add((event.worker, *files))
            logger.warning(
                "worker %s runs other code than this experiment's: %s there is not as it was here when the experiment "
                "began. Make them the same; code='strict' would keep such a worker from running its trials",
                event.worker,
                ", ".join(files),
            )

    def _look_at_begin(self, event: AttemptStarted) -> None:
        """Warn, once for each reason, that each trial takes long to begin."""
        why = event.environment.get("start")
        if isinstance(why, str) and why not in self._said_begins:
            self._said_begins.add(why)
            logger.warning("the program takes long to begin: %s. See docs/processes.md", why)

    def _look_at_requirements(self, event: AttemptStarted) -> None:
        """Warn, once for equal workers, that they run the driver's code with other packages."""
        if event.environment.get("bundle") and (said := differences(event.environment)) not in self._said_differences:
            self._said_differences.add(said)
            logger.warning(
                "the code runs on worker %s with other versions than here: %s", event.worker, printable(said)
            )

    def _look_at_end(self, event: AttemptEnded) -> None:
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
            # A process that is spawned finds out by itself that its trainable can't be imported.
            self.failure = TrainableNotFound(f"trial {trial.id} could not be started: {trial.reason}")
        elif (
            attempt.end is AttemptEnd.FAILED
            and not self._experiment.reports
            and (unsendable := _UNSENDABLE.search(attempt.error))
        ):
            # No trial can report.
            self.failure = getattr(errors, unsendable[1])(f"trial {trial.id}: {unsendable[2]}")
        elif attempt.error_type == StoreMissing.__name__:
            # No trial can save its folder.
            said = attempt.error.rpartition(f"{attempt.error_type}: ")[2].strip()
            self.failure = StoreMissing(f"trial {trial.id}: {said}")
        if trial.status is TrialStatus.FAILED:
            self._look_at_failed(trial)

    def _could_ever_start(self) -> bool:
        """Whether any worker had all that an attempt needs.

        Else it is the trainable, or the store, and not a worker.
        """
        trials = self._experiment.trials.values()
        return bool(self._experiment.reports) or any(a.environment for trial in trials for a in trial.attempts)

    def _look_at_failed(self, trial: Trial) -> None:
        self._look_at_all_failed(trial)
        is_decided = trial.decision is not None and trial.decision.action is Action.FAIL
        experiment = self._experiment
        is_missed = experiment.metric and not experiment.metric_seen and not experiment.accept_no_report
        if trial.attempt.reports and is_missed and not is_decided:
            self.failure = MetricMissing(f"trial {trial.id}: {trial.reason}")
        elif self._fail_fast == "raise" and self.failure is None:
            self.failure = TrialFailed(f"trial {trial.id} failed: {trial.attempt.error or trial.reason}")
        elif self._fail_fast:
            self.stops = f"trial {trial.id} failed: {trial.reason}"

    def _look_at_all_failed(self, trial: Trial) -> None:
        """Log how to end a run whose trials all fail."""
        counts = self._experiment.counts
        ended = sum(count for status, count in counts.items() if status.is_terminal)
        if counts[TrialStatus.FAILED] == ended == _ALL_FAILED:
            logger.warning(
                "all %d trials that have ended have failed, the last one with %s. The others are run all the same; "
                "Ctrl-C ends the run, and failures=mqtune.Failures(fail_fast=True), or "
                "stop=mqtune.schedulers.stopping.TrialsFailed(%d), does so by itself",
                ended,
                printable(trial.reason),
                ended,
            )


class CallbackListener:
    """Tells callbacks of events; a trial or an attempt, as the fold has it by then."""

    def __init__(self, experiment: Experiment, callbacks: CallbackDispatcher) -> None:
        self._experiment = experiment
        self._callbacks = callbacks

    def hear(self, event: Event) -> tuple[()]:
        """Tell callbacks of an event."""
        match event:
            case TrialStaged():
                self._tell("on_queue", event.trial)
                if event.outside:
                    self._tell("on_trial_start", event.trial)
                trial = self._experiment.trials[event.trial]
                if len(trial.attempts) > 1 and trial.history[-2].status is TrialStatus.PAUSED:
                    self._tell("on_trial_resume", event.trial)
            case AttemptStarted(seat=0):
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
                self._rests(event.trial)
            case TrialClosed():
                self._rests(event.trial)
            case _:
                pass
        return ()

    def _rests(self, trial: TrialId) -> None:
        """Tell that a trial has ended, or is paused."""
        status = self._experiment.trials[trial].status
        if status.is_terminal:
            self._tell("on_trial_end", trial)
        elif status is TrialStatus.PAUSED:
            self._tell("on_trial_pause", trial)

    def _tell(self, method: str, trial: TrialId, *more: object) -> None:
        if self._callbacks.hears(method):
            self._callbacks.tell(method, self._experiment.trials[trial], *more)
