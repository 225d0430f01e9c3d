"""What a tuner keeps of its promises on every backend; subclass BackendContract and give it tuners."""

from __future__ import annotations

from mqtune.testing.backends.ending import EndingContract
from mqtune.testing.backends.looking import LookingContract
from mqtune.testing.backends.pausing import PausingContract
from mqtune.testing.backends.refusing import RefusingContract
from mqtune.testing.backends.starting import StartingContract
from mqtune.testing.backends.world import NewTuner

__all__ = ["BackendContract", "NewTuner"]


class BackendContract(
    StartingContract,
    PausingContract,
    EndingContract,
    LookingContract,
    RefusingContract,
):
    """The tests that a backend must pass, through the tuner as its users have it.

    A subclass whose name pytest collects has a fixture ``new_tuner`` that returns a ``NewTuner``, and says with
    ``runs_processes`` whether a trial is a process of its own: what can't be known of one that isn't must be empty::

        class TestSimulated(BackendContract):
            runs_processes = False

            @pytest.fixture
            def new_tuner(self) -> NewTuner:
                def new_tuner(*, saves: bool, **arguments: Any) -> Tuner:
                    backend = Simulated(reports, slots=2, checkpoints=saves, offer=Resources(cpus=1))
                    return Tuner(play, backend=backend, **arguments)

                return new_tuner
    """
