"""Trials are paused and go on: from where they were, with another config, from another one's checkpoint, or from scratch."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mqtune.core.errors import NothingResumes
from mqtune.core.trial import (
    CONTINUE,
    Action,
    AttemptEnd,
    Decision,
    Report,
    Trial,
    TrialId,
    TrialStatus,
    attempt_and_number,
)
from mqtune.driver.settings import Run
from mqtune.schedulers.base import Choice, Resume
from mqtune.testing.backends.world import InWorld, Rule, Tune, drive, last_step, reports_of
from mqtune.testing.play import ENDLESS, played
from mqtune.tuner import Tuner


def paused_after(tuner: Tuner, reports: int, trial_id: str = "0001") -> Trial:
    """Have a trial paused once it has reported so often, and return it."""
    drive(tuner, lambda: tuner.get_trials() and tuner.trial(trial_id).record.reports >= reports)
    trial = tuner.trial(trial_id).record
    tuner.trial(trial).pause()
    drive(tuner, lambda: trial.status is TrialStatus.PAUSED)
    return trial


class PausingContract(InWorld):
    """How trials pause, and go on."""

    def test_a_paused_trial_frees_its_slot_and_keeps_a_checkpoint(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(2), run=Run(max_concurrent=1))

        trial = paused_after(tuner, 3)
        drive(tuner, lambda: len(tuner.get_trials(TrialStatus.COMPLETED)) == 1)

        assert trial.attempt.end is AttemptEnd.PAUSED
        assert not tuner.busy_trials
        assert trial.checkpoint in trial.checkpoints
        assert trial.history[-1][2:] == ("requested by a user", "user")

    def test_a_resumed_trial_goes_on_behind_its_newest_checkpoint(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        trial = paused_after(tuner, 3)
        checkpoint = trial.checkpoint
        saved_at = trial.checkpoints[checkpoint].metrics["step"]

        answer = tuner.trial(trial).resume(reason="its turn")
        drive(tuner, lambda: trial.attempt.reports >= 2)

        assert (answer.is_done, answer.trial) == (True, trial.id)
        assert (trial.attempt.number, trial.attempt.checkpoint) == (2, checkpoint)
        assert reports_of(tuner, trial, 2)[:2] == [saved_at + 1, saved_at + 2]
        assert trial.last_metrics["training_iteration"] == last_step(trial)
        assert [step.status for step in trial.history] == [
            TrialStatus.CANDIDATE,
            TrialStatus.STAGED,
            TrialStatus.RUNNING,
            TrialStatus.PAUSED,
            TrialStatus.STAGED,
            TrialStatus.RUNNING,
        ]
        assert trial.history[4][2:] == ("its turn", "user")

    def test_a_trial_is_resumed_with_another_config(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS, x=1))
        trial = paused_after(tuner, 2)

        tuner.trial(trial).resume({"x": 8.0})
        drive(tuner, lambda: trial.attempt.reports)

        assert trial.config == {**played(ENDLESS), "x": 8.0}
        assert [attempt.config["x"] for attempt in trial.attempts] == [1.0, 8.0]
        assert trial.last_metrics["loss"] == 8.0 / last_step(trial)

    def test_without_a_checkpoint_a_resumed_trial_begins_from_scratch(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), saves=False)
        trial = paused_after(tuner, 3)

        tuner.trial(trial).resume()
        drive(tuner, lambda: trial.attempt.reports)

        assert not trial.attempt.checkpoint
        assert reports_of(tuner, trial, 2)[0] == 1

    def test_the_scheduler_pauses_trials_and_resumes_them(self, tune: Tune) -> None:
        def decide(trial: Trial, report: Report) -> Decision:
            is_first = trial.attempt.number == 1 and report.sequence == 2
            return Decision(Action.PAUSE, "the others first") if is_first else CONTINUE

        def choose(trials: Mapping[TrialId, Trial]) -> Choice | None:
            paused = [trial.id for trial in trials.values() if trial.status is TrialStatus.PAUSED]
            if len(trials) < 3 or not paused:
                return None
            # It may have come further than it was told to before it heard of the pause.
            return Resume(paused[0], "now it may", played(attempt_and_number(trials[paused[0]].checkpoint)[1] + 3, x=3))

        tuner = tune(*[played(ENDLESS) for _ in range(3)], scheduler=Rule(decide, choose))
        drive(tuner, lambda: tuner.is_finished)

        assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.COMPLETED] * 3
        for trial in tuner.get_trials():
            assert [attempt.end for attempt in trial.attempts] == [AttemptEnd.PAUSED, AttemptEnd.COMPLETED]
            assert trial.attempts[0].stop is not None
            assert trial.attempts[0].stop.sequence == 2
            assert reports_of(tuner, trial, 1) == [1, 2]
            assert reports_of(tuner, trial, 2)[-1] == trial.config["length"]
            assert (trial.config["x"], trial.history[4][2:]) == (3, ("now it may", "scheduler"))

    def test_the_scheduler_resumes_a_trial_from_the_checkpoint_of_another_one(self, tune: Tune) -> None:
        def decide(trial: Trial, _: Report) -> Decision:
            return Decision(Action.PAUSE) if trial.id == "0001" and trial.attempt.number == 1 else CONTINUE

        def choose(trials: Mapping[TrialId, Trial]) -> Choice | None:
            first, source = trials.get(TrialId("0001")), trials.get(TrialId("0002"))
            if first is None or source is None or first.status is not TrialStatus.PAUSED or source.reports < 20:
                return None
            return Resume(first.id, "does what the other does", played(ENDLESS, x=2), source.id)

        tuner = tune(played(ENDLESS), played(ENDLESS, x=5), scheduler=Rule(decide, choose))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.attempt.number == 2)
        trial = tuner.trial("0001").record
        drive(tuner, lambda: trial.attempt.reports)

        assert (trial.attempt.source, trial.config["x"], trial.parent) == ("0002", 2, None)
        assert reports_of(tuner, trial, 2)[0] > 20
        assert trial.last_metrics["loss"] == 2 / last_step(trial)

    def test_a_trial_that_waits_for_a_slot_is_paused_at_once_and_can_be_resumed(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS))
        drive(tuner, lambda: len(tuner.running_trials) == 2)
        waiting = tuner.add(played(2))

        tuner.trial(waiting).pause()
        assert waiting.status is TrialStatus.PAUSED
        tuner.trial(waiting).resume()
        tuner.trial("0001").stop()
        drive(tuner, lambda: waiting.status is TrialStatus.COMPLETED)

        assert [attempt.end for attempt in waiting.attempts] == [AttemptEnd.PAUSED, AttemptEnd.COMPLETED]

    @pytest.mark.parametrize("is_paused", [False, True], ids=["running", "paused"])
    def test_a_trial_is_restarted_from_scratch_in_place(self, tune: Tune, is_paused: bool) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials() and tuner.trial("0001").record.reports >= 3)
        trial = paused_after(tuner, 3) if is_paused else tuner.trial("0001").record

        tuner.trial(trial).restart({"length": 2})
        drive(tuner, lambda: tuner.is_finished)

        assert len(tuner.get_trials()) == 1
        assert (trial.status, trial.attempt.number, trial.attempt.checkpoint) == (TrialStatus.COMPLETED, 2, "")
        assert reports_of(tuner, trial, 2) == [1, 2]
        assert trial.history[4].reason == "requested by a user"

    @pytest.mark.parametrize("is_paused", [False, True], ids=["running", "paused"])
    def test_a_trial_is_restarted_from_the_checkpoint_of_another_one(self, tune: Tune, is_paused: bool) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS, x=7, every_s=0.002))
        drive(tuner, lambda: len(tuner.running_trials) == 2 and tuner.trial("0002").record.reports >= 30)
        trial = paused_after(tuner, 1) if is_paused else tuner.trial("0001").record
        behind = last_step(tuner.trial("0002").record)

        tuner.trial(trial).restart({"x": 6.0}, source="0002")
        drive(tuner, lambda: trial.attempt.number == 2 and trial.attempt.reports)

        assert (trial.attempt.source, trial.config["x"]) == ("0002", 6)
        assert reports_of(tuner, trial, 2)[0] == behind + 1
        assert trial.last_metrics["loss"] == 6 / last_step(trial)
        assert tuner.trial("0002").record.status is TrialStatus.RUNNING

    def test_a_running_trial_saves_on_demand(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS, every_s=60))
        drive(tuner, lambda: tuner.running_trials)
        trial = tuner.trial("0001").record

        tuner.trial(trial).save()
        drive(tuner, lambda: trial.checkpoint)

        assert trial.reports == 0
        first = trial.checkpoint
        tuner.trial(trial).save()
        drive(tuner, lambda: trial.checkpoint != first)

    def test_paused_trials_that_nothing_resumes_are_an_error_and_a_user_may_resume_them(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(2))
        trial = paused_after(tuner, 2)
        drive(tuner, lambda: not tuner.busy_trials)

        with pytest.raises(NothingResumes, match=r"1 trials are paused .*0001.* resume or abandon them"):
            tuner.step()

        tuner.trial(trial).resume({"length": 50})
        drive(tuner, lambda: tuner.is_finished)
        assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.COMPLETED] * 2

    @pytest.mark.parametrize(
        ("call", "status"),
        [("stop", TrialStatus.EARLY_STOPPED), ("abandon", TrialStatus.ABANDONED)],
    )
    def test_a_paused_trial_ends_where_it_is(self, tune: Tune, call: str, status: TrialStatus) -> None:
        tuner = tune(played(ENDLESS))
        trial = paused_after(tuner, 2)

        getattr(tuner.trial(trial), call)("no longer wanted")

        assert (trial.status, trial.reason, trial.history[-1].by) == (status, "no longer wanted", "user")
        assert tuner.is_finished
        assert len(trial.attempts) == 1

    def test_another_driver_goes_on_with_what_is_paused_and_what_runs(self, tune: Tune) -> None:
        first = tune(played(ENDLESS), played(ENDLESS), name=f"twice-{id(tune)}")
        paused = paused_after(first, 3)
        drive(first, lambda: len(first.running_trials) == 1 and first.trial("0002").record.reports)
        first.close()

        second = tune(played(ENDLESS), played(ENDLESS), name=first.name)
        second.trial(paused.id).resume()
        found = second.trial(paused.id).record
        drive(second, lambda: found.attempt.reports and len(second.running_trials) == 2)

        assert second.trial("0002").record.attempt.number == 1
        assert found.attempt.checkpoint == paused.checkpoint
        assert reports_of(second, found, 2)[0] > 1
