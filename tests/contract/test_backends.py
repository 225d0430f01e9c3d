"""The contract of backends, on simulated workers and on a real one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqtune
from mqtune.backends import EmbeddedServer, WorkerProcess
from mqtune.journal import Fleet, connect
from mqtune.testing.backends import BackendContract, NewTuner
from mqtune.testing.play import play, play_unsaved, reports
from mqtune.testing.waiting import eventually

#: Below it a worker finds mqtune.testing.play.
CODE_ROOT = Path(mqtune.__file__).parents[1]
#: A cold start of a worker takes a second or two, and more on a machine that runs other tests.
JOIN_S = 30.0


@pytest.fixture(scope="module")
def broker(redis_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server, and one worker with two slots for all tests of this module."""
    folder = tmp_path_factory.mktemp("backends") / "worker"
    folder.mkdir()
    with contextlib.closing(connect(redis_server.url)) as client:
        # Workers that other tests have registered would offer what this one does not.
        client.flushdb()
        worker = WorkerProcess(
            folder / "worker.log",
            ["-m", "mqtune", "worker", "--name", "contract", "--gpus", "0", "--slots", "2", "--cpus", "2"],
            {
                "MQTUNE_BROKER": redis_server.url,
                "MQTUNE_CODE_ROOT": str(CODE_ROOT),
                "MQTUNE_LOG_ROOT": str(folder.parent),
            },
        )
        try:
            fleet = Fleet(client, patience_s=5)
            eventually(lambda: worker.problem() or fleet.workers(), JOIN_S)
            assert not worker.problem()
            yield redis_server.url
        finally:
            worker.stop()


class TestSimulated(BackendContract):
    runs_processes = False

    @pytest.fixture
    def new_tuner(self) -> NewTuner:
        simulated: dict[str, mqtune.Simulated] = {}

        def new_tuner(*, saves: bool, **arguments: Any) -> mqtune.Tuner:
            backend = mqtune.Simulated(
                reports,
                slots=2,
                checkpoints=saves,
                start_delay_s=0.001,
                decision_delay_s=0.001,
                stop_delay_s=0.002,
                offer=mqtune.Resources(cpus=1),
                keep_journal=True,
            )
            backend = simulated.setdefault(arguments["name"], backend)
            return mqtune.Tuner(play if saves else play_unsaved, backend=backend, **arguments)

        return new_tuner


class TestCelery(BackendContract):
    @pytest.fixture
    def new_tuner(self, broker: str) -> NewTuner:
        def new_tuner(*, saves: bool, **arguments: Any) -> mqtune.Tuner:
            return mqtune.Tuner(play if saves else play_unsaved, backend=broker, **arguments)

        return new_tuner
