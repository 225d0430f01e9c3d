"""Trials start: the searcher's, a user's, from another one's checkpoint, and again after a failure."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mqtune.core.errors import SpaceError
from mqtune.core.trial import CONTINUE, Action, AttemptEnd, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.driver.settings import Failures, Run
from mqtune.schedulers.base import Choice, Fork
from mqtune.testing.backends.world import InWorld, Rule, Tune, drive, last_step, reports_of, saved_step
from mqtune.testing.play import ENDLESS, played


class StartingContract(InWorld):
    """How trials begin."""

    def test_the_searchers_trials_run_to_their_ends(self, tune: Tune) -> None:
        tuner = tune(played(3, x=2), played(0, fails_after=0), played(4, x=1))

        results = tuner.run()

        assert [trial.status for trial in tuner.get_trials()] == [
            TrialStatus.COMPLETED,
            TrialStatus.FAILED,
            TrialStatus.COMPLETED,
        ]
        assert [trial.reports for trial in tuner.get_trials()] == [3, 0, 4]
        assert (results.best.id, results.best.value) == ("0003", 0.25)

    def test_as_many_trials_run_as_there_are_slots_and_the_others_wait(self, tune: Tune) -> None:
        tuner = tune(*[played(ENDLESS) for _ in range(3)])

        drive(tuner, lambda: sum(trial.reports > 0 for trial in tuner.get_trials()) == 2)

        assert len(tuner.running_trials) == 2

    def test_no_more_trials_run_at_once_than_is_asked_for(self, tune: Tune) -> None:
        tuner = tune(*[played(2) for _ in range(3)], run=Run(max_concurrent=1))

        tuner.run()

        times = [time for trial in tuner.get_trials() for time in (trial.attempt.started_at, trial.attempt.ended_at)]
        assert len(known := [time for time in times if time is not None]) == len(times) == 6
        assert known == sorted(known)

    def test_a_trial_that_a_user_starts_is_staged_at_once_also_when_no_slot_is_free(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS))
        drive(tuner, lambda: len(tuner.running_trials) == 2)

        trial = tuner.add(played(3))

        assert trial.status is TrialStatus.STAGED
        assert trial in tuner.busy_trials
        tuner.trial("0001").stop()
        drive(tuner, lambda: trial.status is TrialStatus.COMPLETED)
        assert trial.history[0].by == "user"

    def test_a_trial_that_a_user_adds_is_the_next_one(self, tune: Tune) -> None:
        tuner = tune(played(3), played(3), run=Run(max_concurrent=1))
        drive(tuner, lambda: tuner.running_trials)

        tuner.add(played(2, x=7))
        drive(tuner, lambda: tuner.is_finished)

        assert [trial.config["x"] for trial in tuner.get_trials()] == [1, 7, 1]
        assert [trial.history[0].by for trial in tuner.get_trials()] == ["searcher", "user", "searcher"]

    def test_what_a_user_leaves_out_of_a_config_is_sampled(self, tune: Tune) -> None:
        tuner = tune()

        trial = tuner.add({"length": 1, "every_s": 0.01, "fails_after": -1})
        drive(tuner, lambda: tuner.is_finished)

        assert 0 <= trial.config["x"] < 10
        assert trial.last_metrics["loss"] == trial.config["x"]

    def test_a_config_outside_of_the_space_is_refused_and_nothing_is_started(self, tune: Tune) -> None:
        tuner = tune(played(3))

        with pytest.raises(SpaceError, match="length"):
            tuner.add({**played(3), "length": -5})
        with pytest.raises(SpaceError, match="depth"):
            tuner.add({**played(3), "depth": 3})

        drive(tuner, lambda: tuner.is_finished)
        assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.COMPLETED]

    def test_a_user_starts_a_trial_from_the_checkpoint_of_another_one(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.reports >= 3)
        source = tuner.trial("0001").record

        trial = tuner.add(played(last_step(source) + 4, x=5), source=source)
        begins_behind = last_step(source)
        drive(tuner, lambda: trial.status is TrialStatus.COMPLETED)

        assert (trial.parent, trial.attempt.source) == (source.id, source.id)
        assert trial.attempt.checkpoint.split("-")[1] == source.id
        assert reports_of(tuner, trial, 1) == list(range(begins_behind + 1, begins_behind + 5))
        assert trial.last_metrics["training_iteration"] == trial.last_metrics["step"]
        assert source.status is TrialStatus.RUNNING

    def test_a_user_starts_a_trial_from_the_best_checkpoint_and_by_its_id(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.reports >= 3)
        source = tuner.trial("0001").record
        tuner.trial(source).pause()
        drive(tuner, lambda: source.status is TrialStatus.PAUSED)

        # Of a dict only the newest is kept, and the loss falls.
        config = played(saved_step(source) + 3)
        trials = [tuner.add(config, checkpoint=which) for which in (source.checkpoint, "best")]
        drive(tuner, lambda: all(trial.status is TrialStatus.COMPLETED for trial in trials))

        for trial in trials:
            assert (trial.parent, trial.attempt.checkpoint) == (source.id, source.checkpoint)
            assert reports_of(tuner, trial, 1)[-1] == saved_step(source) + 3

    def test_an_added_trial_starts_from_the_checkpoint_of_another_one(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.checkpoint)
        source = tuner.trial("0001").record

        tuner.add(played(ENDLESS), source=source.id)
        drive(tuner, lambda: len(tuner.running_trials) == 2 and tuner.trial("0002").record.reports)

        trial = tuner.trial("0002").record
        assert trial.parent == source.id
        assert reports_of(tuner, trial, 1)[0] > 1

    def test_the_scheduler_starts_a_trial_from_the_checkpoint_of_another_one(self, tune: Tune) -> None:
        def decide(trial: Trial, _: Report) -> Decision:
            return Decision(Action.PAUSE, "to be forked") if trial.id == "0001" else CONTINUE

        def choose(trials: Mapping[TrialId, Trial]) -> Choice | None:
            if [trial.status for trial in trials.values()] != [TrialStatus.PAUSED]:
                return None
            length = saved_step(trials[TrialId("0001")]) + 4
            return Fork(TrialId("0001"), played(length, x=3), "from what is paused")

        tuner = tune(played(ENDLESS), scheduler=Rule(decide, choose))
        drive(tuner, lambda: tuner.get_trials(TrialStatus.COMPLETED))

        trial = tuner.trial("0002").record
        assert (trial.parent, trial.config["x"]) == ("0001", 3)
        assert (trial.history[0].by, trial.history[1].reason) == ("scheduler", "from what is paused")
        assert reports_of(tuner, trial, 1)[-1] == saved_step(tuner.trial("0001").record) + 4
        assert reports_of(tuner, trial, 1)[0] > 1

    def test_a_clone_has_the_config_and_begins_from_scratch(self, tune: Tune) -> None:
        tuner = tune(played(2, x=4))
        drive(tuner, lambda: tuner.is_finished)

        trial = tuner.add(tuner.trial("0001").record.config)
        drive(tuner, lambda: tuner.is_finished)

        assert (trial.id, trial.config, trial.parent) == ("0002", tuner.trial("0001").record.config, None)
        assert reports_of(tuner, trial, 1) == [1, 2]

    def test_a_trial_that_fails_goes_on_from_its_newest_checkpoint(self, tune: Tune) -> None:
        tuner = tune(played(5, fails_after=3), failures=Failures(max_failures=1))
        drive(tuner, lambda: tuner.is_finished)

        (trial,) = tuner.get_trials()
        assert trial.status is TrialStatus.COMPLETED
        assert [attempt.end for attempt in trial.attempts] == [AttemptEnd.FAILED, AttemptEnd.COMPLETED]
        assert (reports_of(tuner, trial, 1), reports_of(tuner, trial, 2)) == ([1, 2, 3], [4, 5])
        assert "it was to fail behind step 3" in trial.attempts[0].error

    def test_without_a_checkpoint_a_trial_that_fails_begins_from_scratch(self, tune: Tune) -> None:
        tuner = tune(played(5, fails_after=3), failures=Failures(max_failures=2), saves=False)
        drive(tuner, lambda: tuner.is_finished)

        (trial,) = tuner.get_trials()
        assert trial.status is TrialStatus.FAILED
        assert [reports_of(tuner, trial, attempt) for attempt in (1, 2, 3)] == [[1, 2, 3]] * 3
        assert trial.reason == "RuntimeError: it was to fail behind step 3"

    def test_a_trial_may_fail_as_often_as_it_likes_if_that_is_asked_for(self, tune: Tune) -> None:
        tuner = tune(played(5, fails_after=0), failures=Failures(max_failures=-1))

        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.failures >= 4)

        trial = tuner.trial("0001").record
        assert trial.is_busy
        tuner.trial(trial).stop()
        drive(tuner, lambda: tuner.is_finished)
        assert trial.status is TrialStatus.EARLY_STOPPED

    def test_a_trial_that_reports_nothing_has_failed_unless_that_is_accepted(self, tune: Tune) -> None:
        strict, generous = tune(played(0), played(1)), tune(played(0), failures=Failures(accept_no_report=True))

        drive(strict, lambda: strict.is_finished)
        drive(generous, lambda: generous.is_finished)

        failed = strict.trial("0001").record
        assert (failed.status, failed.attempt.end) == (TrialStatus.FAILED, AttemptEnd.COMPLETED)
        assert "ended without any report" in failed.reason
        assert generous.trial("0001").record.status is TrialStatus.COMPLETED
