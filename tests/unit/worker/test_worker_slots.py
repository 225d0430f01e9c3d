"""A worker that can't start what it takes leaves it to others for a while, longer each time, and comes back by itself.

It finds the zygotes of an experiment by a key that it makes once.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench import Clock

from mqtune.core.impairment import WHOLE_WORKER
from mqtune.trainable import TrainableSpec, fingerprint
from mqtune.worker import (
    BACK_OFF_S,
    FAILED_STARTS,
    LONGEST_BACK_OFF_S,
    BackOff,
    ExperimentHere,
    Impairments,
    ZygoteFinder,
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def known(clock: Clock) -> Impairments:
    return Impairments(lambda: None, clock=lambda: 1_000 + clock.now, monotonic=clock.monotonic)


@pytest.fixture
def worker(known: Impairments) -> BackOff:
    return BackOff(known)


def fail(worker: BackOff, times: int = 1) -> None:
    for _ in range(times):
        worker.note_problem("started", "StoreUnavailable: on worker w:\nnot mounted")


def test_after_some_in_a_row_it_takes_none_and_takes_one_to_try_which_puts_it_in_order(
    worker: BackOff, clock: Clock
) -> None:
    fail(worker, FAILED_STARTS - 1)
    assert worker.allows is None

    fail(worker)
    assert worker.allows == 0
    clock.now += BACK_OFF_S - 0.1
    assert worker.allows == 0
    clock.now += 0.2
    assert worker.allows == 1
    fail(worker)

    worker.note_done("started")
    assert worker.allows is None
    # Those that were taken together are one try.
    fail(worker, FAILED_STARTS + 5)
    clock.now += BACK_OFF_S
    assert worker.allows == 1


def test_it_says_since_when_it_takes_none_why_and_when_it_tries_one(
    worker: BackOff, known: Impairments, clock: Clock
) -> None:
    began = clock.now
    fail(worker, FAILED_STARTS)
    (rests,) = known.all
    assert rests.reason == "the worker takes no trials, its last 3 attempts could not be started (not mounted)"
    assert (rests.kind, rests.device, rests.ends) == ("starts", WHOLE_WORKER, "an attempt is started")
    assert (rests.since, rests.retry_at) == (1_000 + began, 1_000 + began + BACK_OFF_S)
    assert not known.closes(0, [WHOLE_WORKER]), "it bounds how many attempts are taken, and no slot is closed by it"

    clock.now += BACK_OFF_S
    fail(worker)

    (rests,) = known.all
    assert "its last 4 attempts" in rests.reason
    assert (rests.since, rests.retry_at) == (1_000 + began, 1_000 + clock.now + 2 * BACK_OFF_S)
    worker.note_done("started")
    assert known.all == []


def test_attempts_that_start_and_can_not_be_ended_make_it_rest_too(worker: BackOff, known: Impairments) -> None:
    for _ in range(FAILED_STARTS):
        worker.note_done("started")
        worker.note_problem("ended", "ValueError: 40 is not a valid Signals")

    (rests,) = known.all
    assert rests.reason.endswith("its last 3 attempts could not be ended (ValueError: 40 is not a valid Signals)")
    assert (worker.allows, rests.ends) == (0, "an attempt is ended")
    worker.note_done("started")
    assert worker.allows == 0
    worker.note_done("ended")
    assert known.all == []


def test_each_try_that_fails_doubles_the_rest_up_to_a_limit(worker: BackOff, clock: Clock) -> None:
    fail(worker, FAILED_STARTS)
    rests = []
    for _ in range(8):
        began = clock.now
        while not worker.allows:
            clock.now += 1
        rests.append(clock.now - began)
        fail(worker)

    assert rests == [*(BACK_OFF_S * 2**n for n in range(6)), LONGEST_BACK_OFF_S, LONGEST_BACK_OFF_S]


def test_a_trial_may_fail_to_start_more_often_than_it_takes_a_worker_to_rest() -> None:
    """Else one broken worker could end it before anybody else had a try."""
    from mqtune.core.experiment import LOST_BUDGET

    assert FAILED_STARTS < LOST_BUDGET


TRAIN = TrainableSpec("train", "jobs")
FINGERPRINT = fingerprint(b"")


class Found:
    """A slot that has imported everything, and the keys that a finder has asked it for."""

    def __init__(self, folder: Path) -> None:
        self.keys: list[Any] = []
        bundles: Any = SimpleNamespace(of=lambda *_: None)
        self.finder = ZygoteFinder("w@here", folder / "code", folder / "logs", bundles)
        self.importers: Any = SimpleNamespace(late_imports=None)
        self.zygotes: Any = SimpleNamespace(
            keeping=lambda importer: None, of=lambda importer, wait: SimpleNamespace(environment={})
        )

    def importer(self, key: Any) -> Any:
        self.keys.append(key)
        return SimpleNamespace(get_ready=lambda late_imports, on_import: None)

    def serves(self, importer: Any) -> bool:
        return True

    def find(self, here: ExperimentHere) -> Any:
        turn: Any = SimpleNamespace(slot=self, use=lambda importer: None, begin=lambda zygote: None, wait=None)
        zygote, problem = self.finder.find(turn, here, lambda: None)
        assert zygote is not None, problem
        return self.keys[-1]


def here(experiment: str = "one", **definition: Any) -> ExperimentHere:
    journal: Any = SimpleNamespace(experiment=experiment)
    return ExperimentHere(journal, {"trainable": TRAIN.encode(), **definition})


def test_the_key_of_imports_is_made_once_its_experiments_code_is_there_and_is_of_that_experiment_alone(
    tmp_path: Path,
) -> None:
    (tmp_path / "code").mkdir()
    code, found = {"code_files": {"jobs.py": FINGERPRINT}}, Found(tmp_path)
    one, two, spawning = here(**code), here("two", **code), here(start_method="spawn", **code)

    early = found.find(one)
    (tmp_path / "code" / "jobs.py").write_text("")
    late = found.find(one)

    assert (early.program.manifest, late.program.manifest.is_file()) == (None, True)
    assert found.find(one) is late
    assert found.find(two).program.seed != late.program.seed
    assert found.find(spawning).program.spawns
