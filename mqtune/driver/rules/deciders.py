"""Calls the deciders of an experiment: its scheduler, searcher and stop rule."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn

from mqtune.core.clock import Clock
from mqtune.core.codec import encode_value
from mqtune.core.errors import ConfigurationError, MetricMissing, MqtuneError, UserCodeFailed
from mqtune.core.events import AttemptEnded, DecisionTaken, Event, TrialClosed, TrialStaged
from mqtune.core.experiment import Experiment
from mqtune.core.trial import CONTINUE, Action, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.driver.rules.screening import Screening
from mqtune.driver.setup.settings import Settings
from mqtune.driver.writing.actions import Decide
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.stopping.rule import StopRule
from mqtune.search.base import WAIT, Searcher, Suggestion, fingerprint

logger = logging.getLogger(__name__)


class Verdict(NamedTuple):
    """The decision on a trial after a report."""

    decision: Decision
    #: "scheduler", "stop rule" or "driver".
    by: str


#: The verdict that lets a trial continue.
GO_ON: Final = Verdict(CONTINUE, "scheduler")


class Deciders:
    """Shows reports and events to scheduler, stop rule and searcher, and returns decisions.

    The order of calls is always the same, so a replay brings deterministic deciders to the same state. Deciders may be
    code of users. The first error of one ends the run, and nothing is decided any more.
    """

    def __init__(self, experiment: Experiment, searcher: Searcher, settings: Settings, clock: Clock) -> None:
        self.scheduler, self.rule = scheduler, rule = settings.scheduler, settings.stop
        self.searcher = searcher
        #: Whether the stop rule's answers count. In a replay they don't if an earlier driver had another rule.
        self.rule_decides = True
        #: Whether a decider has raised an error.
        self.is_broken = False
        self._failure: MqtuneError | None = None
        #: The trial for which ``suggest`` has returned a config, until the trial is staged.
        self._suggested_for: TrialId | None = None
        self._experiment = experiment
        self._screening = Screening(experiment, scheduler, rule, settings.failures)
        self._clock = clock
        # Looked up once: a flood of reports is the driver's hot path.
        self._decide = scheduler.on_report
        self._on_searcher_report = searcher.on_report if type(searcher).on_report is not Searcher.on_report else None
        self._decides_alone = rule is None and self._on_searcher_report is None

    @property
    def failure(self) -> MqtuneError | None:
        """The error that ends the run, or None: a decider's error, or a metric that reports lack."""
        return self._failure or self._screening.missing

    def go_live(self) -> None:
        """End the replay: log warnings from now on, and forget failures that the replay has found."""
        self._failure = self._screening.missing = None
        self._screening.is_live = self.rule_decides = True

    # Reports.

    def on_report(self, trial: Trial, report: Report) -> Verdict:
        """Show a report to scheduler, stop rule and searcher, and return the verdict.

        The stop rule overrules the scheduler. The searcher only learns.

        Raises:
            UserCodeFailed: one of them has raised an error.
        """
        verdict, decision, asked = GO_ON, CONTINUE, "scheduler"
        try:
            screened = self._screening.screen(trial, report)
            if screened is None:
                decision = self._decide(trial, report)
                # The usual case, and the hot path of a flood.
                if decision is CONTINUE and self._decides_alone:
                    return GO_ON
            elif screened.has_time and not screened.fails:
                decision = self._decide(trial, screened.report)
            if decision is not CONTINUE and self._check_decision(decision).action is not Action.CONTINUE:
                verdict = Verdict(decision, "scheduler")
            if self.rule is not None:
                asked = "rule"
                if (reason := self.rule.stops_trial(trial, report)) and self.rule_decides:
                    action = Action.STOP if self.rule.gives_up else Action.COMPLETE
                    verdict = Verdict(Decision(action, _reason_text(self.rule, reason)), "stop rule")
            if self._on_searcher_report is not None:
                asked = "searcher"
                self._on_searcher_report(trial, report if screened is None else screened.report)
        except Exception as error:  # noqa: BLE001 - it is raised again
            method = "stops_trial" if asked == "rule" else "on_report"
            place = f"report {report.sequence} of trial {report.trial}, attempt {report.attempt}"
            self._fail(getattr(self, asked), method, place, error)
        if screened is not None and screened.fails:
            return Verdict(Decision(Action.FAIL, screened.fails), "driver")
        return verdict

    def _check_decision(self, decision: object) -> Decision:
        """Return the scheduler's decision if it is valid.

        Raises:
            ConfigurationError: it is not a decision that a scheduler may make.
        """
        who = f"{type(self.scheduler).__name__}.on_report()"
        if not isinstance(decision, Decision) or not isinstance(decision.action, Action):
            raise ConfigurationError(
                f"{who} returned {decision!r:.80}; it may return "
                f"mqtune.schedulers.Decision(mqtune.schedulers.Action.CONTINUE), or STOP, PAUSE or "
                "COMPLETE, and a reason"
            )
        if decision.action in (Action.ABANDON, Action.FAIL):
            raise ConfigurationError(
                f"{who} returned the action {decision.action.value}, which is for users only; return STOP instead"
            )
        if not isinstance(decision.reason, str):
            raise ConfigurationError(f"{who} returned {decision!r:.80}, whose reason is not text")
        if decision.source is not None and decision.source not in self._experiment.trials:
            raise ConfigurationError(
                f"{who} returned {decision!r:.80}; its source {decision.source!r} is not a trial of the experiment"
            )
        return decision

    @property
    def are_late(self) -> bool:
        """Whether the scheduler works on decisions in its background thread."""
        background = self.scheduler.background
        return background is not None and background.is_busy

    def late(self) -> Iterator[Decide]:
        """Yield the decisions that the scheduler has made in the background since the last call.

        Decisions on trials that have ended, or whose end is decided, are left out.

        Raises:
            UserCodeFailed: the scheduler has raised an error.
        """
        background = self.scheduler.background
        if background is None:
            return
        with self.asking(self.scheduler, "on_report", "in the background"):
            decisions = {id_: self._check_decision(decision) for id_, decision in background.take().items()}
        for id_, (action, reason, _) in decisions.items():
            trial = self._experiment.trials[id_]
            if action is not Action.CONTINUE and not trial.status.is_terminal and trial.decision is None:
                yield Decide(trial=trial, action=action, by="scheduler", reason=reason)

    # Other events.

    def hear(self, event: Event) -> tuple[()]:
        """Notify scheduler, searcher and stop rule of an event that concerns them.

        Raises:
            UserCodeFailed: one of them has raised an error. The next driver repeats the notification.
        """
        match event:
            case TrialStaged():
                self._tell_queued(event)
            case DecisionTaken():
                trial = self._experiment.trials[event.trial]
                if trial.is_abandoned:
                    self._tell_abandoned(trial)
            case AttemptEnded() | TrialClosed():
                trial = self._experiment.trials[event.trial]
                if trial.status.is_terminal:
                    self._tell_end(trial)
                elif trial.status is TrialStatus.PAUSED:
                    self._tell(self.scheduler, "on_trial_pause", trial)
                    self._tell(self.searcher, "on_trial_pause", trial)
                else:
                    self._tell(self.searcher, "on_attempt_end", trial)
            case _:
                pass
        return ()

    def _tell_queued(self, event: TrialStaged) -> None:
        trial = self._experiment.trials[event.trial]
        self._tell(self.scheduler, "on_queue", trial)
        if event.attempt == 1 and event.trial == self._suggested_for:
            self._suggested_for = None
        elif event.attempt == 1:
            self._take_over(trial, was_suggested=event.suggested)
        self._tell(self.searcher, "on_queue", trial)

    def _take_over(self, trial: Trial, *, was_suggested: bool) -> None:
        """Notify the searcher of a new trial whose config it has not suggested in this process."""
        with self.asking(self.searcher, "replay" if was_suggested else "adopt", f"trial {trial.id}"):
            if not was_suggested:
                self.searcher.adopt(trial.id, trial.config)
                return
            suggested = self.searcher.replay(trial.id, trial.config)
            # Compare fingerprints, because NaN is not equal to itself.
            if fingerprint(suggested) != fingerprint(trial.config):
                logger.warning(
                    "trial %s: the searcher now suggests %r, but the journal has %r; the journal's config is used",
                    trial.id,
                    suggested,
                    trial.config,
                )

    def _tell_abandoned(self, trial: Trial) -> None:
        """Notify all deciders that a trial is abandoned."""
        for decider in (self.scheduler, self.searcher, self.rule):
            if decider is not None:
                self._tell(decider, "on_abandon", trial)

    def _tell_end(self, trial: Trial) -> None:
        # After a decision to abandon the trial, the deciders have been notified already.
        was_decided = trial.decision is not None and trial.decision.action is Action.ABANDON
        if trial.status is TrialStatus.ABANDONED and not was_decided:
            self._tell_abandoned(trial)
        self._screening.forget(trial)
        self._tell(self.scheduler, "on_trial_end", trial)
        self._tell(self.searcher, "on_trial_end", trial)
        if self.rule is not None:
            with self.asking(self.rule, "on_trial_end", f"trial {trial.id}"):
                try:
                    self.rule.on_trial_end(trial)
                except MetricMissing as error:
                    self._failure = error

    def suggest(self, trial: TrialId) -> Suggestion:
        """Return the searcher's config for the next trial, or None if it has no more.

        Return WAIT if the searcher needs time.

        Raises:
            UserCodeFailed: the searcher has raised an error.
            ConfigurationError: the searcher has returned something else, or a config that can't be sent to workers.
        """
        who = f"{type(self.searcher).__name__}.suggest()"
        with self.asking(self.searcher, "suggest", f"trial {trial}"):
            config = self.searcher.suggest(trial)
            if config is WAIT or config is None:
                return config
            if not isinstance(config, dict):
                raise ConfigurationError(
                    f"{who} returned {config!r:.80} for trial {trial}; return a dict, WAIT or None"
                )
            try:
                encode_value(config)
            except TypeError as error:
                raise ConfigurationError(
                    f"{who} returned a config for trial {trial} that can't be sent to a worker: {error}"
                ) from None
        self._suggested_for = trial
        return config

    def stops_experiment(self) -> str:
        """Return the stop rule's reason to end the experiment now, or an empty text."""
        if self.rule is None:
            return ""
        with self.asking(self.rule, "stops_experiment", "while the experiment runs"):
            reason = self.rule.stops_experiment(self._experiment, self._clock.time())
        return reason and _reason_text(self.rule, reason)

    def due_s(self) -> float:
        """Return the seconds until the stop rule must be asked again, even without a new event."""
        if self.rule is None:
            return float("inf")
        now = self._clock.time()
        with self.asking(self.rule, "due", "while the experiment runs"):
            return self.rule.due(self._experiment, now) - now

    @contextlib.contextmanager
    def asking(self, decider: object, method: str, place: str) -> Iterator[None]:
        """Turn an error inside the block into the error that ends the run.

        The error names the decider, its *method* and the *place*, such as a trial.

        Raises:
            UserCodeFailed: the block has raised an error. An ``MqtuneError`` is raised unchanged.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - it is raised again
            self._fail(decider, method, place, error)

    def _tell(self, decider: Scheduler | Searcher | StopRule, method: str, trial: Trial) -> None:
        # ``asking`` would take longer than most of these calls.
        try:
            getattr(decider, method)(trial)
        except Exception as error:  # noqa: BLE001 - it is raised again
            self._fail(decider, method, f"trial {trial.id}, attempt {trial.attempt.number}", error)

    def _fail(self, decider: object, method: str, place: str, error: Exception) -> NoReturn:
        """Record an error of a decider, and raise the error that ends the run."""
        self.is_broken = True
        if isinstance(error, MqtuneError):
            self._failure = error
            raise error
        self._failure = UserCodeFailed.by(decider, method, place, error)
        raise self._failure from error


def _reason_text(rule: StopRule, reason: object) -> str:
    """Return a rule's reason, or a default text if the rule has only returned True."""
    return reason if isinstance(reason, str) else f"{type(rule).__name__} says so"
