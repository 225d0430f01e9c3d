"""The tests for backends of your own: subclass ``BackendContract``."""

from __future__ import annotations

from mqtune.testing.backends.ending import EndingContract
from mqtune.testing.backends.observing import ObservingContract
from mqtune.testing.backends.pausing import PausingContract
from mqtune.testing.backends.several_tasks import SeveralTasksContract
from mqtune.testing.backends.starting import StartingContract
from mqtune.testing.backends.world import NewTuner

__all__ = ["BackendContract", "NewTuner"]


class BackendContract(StartingContract, PausingContract, EndingContract, ObservingContract, SeveralTasksContract):
    """The tests that a backend must pass. They use it through a tuner, as users do.

    A subclass overrides the fixture ``new_tuner``. It sets ``runs_processes`` to False if trials are not separate
    processes, and ``takes_several_tasks`` to False if attempts can't have several tasks::

        class TestSimulated(BackendContract):
            runs_processes = False

            @pytest.fixture
            def new_tuner(self) -> NewTuner:
                def new_tuner(*, saves: bool, **arguments: Any) -> Tuner:
                    backend = Simulated(reports, slots=2, checkpoints=saves, offer=Resources(cpus=1))
                    return Tuner(play, backend=backend, **arguments)

                return new_tuner
    """
