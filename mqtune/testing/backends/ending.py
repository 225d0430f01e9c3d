"""Tests of early ends: by the scheduler, a user, a limit or the first failure."""

from __future__ import annotations

from typing import Final

import pytest

from mqtune.core.errors import TrialFailed
from mqtune.core.trial import CONTINUE, Action, AttemptEnd, Decision, Report, Trial, TrialStatus
from mqtune.driver.setup.options import Failures, Process, RunOptions
from mqtune.schedulers.stopping.experiment_rules import TimeCount, TimeLimit
from mqtune.testing.backends.world import Rule, Tune, TunerTests, await_reports, drive, reports_of
from mqtune.testing.play import ENDLESS, played

_SHORT_S: Final = 1.0
#: Calls that end a trial, and the resulting status.
_ENDING_CALLS: Final = {
    "stop": TrialStatus.EARLY_STOPPED,
    "complete": TrialStatus.COMPLETED,
    "fail": TrialStatus.FAILED,
    "abandon": TrialStatus.ABANDONED,
}


def at_report(number: int, action: Action) -> Rule:
    """Return a scheduler that decides *action* at the *number*-th report of each attempt."""

    def decide(_: Trial, report: Report) -> Decision:
        return Decision(action, f"has reported {number} times") if report.sequence == number else CONTINUE

    return Rule(decide)


class EndingContract(TunerTests):
    def test_the_scheduler_ends_a_trial_at_a_report(self, tune: Tune) -> None:
        ends = {
            "0001": (Action.STOP, TrialStatus.EARLY_STOPPED, AttemptEnd.STOPPED),
            "0002": (Action.COMPLETE, TrialStatus.COMPLETED, AttemptEnd.COMPLETED),
        }

        def decide(trial: Trial, report: Report) -> Decision:
            return Decision(ends[trial.id][0], "has reported 3 times") if report.sequence == 3 else CONTINUE

        tuner = tune(played(ENDLESS), played(ENDLESS), scheduler=Rule(decide))
        drive(tuner, lambda: tuner.is_finished)

        for trial in tuner.get_trials():
            assert (trial.status, trial.attempt.end) == ends[trial.id][1:]
            assert reports_of(tuner, trial, 1) == [1, 2, 3]
            assert trial.attempt.stop is not None
            assert trial.attempt.stop[:2] == ("scheduler", "has reported 3 times")
            assert trial.attempt.stop.sequence == 3

    def test_a_user_ends_running_trials_and_their_slot_is_used_again(self, tune: Tune) -> None:
        endless = [played(ENDLESS) for _ in _ENDING_CALLS]
        tuner = tune(*endless, played(2), run=RunOptions(max_concurrent=1))
        for number, call in enumerate(_ENDING_CALLS, 1):
            trial = await_reports(tuner, 1, f"{number:04d}")
            getattr(tuner.trial(trial), call)("for a reason")
        drive(tuner, lambda: tuner.is_finished)

        *ended, last = tuner.get_trials()
        assert [trial.status for trial in ended] == list(_ENDING_CALLS.values())
        for trial in ended:
            assert (trial.reason, trial.history[-1].by) == ("for a reason", "user")
            assert trial.attempt.stop is not None
            assert trial.attempt.stop[:2] == ("user", "for a reason")
        assert last.status is TrialStatus.COMPLETED

    def test_queued_trials_end_at_once_and_never_run(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS))
        drive(tuner, lambda: len(tuner.running_trials) == 2)
        queued = {call: tuner.add(played(3)) for call in _ENDING_CALLS}

        for call, trial in queued.items():
            getattr(tuner.trial(trial), call)("not needed")

        assert {call: trial.status for call, trial in queued.items()} == _ENDING_CALLS
        tuner.stop_all()
        drive(tuner, lambda: tuner.is_finished)
        assert [(trial.reports, trial.attempt.started_at) for trial in queued.values()] == [(0, None)] * len(queued)

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
