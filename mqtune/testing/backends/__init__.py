"""The contract of backends. Subclass ``BackendContract`` and give it tuners on yours."""

from __future__ import annotations

from mqtune.testing.backends.ending import EndingContract
from mqtune.testing.backends.observing import ObservingContract
from mqtune.testing.backends.pausing import PausingContract
from mqtune.testing.backends.seating import SeatingContract
from mqtune.testing.backends.starting import StartingContract
from mqtune.testing.backends.world import NewTuner

__all__ = ["BackendContract", "NewTuner"]


class BackendContract(StartingContract, PausingContract, EndingContract, ObservingContract, SeatingContract):
    """The tests that a backend must pass, through the tuner as users have it.

    A subclass that pytest collects overrides the fixture ``new_tuner``. It sets ``runs_processes`` to False if its
    trials are not processes of their own, and ``takes_gangs`` if they have one seat each::

        class TestSimulated(BackendContract):
            runs_processes = False

            @pytest.fixture
            def new_tuner(self) -> NewTuner:
                def new_tuner(*, saves: bool, **arguments: Any) -> Tuner:
                    backend = Simulated(reports, slots=2, checkpoints=saves, offer=Resources(cpus=1))
                    return Tuner(play, backend=backend, **arguments)

                return new_tuner
    """
