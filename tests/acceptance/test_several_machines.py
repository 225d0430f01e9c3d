"""Trials with several seats train one model by PyTorch, as their page and their example say, where PyTorch is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from attempts import ForkedTrial
from kept_port import KeptPort
from walkthrough import blocks_of

from mqtune.checkpoints import open_store
from mqtune.services.gangs.worker import variables_of
from mqtune.trainable import FRAME_END, TrainableSpec

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PAGE = blocks_of(ROOT / "docs" / "how-to" / "several-machines.md")
SEATS = 2
#: Each process of PyTorch takes half a minute to start on a machine that runs ten other programs.
pytestmark = pytest.mark.timeout(550)


class Said(NamedTuple):
    rows: list[dict[str, Any]]
    checkpoints: list[str]


@pytest.fixture
def port() -> Iterator[int]:
    with closing(KeptPort()) as port:
        yield port.number


def ended(folder: Path, port: int, spec: TrainableSpec, code: Path, config: dict[str, Any], **message: Any) -> Said:
    pytest.importorskip("torch")
    if not (store := folder / "store").exists():
        open_store(str(store)).create()
    with ExitStack() as stack:
        trials = []
        for seat in range(SEATS):
            (own := folder / f"{message.get('attempt', 1)}-{seat}").mkdir()
            gang: dict[str, Any] = {"seat": seat, "seats": SEATS, "address": f"127.0.0.1:{port}"}
            gang["environment"] = variables_of(*gang.values())
            trial = ForkedTrial(own, spec, code, **{"store": str(store), **gang, **message})
            trials.append(stack.enter_context(closing(trial)))
        for trial in trials:
            trial.start(config)
        for trial in trials:
            assert trial.wait()["end"] == "completed", trial.stderr()
        assert [kind for kind, _ in trials[1].frames()] == [FRAME_END]
        return Said(trials[0].rows(), trials[0].checkpoints())


def written(folder: Path) -> Path:
    (code := folder / "code").mkdir()
    for block in PAGE:
        if block.title:
            (code / block.title).write_text(block.text)
            (code / block.title).chmod(0o755)
    return code


def test_the_example_goes_on_from_its_checkpoint_in_both_seats_as_without_a_break(tmp_path: Path, port: int) -> None:
    spec, config = TrainableSpec("train", module="train_ddp"), {"lr": 0.1, "width": 32}

    whole = ended(tmp_path, port, spec, EXAMPLES, config)
    later = ended(tmp_path, port, spec, EXAMPLES, config, attempt=2, checkpoint=whole.checkpoints[5])

    assert whole.rows[-1]["accuracy"] > 0.8
    assert [row["training_iteration"] for row in later.rows] == [7, 8, 9]
    assert [row["accuracy"] for row in later.rows] == pytest.approx([row["accuracy"] for row in whole.rows[6:]])


def test_the_function_of_the_page_learns_in_two_seats(tmp_path: Path, port: int) -> None:
    spec = TrainableSpec("train", module="ddp")

    said = ended(tmp_path, port, spec, written(tmp_path), {"lr": 0.3})

    assert len(said.rows) == len(set(said.checkpoints)) == 5
    assert said.rows[-1]["loss"] < said.rows[0]["loss"] / 2
