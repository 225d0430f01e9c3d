"""Tests of pausing, resuming, restarting and saving trials."""

from __future__ import annotations

from mqtune.core.trial import AttemptEnd, Trial, TrialStatus
from mqtune.driver.setup.options import RunOptions
from mqtune.testing.backends.world import Tune, TunerTests, await_reports, drive, last_step, pause_after, reports_of
from mqtune.testing.play import ENDLESS, played
from mqtune.tuner import Tuner


class PausingContract(TunerTests):
    def test_a_paused_trial_frees_its_slot_and_keeps_a_checkpoint(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(2), run=RunOptions(max_concurrent=1))

        trial = pause_after(tuner, 3)
        drive(tuner, lambda: len(tuner.get_trials(TrialStatus.COMPLETED)) == 1)

        assert trial.attempt.end is AttemptEnd.PAUSED
        assert not tuner.busy_trials
        assert trial.checkpoint in trial.checkpoints
        assert trial.history[-1][2:] == ("requested by a user", "user")

    def test_a_resumed_trial_continues_from_its_newest_checkpoint_with_another_config(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS, x=1))
        trial = pause_after(tuner, 3)
        checkpoint = trial.checkpoint
        saved_at = trial.checkpoints[checkpoint].metrics["step"]

        answer = tuner.trial(trial).resume({"x": 8.0}, reason="its turn")
        drive(tuner, lambda: trial.attempt.reports >= 2)

        assert (answer.is_done, answer.trial) == (True, trial.id)
        assert (trial.attempt.number, trial.attempt.checkpoint) == (2, checkpoint)
        assert reports_of(tuner, trial, 2)[:2] == [saved_at + 1, saved_at + 2]
        assert trial.last_metrics["training_iteration"] == last_step(trial)
        assert [step.status for step in trial.history] == [
            TrialStatus.CANDIDATE,
            TrialStatus.QUEUED,
            TrialStatus.RUNNING,
            TrialStatus.PAUSED,
            TrialStatus.QUEUED,
            TrialStatus.RUNNING,
        ]
        assert trial.history[4][2:] == ("its turn", "user")
        assert trial.config == {**played(ENDLESS), "x": 8.0}
        assert [attempt.config["x"] for attempt in trial.attempts] == [1.0, 8.0]
        assert trial.last_metrics["loss"] == 8.0 / last_step(trial)

    def test_without_a_checkpoint_a_resumed_trial_starts_from_scratch(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), saves=False)
        trial = pause_after(tuner, 3)

        tuner.trial(trial).resume()
        drive(tuner, lambda: trial.attempt.reports)

        assert not trial.attempt.checkpoint
        assert reports_of(tuner, trial, 2)[0] == 1

    def test_a_queued_trial_is_paused_at_once_and_can_be_resumed(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS))
        drive(tuner, lambda: len(tuner.running_trials) == 2)
        queued = tuner.add(played(2))

        tuner.trial(queued).pause()
        assert queued.status is TrialStatus.PAUSED
        tuner.trial(queued).resume()
        tuner.trial("0001").stop()
        drive(tuner, lambda: queued.status is TrialStatus.COMPLETED)

        assert [attempt.end for attempt in queued.attempts] == [AttemptEnd.PAUSED, AttemptEnd.COMPLETED]

    def test_a_running_and_a_paused_trial_are_restarted_from_scratch(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        trial = await_reports(tuner, 3)

        tuner.trial(trial).restart()
        drive(tuner, lambda: trial.attempt.number == 2 and trial.attempt.reports >= 3)
        tuner.trial(trial).pause()
        drive(tuner, lambda: trial.status is TrialStatus.PAUSED)
        tuner.trial(trial).restart({"length": 2})
        drive(tuner, lambda: tuner.is_finished)

        assert len(tuner.get_trials()) == 1
        assert (trial.status, len(trial.attempts)) == (TrialStatus.COMPLETED, 3)
        assert [attempt.checkpoint for attempt in trial.attempts] == ["", "", ""]
        assert reports_of(tuner, trial, 2)[:2] == reports_of(tuner, trial, 3) == [1, 2]
        assert trial.history[4].reason == "requested by a user"

    def test_a_running_and_a_paused_trial_are_restarted_from_the_checkpoint_of_another(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS, x=7, every_s=0.002))
        drive(tuner, lambda: len(tuner.running_trials) == 2)
        source = await_reports(tuner, 30, "0002")
        trial = tuner.trial("0001").record

        _restart(tuner, trial, source)
        tuner.trial(trial).pause()
        drive(tuner, lambda: trial.status is TrialStatus.PAUSED)
        _restart(tuner, trial, source)

        assert source.status is TrialStatus.RUNNING

    def test_a_running_trial_saves_on_request(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS, every_s=60))
        drive(tuner, lambda: tuner.running_trials)
        trial = tuner.trial("0001").record

        tuner.trial(trial).save()
        drive(tuner, lambda: trial.checkpoint)

        assert trial.reports == 0
        first = trial.checkpoint
        tuner.trial(trial).save()
        drive(tuner, lambda: trial.checkpoint != first)

    def test_the_next_driver_continues_paused_and_running_trials(self, tune: Tune) -> None:
        first = tune(played(ENDLESS), played(ENDLESS), name=f"twice-{id(tune)}")
        paused = pause_after(first, 3)
        await_reports(first, 1, "0002")
        first.close()

        second = tune(played(ENDLESS), played(ENDLESS), name=first.name)
        second.trial(paused.id).resume()
        resumed = second.trial(paused.id).record
        drive(second, lambda: resumed.attempt.reports and len(second.running_trials) == 2)

        assert second.trial("0002").record.attempt.number == 1
        assert resumed.attempt.checkpoint == paused.checkpoint
        assert reports_of(second, resumed, 2)[0] > 1


def _restart(tuner: Tuner, trial: Trial, source: Trial) -> None:
    """Restart a trial from a checkpoint of another one, and await its first report."""
    attempt, saved_at = trial.attempt.number + 1, last_step(source)

    tuner.trial(trial).restart({"x": 6.0}, source=source.id)
    drive(tuner, lambda: trial.attempt.number == attempt and trial.attempt.reports)

    assert (trial.attempt.source, trial.config["x"]) == (source.id, 6)
    assert reports_of(tuner, trial, attempt)[0] == saved_at + 1
    assert trial.last_metrics["loss"] == 6 / last_step(trial)
