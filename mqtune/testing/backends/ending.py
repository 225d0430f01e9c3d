"""Tests of early ends: by the scheduler, a user, a limit or the first failure."""

from __future__ import annotations

from typing import Final

import pytest

from mqtune.core.errors import TrialFailed
from mqtune.core.trial import CONTINUE, Action, AttemptEnd, Decision, Report, Trial, TrialStatus
from mqtune.driver.options import Failures, Process, RunOptions
from mqtune.schedulers.stopping.experiment_rules import TimeCount, TimeLimit
from mqtune.testing.backends.world import Rule, Tune, TunerTests, await_reports, drive, reports_of
from mqtune.testing.play import ENDLESS, played

_SHORT_S: Final = 1.0
#: Calls that end a trial, and the resulting status.
_ENDING_CALLS: Final = [
    ("stop", TrialStatus.EARLY_STOPPED),
    ("complete", TrialStatus.COMPLETED),
    ("fail", TrialStatus.FAILED),
    ("abandon", TrialStatus.ABANDONED),
]


def at_report(number: int, action: Action) -> Rule:
    """Return a scheduler that decides *action* at the *number*-th report of each attempt."""

    def decide(_: Trial, report: Report) -> Decision:
        return Decision(action, f"has reported {number} times") if report.sequence == number else CONTINUE

    return Rule(decide)


class EndingContract(TunerTests):
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

    @pytest.mark.parametrize(("call", "status"), _ENDING_CALLS)
    def test_a_user_ends_a_running_trial_and_its_slot_is_used_again(
        self, tune: Tune, call: str, status: TrialStatus
    ) -> None:
        tuner = tune(played(ENDLESS), played(2), run=RunOptions(max_concurrent=1))
        await_reports(tuner, 1)

        getattr(tuner.trial("0001"), call)("for a reason")
        drive(tuner, lambda: tuner.is_finished)

        first, second = tuner.get_trials()
        assert (first.status, first.reason, first.history[-1].by) == (status, "for a reason", "user")
        assert first.attempt.stop is not None
        assert first.attempt.stop[:2] == ("user", "for a reason")
        assert second.status is TrialStatus.COMPLETED

    @pytest.mark.parametrize(("call", "status"), _ENDING_CALLS)
    def test_a_queued_trial_ends_at_once_and_never_runs(self, tune: Tune, call: str, status: TrialStatus) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS))
        drive(tuner, lambda: len(tuner.running_trials) == 2)
        queued = tuner.add(played(3))

        getattr(tuner.trial(queued), call)("not needed")

        assert queued.status is status
        tuner.stop_all()
        drive(tuner, lambda: tuner.is_finished)
        assert (queued.reports, queued.attempt.started_at) == (0, None)

    def test_stopping_all_trials_starts_no_other(self, tune: Tune) -> None:
        tuner = tune(*[played(ENDLESS) for _ in range(6)])
        drive(tuner, lambda: len(tuner.running_trials) == 2)
        tuner.trial(tuner.running_trials[0]).pause()
        drive(tuner, lambda: tuner.get_trials(TrialStatus.PAUSED) and len(tuner.running_trials) == 2)
        queued = tuner.add(played(3))

        tuner.stop_all("enough")
        drive(tuner, lambda: tuner.is_finished)

        assert {trial.status for trial in tuner.get_trials()} == {TrialStatus.EARLY_STOPPED}
        assert {trial.reason for trial in tuner.get_trials()} == {"enough"}
        assert queued.reports == 0
        assert not tuner.busy_trials

    def test_an_attempt_that_exceeds_its_timeout_fails(self, tune: Tune) -> None:
        tuner = tune(played(2), process=Process(timeout_s=600), failures=Failures(max_failures=2))
        trial = tuner.add(played(ENDLESS), timeout_s=_SHORT_S)
        drive(tuner, lambda: tuner.is_finished)

        assert (trial.status, trial.attempt.end) == (TrialStatus.FAILED, AttemptEnd.FAILED)
        assert (trial.attempt.error_type, len(trial.attempts)) == ("AttemptTimeout", 1)
        assert "timeout_s" in trial.reason
        assert f"{_SHORT_S:g} s" in trial.reason
        assert [other.status for other in tuner.get_trials() if other is not trial] == [TrialStatus.COMPLETED]

    @pytest.mark.parametrize("count", ["driver_time", "trial_time"])
    def test_an_expired_time_limit_stops_all_trials(self, tune: Tune, count: TimeCount) -> None:
        tuner = tune(*[played(ENDLESS) for _ in range(4)], stop=TimeLimit(_SHORT_S, count))

        drive(tuner, lambda: tuner.is_finished)

        assert {trial.status for trial in tuner.get_trials()} == {TrialStatus.EARLY_STOPPED}
        assert all(f"{_SHORT_S:g} s" in trial.reason and "limit" in trial.reason for trial in tuner.get_trials())

    def test_raising_the_first_failure_requeues_the_other_trials(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(3, fails_after=1), failures=Failures(fail_fast="raise"))

        with pytest.raises(TrialFailed, match=r"trial 0002 failed: (?s:.*)failed as planned after step 1"):
            tuner.run()

        other = tuner.get_trials()[0]
        assert other.attempt.end is AttemptEnd.HANDED_BACK
        assert other.status is TrialStatus.QUEUED

    def test_reports_after_a_decision_are_kept_and_hidden(self, tune: Tune) -> None:
        # With only one trial, there may be no late report: the decision may come before its process runs again.
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

    def test_in_lockstep_no_report_follows_a_decision(self, tune: Tune) -> None:
        tuner = tune(
            played(3000, every_s=0), scheduler=at_report(3, Action.STOP), saves=False, process=Process(sync="lockstep")
        )
        drive(tuner, lambda: tuner.is_finished)

        (trial,) = tuner.get_trials()
        assert trial.status is TrialStatus.EARLY_STOPPED
        assert (trial.reports, trial.late_reports) == (3, 0)
        assert len(list(tuner.results().reports(trial.id))) == 3
