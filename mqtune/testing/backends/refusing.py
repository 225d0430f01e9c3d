"""What can't be done is refused with a clear error, changes nothing, and the rest of the experiment goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from mqtune.core.errors import ConfigurationError, ExperimentFinished, InvalidTransition, MqtuneError
from mqtune.core.trial import Trial, TrialId, TrialStatus
from mqtune.driver.settings import Run
from mqtune.testing.backends.pausing import paused_after
from mqtune.testing.backends.world import InWorld, Tune, drive
from mqtune.testing.play import ENDLESS, played
from mqtune.tuner import Tuner

_Call = Callable[[Tuner, Trial | TrialId], Any]

CALLS: Final[dict[str, _Call]] = {
    "stop": lambda tuner, trial: tuner.trial(trial).stop(),
    "complete": lambda tuner, trial: tuner.trial(trial).complete(),
    "abandon": lambda tuner, trial: tuner.trial(trial).abandon("why not"),
    "pause": lambda tuner, trial: tuner.trial(trial).pause(),
    "resume": lambda tuner, trial: tuner.trial(trial).resume(),
    "restart": lambda tuner, trial: tuner.trial(trial).restart(),
    "save": lambda tuner, trial: tuner.trial(trial).save(),
}
FROM_ANOTHER: Final[dict[str, _Call]] = {
    "start": lambda tuner, source: tuner.add(played(2), source=source),
    "restart": lambda tuner, source: tuner.trial("0002").restart(
        source=source.id if isinstance(source, Trial) else source
    ),
}


class RefusingContract(InWorld):
    """What is refused."""

    @pytest.mark.parametrize("call", CALLS)
    def test_a_trial_that_has_ended_stays_as_it_is(self, tune: Tune, call: str) -> None:
        tuner = tune(played(1), played(20))
        drive(tuner, lambda: tuner.get_trials(TrialStatus.COMPLETED))
        (trial,) = tuner.get_trials(TrialStatus.COMPLETED)
        before = list(trial.history)

        with pytest.raises(InvalidTransition, match=rf"trial {trial.id} is COMPLETED and can't"):
            CALLS[call](tuner, trial)

        drive(tuner, lambda: tuner.is_finished)
        assert trial.history == before
        assert {other.status for other in tuner.get_trials()} == {TrialStatus.COMPLETED}

    @pytest.mark.parametrize("call", ["complete", "pause", "save"])
    def test_a_paused_trial_can_not_do_what_only_a_running_one_can(self, tune: Tune, call: str) -> None:
        tuner = tune(played(ENDLESS))
        trial = paused_after(tuner, 1)

        with pytest.raises(InvalidTransition, match="trial 0001 is PAUSED and can't"):
            CALLS[call](tuner, trial)

        assert trial.status is TrialStatus.PAUSED
        tuner.trial(trial).resume()
        drive(tuner, lambda: trial.attempt.reports)

    def test_a_trial_that_runs_is_not_resumed(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.running_trials)

        with pytest.raises(InvalidTransition, match="trial 0001 is RUNNING and can't be resumed; only a PAUSED trial"):
            tuner.trial("0001").resume()

        drive(tuner, lambda: tuner.trial("0001").record.reports >= 3)
        assert len(tuner.trial("0001").record.attempts) == 1

    @pytest.mark.parametrize("call", FROM_ANOTHER)
    def test_nothing_starts_from_a_trial_without_a_checkpoint(self, tune: Tune, call: str) -> None:
        tuner = tune(played(ENDLESS), played(ENDLESS), saves=False)
        drive(tuner, lambda: len(tuner.running_trials) == 2)

        with pytest.raises(ConfigurationError, match=r"trial 0001 has no checkpoint to start from"):
            FROM_ANOTHER[call](tuner, tuner.trial("0001").record)

        drive(tuner, lambda: all(trial.reports >= 3 for trial in tuner.get_trials()))
        assert len(tuner.get_trials()) == 2
        assert [trial.attempt.stop for trial in tuner.get_trials()] == [None, None]

    @pytest.mark.parametrize("what", [*CALLS, "source", "get"])
    def test_a_trial_that_is_not_there_is_named(self, tune: Tune, what: str) -> None:
        tuner = tune(played(ENDLESS))
        drive(tuner, lambda: tuner.running_trials)
        more: dict[str, Callable[[Any], Any]] = {
            "source": lambda id_: tuner.add(played(1), source=id_),
            "get": tuner.trial,
        }

        with pytest.raises(ConfigurationError, match=r"no trial '0815' in experiment"):
            more[what]("0815") if what in more else CALLS[what](tuner, TrialId("0815"))

        assert len(tuner.get_trials()) == 1
        drive(tuner, lambda: tuner.trial("0001").record.reports >= 2)

    def test_an_experiment_that_is_finished_can_not_be_stepped(self, tune: Tune) -> None:
        tuner = tune(played(1))
        drive(tuner, lambda: tuner.is_finished)

        with pytest.raises(ExperimentFinished, match="is finished"):
            tuner.step()

        trial = tuner.add(played(1))
        drive(tuner, lambda: tuner.is_finished)
        assert trial.status is TrialStatus.COMPLETED

    def test_an_added_trial_still_starts_when_its_source_has_ended_meanwhile(self, tune: Tune) -> None:
        tuner = tune(played(ENDLESS), played(20, x=9), run=Run(max_concurrent=2))
        drive(tuner, lambda: len(tuner.running_trials) == 2 and tuner.trial("0002").record.checkpoint)
        source = tuner.trial("0002").record

        tuner.add(played(ENDLESS, x=8), source=source)
        drive(tuner, lambda: source.status is TrialStatus.COMPLETED)
        drive(tuner, lambda: len(tuner.get_trials()) == 3 and tuner.trial("0003").record.reports)

        assert tuner.trial("0003").record.attempt.source == source.id

    def test_what_was_refused_is_not_in_the_journal(self, tune: Tune) -> None:
        tuner = tune(played(4), played(ENDLESS))
        drive(tuner, lambda: tuner.get_trials(TrialStatus.COMPLETED))
        for call in CALLS.values():
            with pytest.raises(MqtuneError):
                call(tuner, tuner.trial("0001").record)
        name = tuner.name
        tuner.close()

        again = tune(played(4), played(ENDLESS), name=name)
        drive(again, lambda: again.running_trials)

        first, second = again.get_trials()
        assert (first.status, first.attempt.stop) == (TrialStatus.COMPLETED, None)
        assert (second.status, len(second.attempts)) == (TrialStatus.RUNNING, 1)
