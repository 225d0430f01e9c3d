"""Tests of starts: of suggested, added, retried and copied trials."""

from __future__ import annotations

from mqtune.core.trial import AttemptEnd, TrialStatus
from mqtune.driver.setup.options import Failures
from mqtune.testing.backends.world import Tune, TunerTests, await_reports, drive, last_step, reports_of
from mqtune.testing.play import ENDLESS, played


class StartingContract(TunerTests):
    def test_suggested_trials_run_to_their_end(self, tune: Tune) -> None:
        tuner = tune(played(3, x=2), played(0, fails_after=0), played(4, x=1))

        results = tuner.run()

        assert [trial.status for trial in tuner.get_trials()] == [
            TrialStatus.COMPLETED,
            TrialStatus.FAILED,
            TrialStatus.COMPLETED,
        ]
        assert [trial.reports for trial in tuner.get_trials()] == [3, 0, 4]
        assert (results.best.id, results.best.value) == ("0003", 0.25)

    def test_an_added_trial_is_staged_at_once_and_waits_for_a_slot(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS))
        drive(tuner, lambda: len(tuner.running_trials) == 2)

        trial = tuner.add(played(3))

        assert trial.status is TrialStatus.QUEUED
        assert trial in tuner.busy_trials
        drive(tuner, lambda: sum(trial.reports > 0 for trial in tuner.get_trials()) == 2)
        assert len(tuner.running_trials) == 2, "each slot runs one trial at a time"
        tuner.trial("0001").stop()
        drive(tuner, lambda: trial.status is TrialStatus.COMPLETED)
        assert trial.history[0].by == "user"

    def test_a_trial_starts_from_the_checkpoint_of_another(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        source = await_reports(tuner, 3)

        trial = tuner.add(played(last_step(source) + 4, x=5), source=source)
        saved_at = last_step(source)
        drive(tuner, lambda: trial.status is TrialStatus.COMPLETED)

        assert (trial.parent, trial.attempt.source) == (source.id, source.id)
        assert trial.attempt.checkpoint.split("-")[1] == source.id
        assert reports_of(tuner, trial, 1) == list(range(saved_at + 1, saved_at + 5))
        assert trial.last_metrics["training_iteration"] == trial.last_metrics["step"]
        assert source.status is TrialStatus.RUNNING

    def test_a_failed_trial_is_retried_from_its_newest_checkpoint(self, tune: Tune) -> None:
        tuner = tune(played(5, fails_after=3), failures=Failures(max_failures=1))
        drive(tuner, lambda: tuner.is_finished)

        (trial,) = tuner.get_trials()
        assert trial.status is TrialStatus.COMPLETED
        assert [attempt.end for attempt in trial.attempts] == [AttemptEnd.FAILED, AttemptEnd.COMPLETED]
        assert (reports_of(tuner, trial, 1), reports_of(tuner, trial, 2)) == ([1, 2, 3], [4, 5])
        assert "failed as planned after step 3" in trial.attempts[0].error
        # Each attempt has an output of its own; the last one is shown.
        lines = (tuner.trial(trial).stdout(), tuner.trial(trial).stderr())
        printed = (["continues after step 3"], ["and says so"])
        assert lines == (printed if self.runs_processes else ([], []))

    def test_without_a_checkpoint_a_failed_trial_is_retried_from_scratch(self, tune: Tune) -> None:
        tuner = tune(played(5, fails_after=3), failures=Failures(max_failures=2), saves=False)
        drive(tuner, lambda: tuner.is_finished)

        (trial,) = tuner.get_trials()
        assert trial.status is TrialStatus.FAILED
        assert [reports_of(tuner, trial, attempt) for attempt in (1, 2, 3)] == [[1, 2, 3]] * 3
        assert trial.reason == "RuntimeError: failed as planned after step 3"

    def test_a_trial_without_any_report_fails_unless_that_is_accepted(self, tune: Tune) -> None:
        strict, lenient = tune(played(0), played(1)), tune(played(0), failures=Failures(accept_no_report=True))

        drive(strict, lambda: strict.is_finished)
        drive(lenient, lambda: lenient.is_finished)

        failed = strict.trial("0001").record
        assert (failed.status, failed.attempt.end) == (TrialStatus.FAILED, AttemptEnd.COMPLETED)
        assert "ended without any report" in failed.reason
        assert lenient.trial("0001").record.status is TrialStatus.COMPLETED
