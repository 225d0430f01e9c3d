"""Tests of trials with several seats."""

from __future__ import annotations

from typing import Final

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources
from mqtune.core.trial import AttemptEnd, TrialStatus
from mqtune.testing.backends.world import Tune, TunerTests, await_reports, drive, pause_after, reports_of
from mqtune.testing.play import ENDLESS, played
from mqtune.testing.waiting import eventually

#: A trial with both slots of the backend.
_BOTH: Final = Resources(cpus=1, seats=2)
#: A trial with more seats than there are slots.
_THREE: Final = Resources(cpus=1, seats=3)


class SeveralTasksContract(TunerTests):
    """Tests that such trials run or, if ``takes_several_tasks`` is False, are refused."""

    def test_trials_with_several_seats_are_refused_unless_the_backend_takes_them(self, tune: Tune) -> None:
        tuner = tune(played(1), resources=_BOTH)
        if self.takes_several_tasks:
            tuner.step(0.01)
            return

        with pytest.raises(ConfigurationError, match="2 seats"):
            tuner.step(0.01)
        assert tuner.get_trials() == []

    def test_only_seat_0_of_a_trial_reports_and_it_ends_once(self, tune: Tune) -> None:
        self._needs_gangs()
        tuner = tune(played(4), played(3), resources=_BOTH)

        drive(tuner, lambda: tuner.is_finished)

        assert [trial.status for trial in tuner.get_trials()] == [TrialStatus.COMPLETED] * 2
        assert [[attempt.end for attempt in trial.attempts] for trial in tuner.get_trials()] == [
            [AttemptEnd.COMPLETED]
        ] * 2
        for trial, length in zip(tuner.get_trials(), (4, 3), strict=True):
            assert reports_of(tuner, trial, 1) == list(range(1, length + 1))
            assert trial.late_reports == 0

    def test_slots_are_counted_by_the_trials_that_have_all_seats_there(self, tune: Tune) -> None:
        self._needs_gangs()
        tuner = tune(played(ENDLESS), played(2), resources=_BOTH)

        await_reports(tuner, 1)
        tuner.step(0.01)

        assert (tuner.slots, tuner.free_slots, len(tuner.running_trials)) == (1, 0, 1)
        assert not tuner.has_resources(Resources(cpus=1))
        tuner.trial("0001").stop()
        drive(tuner, lambda: tuner.is_finished)
        eventually(lambda: tuner.has_resources(_BOTH))
        assert not tuner.has_resources(_THREE)

    def test_a_trial_with_more_seats_than_there_are_slots_waits(self, tune: Tune) -> None:
        self._needs_gangs()
        tuner = tune(played(1), resources=_THREE)

        tuner.step(0.01)

        assert (tuner.slots, tuner.get_trials(), tuner.is_finished) == (0, [], False)

    def test_a_trial_with_several_seats_is_stopped_and_its_slots_are_used_again(self, tune: Tune) -> None:
        self._needs_gangs()
        tuner = tune(played(ENDLESS), played(2), resources=_BOTH)
        await_reports(tuner, 2)

        tuner.trial("0001").stop("for a reason")
        drive(tuner, lambda: tuner.is_finished)

        first, second = tuner.get_trials()
        assert (first.status, first.reason) == (TrialStatus.EARLY_STOPPED, "for a reason")
        assert [attempt.end for attempt in first.attempts] == [AttemptEnd.STOPPED]
        assert (second.status, second.reports) == (TrialStatus.COMPLETED, 2)

    def test_a_trial_with_several_seats_is_paused_and_goes_on_from_the_checkpoint_of_seat_0(self, tune: Tune) -> None:
        self._needs_gangs()
        tuner = tune(played(ENDLESS), resources=_BOTH)
        trial = pause_after(tuner, 3)
        checkpoint = trial.checkpoint
        saved_at = trial.checkpoints[checkpoint].metrics["step"]

        assert not tuner.busy_trials
        tuner.trial(trial).resume()
        drive(tuner, lambda: trial.attempt.number == 2 and trial.attempt.reports >= 2)

        assert [attempt.end for attempt in trial.attempts] == [AttemptEnd.PAUSED, None]
        assert trial.attempt.checkpoint == checkpoint
        assert reports_of(tuner, trial, 2)[:2] == [saved_at + 1, saved_at + 2]

    def _needs_gangs(self) -> None:
        if not self.takes_several_tasks:
            pytest.skip("the backend takes no trials with several seats")
