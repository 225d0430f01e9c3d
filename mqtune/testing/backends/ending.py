"""Trials end before their time: a scheduler, a rule, a budget or a user has them stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest

from mqtune.core.errors import TrialFailed
from mqtune.core.trial import CONTINUE, Action, AttemptEnd, Decision, Report, Trial, TrialStatus
from mqtune.driver.settings import Failures, Process, Run
from mqtune.schedulers.stopping.experiment_rules import TargetReached, TimeLimit, TrialsCompleted
from mqtune.schedulers.stopping.rule import StopRule
from mqtune.search.domains import choice
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space
from mqtune.testing.backends.world import InWorld, Rule, Tune, drive, reports_of
from mqtune.testing.play import ENDLESS, SPACE, played

#: Runs out within a test.
_SOON_S = 0.3


def at_report(number: int, action: Action) -> Rule:
    """Return a scheduler that decides so at a report of each attempt."""

    def decide(_: Trial, report: Report) -> Decision:
        return Decision(action, f"has reported {number} times") if report.sequence == number else CONTINUE

    return Rule(decide)


class EndingContract(InWorld):
    """How trials end."""

    @pytest.mark.parametrize(
        ("action", "status", "end"),
        [
            (Action.STOP, TrialStatus.EARLY_STOPPED, AttemptEnd.STOPPED),
            (Action.COMPLETE, TrialStatus.COMPLETED, AttemptEnd.COMPLETED),
        ],
    )
    def test_the_scheduler_ends_a_trial_at_a_report(
        self, tune: Tune, action: Action, status: TrialStatus, end: AttemptEnd
    ) -> None:
        tuner = tune(played(ENDLESS), scheduler=at_report(3, action))
        drive(tuner, lambda: tuner.is_finished)

        (trial,) = tuner.get_trials()
        assert (trial.status, trial.attempt.end) == (status, end)
        assert reports_of(tuner, trial, 1) == [1, 2, 3]
        assert trial.attempt.stop is not None
        assert trial.attempt.stop[:2] == ("scheduler", "has reported 3 times")
        assert trial.attempt.stop.sequence == 3

    @pytest.mark.parametrize(
        ("call", "status"),
        [
            ("stop", TrialStatus.EARLY_STOPPED),
            ("complete", TrialStatus.COMPLETED),
            ("fail", TrialStatus.FAILED),
            ("abandon", TrialStatus.ABANDONED),
        ],
    )
    def test_a_user_ends_a_running_trial_and_its_slot_is_used_again(
        self, tune: Tune, call: str, status: TrialStatus
    ) -> None:
        tuner = tune(played(ENDLESS), played(2), run=Run(max_concurrent=1))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.reports)

        getattr(tuner.trial("0001"), call)("for a reason")
        drive(tuner, lambda: tuner.is_finished)

        first, second = tuner.get_trials()
        assert (first.status, first.reason, first.history[-1].by) == (status, "for a reason", "user")
        assert first.attempt.stop is not None
        assert first.attempt.stop[:2] == ("user", "for a reason")
        assert second.status is TrialStatus.COMPLETED

    @pytest.mark.parametrize(
        ("call", "status"),
        [
            ("stop", TrialStatus.EARLY_STOPPED),
            ("complete", TrialStatus.COMPLETED),
            ("fail", TrialStatus.FAILED),
            ("abandon", TrialStatus.ABANDONED),
        ],
    )
    def test_a_trial_that_waits_for_a_slot_ends_at_once_and_never_runs(
        self, tune: Tune, call: str, status: TrialStatus
    ) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS))
        drive(tuner, lambda: len(tuner.running_trials) == 2)
        waiting = tuner.add(played(3))

        getattr(tuner.trial(waiting), call)("not needed")

        assert waiting.status is status
        tuner.stop_all()
        drive(tuner, lambda: tuner.is_finished)
        assert (waiting.reports, waiting.attempt.started_at) == (0, None)

    def test_an_abandoned_config_is_not_proposed_again(self, tune: Tune) -> None:
        space = Space({**SPACE, **played(2, x=1), "x": choice([1.0, 2.0])})
        given_up = RandomSearcher(space, seed=0).suggest()
        assert given_up is not None
        tuner = tune(space=space, searcher=RandomSearcher(space, seed=0), max_trials=1, run=Run(max_concurrent=1))
        trial = tuner.add(given_up)

        tuner.trial(trial).abandon("it makes no sense")
        drive(tuner, lambda: tuner.is_finished)

        assert trial.status is TrialStatus.ABANDONED
        assert [other.config["x"] for other in tuner.get_trials()[1:]] == [3.0 - given_up["x"]]

    def test_all_trials_are_stopped_and_no_other_starts(self, tune: Tune) -> None:
        tuner = tune(*[played(ENDLESS) for _ in range(6)])
        drive(tuner, lambda: len(tuner.running_trials) == 2)
        tuner.trial(tuner.running_trials[0]).pause()
        drive(tuner, lambda: tuner.get_trials(TrialStatus.PAUSED) and len(tuner.running_trials) == 2)
        waiting = tuner.add(played(3))

        tuner.stop_all("enough")
        drive(tuner, lambda: tuner.is_finished)

        assert {trial.status for trial in tuner.get_trials()} == {TrialStatus.EARLY_STOPPED}
        assert {trial.reason for trial in tuner.get_trials()} == {"enough"}
        assert waiting.reports == 0
        assert not tuner.busy_trials

    def test_an_attempt_that_outlives_its_time_has_failed(self, tune: Tune) -> None:
        tuner = tune(played(2), process=Process(ttl_s=600), failures=Failures(max_failures=2))
        trial = tuner.add(played(ENDLESS), ttl_s=_SOON_S)
        drive(tuner, lambda: tuner.is_finished)

        assert (trial.status, trial.attempt.end) == (TrialStatus.FAILED, AttemptEnd.FAILED)
        assert (trial.attempt.error_type, len(trial.attempts)) == ("TimeToLive", 1)
        assert "ttl_s" in trial.reason
        assert "0.3 s" in trial.reason
        assert [other.status for other in tuner.get_trials() if other is not trial] == [TrialStatus.COMPLETED]

    @pytest.mark.parametrize("of", ["driver", "trials"])
    def test_time_that_is_used_up_stops_everything(self, tune: Tune, of: Literal["driver", "trials"]) -> None:
        tuner = tune(*[played(ENDLESS) for _ in range(4)], stop=TimeLimit(_SOON_S, of))

        drive(tuner, lambda: tuner.is_finished)

        assert {trial.status for trial in tuner.get_trials()} == {TrialStatus.EARLY_STOPPED}
        assert all("0.3 s" in trial.reason and "limit" in trial.reason for trial in tuner.get_trials())

    def test_the_first_failure_stops_all_if_that_is_asked_for(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(3, fails_after=1), played(3), played(3), failures=Failures(fail_fast=True))

        results = tuner.run()

        failed = tuner.get_trials(TrialStatus.FAILED)
        assert [trial.id for trial in failed] == ["0002"]
        assert tuner.get_trials()[0].status is TrialStatus.EARLY_STOPPED
        assert "trial 0002 failed: RuntimeError: it was to fail behind step 1" in tuner.get_trials()[0].reason
        assert not tuner.busy_trials
        assert results.outcome == "finished"

    def test_the_first_failure_is_raised_if_that_is_asked_for(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(3, fails_after=1), failures=Failures(fail_fast="raise"))

        with pytest.raises(TrialFailed, match=r"trial 0002 failed: (?s:.*)it was to fail behind step 1"):
            tuner.run()

        other = tuner.get_trials()[0]
        assert other.attempt.end is AttemptEnd.HANDED_BACK
        assert other.status is TrialStatus.STAGED

    @pytest.mark.parametrize(
        ("stop", "reason"),
        [
            ({"step": 3}, "step"),
            (lambda _, report: report.metrics["step"] >= 3, ""),
        ],
        ids=["bound", "function"],
    )
    def test_a_rule_ends_each_trial(self, tune: Tune, stop: Any, reason: str) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS, x=2), stop=stop)
        drive(tuner, lambda: tuner.is_finished)

        for trial in tuner.get_trials():
            assert trial.status is TrialStatus.COMPLETED
            assert reports_of(tuner, trial, 1) == [1, 2, 3]
            assert trial.attempt.stop is not None
            assert trial.attempt.stop.by == "stop rule"
            assert reason in trial.reason

    @pytest.mark.parametrize(
        ("stop", "reason"),
        [
            (lambda: TargetReached(0.21), "trial 0002 has reached the target"),
            (lambda: TrialsCompleted(1), "1 trials have completed"),
            (lambda: TimeLimit(_SOON_S), "the time limit of 0.3 s is over"),
        ],
        ids=["target", "completed", "time"],
    )
    def test_a_rule_ends_the_experiment(self, tune: Tune, stop: Callable[[], StopRule], reason: str) -> None:
        rule = stop()
        is_count = isinstance(rule, TrialsCompleted)
        first = played(2 if is_count else ENDLESS, x=9)
        tuner = tune(first, played(ENDLESS, x=1), *[played(ENDLESS, x=9)] * 2, stop=rule)
        drive(tuner, lambda: tuner.is_finished)

        stopped = tuner.get_trials(TrialStatus.EARLY_STOPPED)
        assert stopped
        assert all(reason in trial.reason and trial.history[-1].by == "stop rule" for trial in stopped)
        assert len(stopped) + is_count == len(tuner.get_trials())

    def test_what_comes_after_a_decision_is_kept_and_not_shown(self, tune: Tune) -> None:
        # One of them may wait for a processor just then, and report nothing more.
        tuner = tune(*[played(3000, every_s=0)] * 5, scheduler=at_report(3, Action.STOP), saves=False)
        shown = [(report.trial, report.sequence) for report in tuner.new_reports()]
        while not tuner.is_finished:
            tuner.step(0.1)
            shown += [(report.trial, report.sequence) for report in tuner.new_reports()]

        trials = tuner.get_trials()
        assert sum(trial.late_reports for trial in trials) > 0
        for trial in trials:
            kept = list(tuner.results().reports(trial.id))
            assert trial.status is TrialStatus.EARLY_STOPPED
            assert [sequence for id_, sequence in shown if id_ == trial.id] == [1, 2, 3]
            assert [report.late for report in kept] == [False] * 3 + [True] * trial.late_reports
            assert [report.sequence for report in kept] == list(range(1, 4 + trial.late_reports))

    def test_in_lockstep_nothing_comes_after_a_decision(self, tune: Tune) -> None:
        tuner = tune(
            played(3000, every_s=0), scheduler=at_report(3, Action.STOP), saves=False, process=Process(sync="lockstep")
        )
        drive(tuner, lambda: tuner.is_finished)

        (trial,) = tuner.get_trials()
        assert trial.status is TrialStatus.EARLY_STOPPED
        assert (trial.reports, trial.late_reports) == (3, 0)
        assert len(list(tuner.results().reports(trial.id))) == 3
