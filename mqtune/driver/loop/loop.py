"""The driver's loop: applies new events, carries out decisions, and keeps the slots busy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Final

from mqtune.core.errors import ConfigurationError, ExperimentFinished, InvalidTransition, MqtuneError
from mqtune.core.experiment import Experiment
from mqtune.core.trial import Report, TrialStatus
from mqtune.driver.loop.news import News
from mqtune.driver.loop.requests import Requests
from mqtune.driver.path.intake import Intake
from mqtune.driver.path.pace import LoopPace
from mqtune.driver.path.path import EventPath
from mqtune.driver.rules.checkpoints import CheckpointGC
from mqtune.driver.rules.deciders import GO_ON, Deciders, Verdict
from mqtune.driver.rules.listeners import FailureWatch
from mqtune.driver.rules.slots import SlotFiller
from mqtune.driver.rules.timers import DriverTimers
from mqtune.driver.writing.actions import AnswerRequest, Decide, Stage, plan_requeues, plan_stops

#: Longest wait for new entries after an error of a decider, in seconds.
_FOLD_ONLY_S: Final = 1.0


class Loop:
    """Runs the driver's rounds. Only one thread may call it.

    A round waits for new entries and puts them into the ``Intake``. Each event then takes the ``EventPath``. Listeners,
    slot filler, timers and services return actions, and the loop makes actions of the deciders' verdicts. The
    ``EventPath`` carries all actions out.

    Args:
        on_round: called at the end of each round.
        others: the parts of the driver.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        news: News,
        intake: Intake,
        path: EventPath,
        deciders: Deciders,
        failures: FailureWatch,
        slots: SlotFiller,
        requests: Requests,
        checkpoints: CheckpointGC,
        timers: DriverTimers,
        pace: LoopPace,
        on_round: Callable[[], object],
    ) -> None:
        self.experiment = experiment
        self.requests = requests
        self.carry_out = path.carry_out
        #: Why the experiment ends early, in words. Empty if it doesn't.
        self.over = ""
        self._news = news
        self._intake = intake
        self._path = path
        self._deciders = deciders
        self._failures = failures
        self._slots = slots
        self._checkpoints = checkpoints
        self._timers = timers
        self._pace = pace
        self._on_round = on_round
        #: Whether no further attempt is started.
        self._draining = False
        #: Whether a later driver is to run the trials again.
        self._hands_over = False
        #: The report that ``next_report`` has returned, and its verdict, which the next call carries out.
        self._in_hand: tuple[Report, Verdict] | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nothing runs, and no trial is left to start or to resume."""
        if self.experiment.live:
            return False
        if self._draining:
            # Trials that are evaluated outside continue without a driver.
            return self._hands_over or not self.experiment.outside
        if self._slots.has_more:
            return False
        if self._slots.is_open:
            return self.experiment.outcome == "finished"
        return not (self.experiment.counts[TrialStatus.PAUSED] or self.experiment.outside)

    @property
    def failure(self) -> MqtuneError | None:
        """The error that ends the run, or None."""
        return self._deciders.failure or self._failures.failure

    # One round of the loop.

    def step(self, block_s: float) -> None:
        """Run one round: fill free slots, wait for new entries, and process them.

        The wait is at most *block_s* seconds. If ``next_report`` has interrupted a round, only run the rest of that
        round.

        Raises:
            ExperimentFinished: the experiment had finished before.
            NothingResumes: only paused trials are left, and neither the scheduler nor a user resumes one.
            UserCodeFailed: scheduler, searcher or stop rule raised an error. From then on steps make no decisions: they
                only apply events, until all attempts have ended.
        """
        self._run_round(block_s, hands_out=False)

    def next_report(self, block_s: float) -> Report | None:
        """Run a round as far as the next report that counts, and return that report.

        Return None when the round has ended. Until the next call, actions are journaled as made on the returned report.

        Raises:
            as ``step``.
        """
        self._timers.keep_lock_if_due()
        return self._run_round(block_s, hands_out=True)

    def reports_ahead(self, count: int) -> list[Report]:
        """Return up to *count* of the reports that ``next_report`` will return next.

        After a decision on one of their trials, ``next_report`` skips that trial's reports.
        """
        return [] if self._in_hand is None else self._intake.peek(count)

    def _run_round(self, block_s: float, *, hands_out: bool) -> Report | None:
        """Run a round, or the rest of one. With *hands_out*, return as soon as there is a report."""
        in_hand, self._in_hand = self._in_hand, None
        if self._deciders.is_broken:
            self._fold_only(block_s)
            return None
        if in_hand is None:
            self._begin_round(block_s, hands_out=hands_out)
        else:
            report, verdict = in_hand
            # The caller may have decided on the report meanwhile.
            is_decided = self.experiment.trials[report.trial].decision is not None
            self._act_on(report, None if is_decided else verdict, at_once=hands_out)
        if (next_ := self._take_in(hands_out=hands_out)) is None:
            self._end_round()
        return next_

    def _begin_round(self, block_s: float, *, hands_out: bool) -> None:
        """Fill the slots. If the intake is empty, wait for new entries and put them in."""
        if self.is_finished and not self._draining and self.failure is None:
            raise ExperimentFinished(f"experiment {self.experiment.name!r} is finished; there is nothing left to step")
        self._path.say_begun()
        if hands_out:
            # Do this between reports: a drop while a report is handed out would be journaled as a reaction to it.
            self._path.carry_out_all(self._checkpoints.gathered())
        self._fill_slots()
        self._check_that_something_happens()
        if self._intake.is_done:
            has_requests = bool(self.requests.open())
            block_s = 0.0 if self.is_finished or has_requests else block_s
            is_stirred = hands_out or self._draining or has_requests
            if (entries := self._news.wait(self._pace.begin(block_s, is_stirred=is_stirred))) is not None:
                self._intake.put(chain(entries, self._news.more()))

    def _take_in(self, *, hands_out: bool = False) -> Report | None:
        """Process the entries of the intake, carrying out each verdict before the next report.

        With *hands_out*, stop at the first report that counts, and return it.
        """
        may_fold = not (hands_out or self._path.orders.in_lockstep)
        with self._news.naming_entry(self.experiment.name):
            while (item := self._intake.next(may_fold=may_fold)) is not None:
                if not isinstance(item, Report):
                    self._path.apply(item)
                    continue
                verdict = self._intake.judge(item)
                if hands_out and verdict is not None:
                    self._in_hand = item, verdict
                    return item
                self._act_on(item, verdict, at_once=hands_out)
        return None

    def _act_on(self, report: Report, verdict: Verdict | None, *, at_once: bool = False) -> None:
        """Carry out the verdict on a report. *verdict* is None if the report doesn't count.

        With *at_once*, also do work that could wait until the end of the round.
        """
        trial = self.experiment.trials[report.trial]
        if verdict is GO_ON:
            if self._path.orders.in_lockstep:
                self._path.orders.go_on(report)
                if at_once:
                    self._path.orders.give()
        elif verdict is not None:
            action, reason, source = verdict.decision
            if source is not None:
                self._checkpoints.hold_for_decision(trial, self.experiment.trials[source].checkpoint)
            # In a replay, before an earlier driver's last event: that driver has decided on this report, perhaps by
            # another rule or other code, and its decision counts.
            if not self._intake.has_past:
                self.carry_out(
                    Decide(trial=trial, action=action, by=verdict.by, reason=reason, sequence=report.sequence)
                )
        if report.checkpoint and not self._intake.is_replaying:
            self._path.take_checkpoint(report, at_once=at_once)

    def _end_round(self) -> None:
        """Do the work that is due, and the work that follows from the events of the round."""
        if not self._pace.is_steady:
            # Requests wait until here: after a time without a driver, reports and ends may follow a request.
            self.requests.carry_out()
            self._path.carry_out_all(self._deciders.late())
            self._path.carry_out_all(self._checkpoints.settled(self._pace.now_s))
            self._path.orders.give()
            self._path.carry_out_all(self._timers.run_due())
            self._timers.refresh_fleet_if_changed()
            self._end_if_over()
            self._fill_slots()
        self._path.tell_restored()
        self._on_round()

    def _fold_only(self, block_s: float) -> None:
        """Fold new events without deciding. The cursor stays, so the next driver decides."""
        self._timers.keep_lock_if_due()
        if self._intake.is_done:
            self._intake.put(self._news.wait(0.0 if self.is_finished else min(block_s, _FOLD_ONLY_S)) or ())
        with self._news.naming_entry(self.experiment.name):
            for item in self._intake.drain():
                if isinstance(item, Report):
                    self.experiment.apply_report(item)
                else:
                    self._path.apply(item)
        self._path.tell_restored()

    # Acting.

    def requeue_all(self, reason: str) -> None:
        """Start nothing more, and end all attempts, so that a later driver runs their trials again."""
        self._draining = self._hands_over = True
        self._pace.stir()
        self._path.carry_out_all(plan_requeues(self.experiment, reason))

    def stop_all(self, reason: str, *, by: str, spare_running: bool = False) -> None:
        """Start nothing more, and stop all trials; with *spare_running* not the running ones."""
        self._draining, self.over = True, reason
        self.requests.over = reason
        self._pace.stir()
        self._path.carry_out_all(plan_stops(self.experiment, by=by, reason=reason, spare_running=spare_running))

    def _fill_slots(self) -> None:
        """Stage attempts as long as the slot filler has some for the slots."""
        with self._path.publisher:
            while not self._draining and self._slots.may_stage() and self.failure is None:
                self._end_if_over()
                if self._draining or (action := self._slots.next()) is None:
                    return
                if isinstance(action, Stage) and action.key in self.experiment.keys:
                    # Another request has added a trial with this key before.
                    self.carry_out(AnswerRequest(action.request, is_done=True, trial=self.experiment.keys[action.key]))
                    self._path.release_checkpoint(action)
                    continue
                try:
                    self.carry_out(action)
                except (InvalidTransition, ConfigurationError) as error:
                    if not isinstance(action, Stage) or not action.request:
                        raise
                    self.requests.refuse(action.request, error)
                    self._path.release_checkpoint(action)

    def _end_if_over(self) -> None:
        """Stop all trials if a stop rule, a failure or a request ends the experiment."""
        if (ending := self.requests.ending) is not None:
            # Repeat this: a trial that was left running may have paused since, and a later request may have ``now``.
            self.stop_all(ending.reason, by="user", spare_running=not ending.now)
        if self._draining:
            return
        reason, by = self._failures.stops, "driver"
        if not reason:
            reason, by = self._deciders.stops_experiment(), "stop rule"
        if reason:
            self.stop_all(reason, by=by)

    def _check_that_something_happens(self) -> None:
        """Raise NothingResumes if no event can ever come: nothing runs or starts in free slots."""
        experiment = self.experiment
        can_happen = (
            experiment.live
            or experiment.outside
            or self._draining
            or self.failure is not None
            or not self._slots.has_slots()
        )
        is_expected = self._slots.is_open or self._slots.is_expecting or self.requests.has_paused
        if not (can_happen or is_expected or self.is_finished):
            raise self._slots.nothing_resumes()
