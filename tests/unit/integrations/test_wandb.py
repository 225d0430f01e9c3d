"""Trials as runs of Weights & Biases, offline, read back from its files."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from logged import tuner

import mqtune

wandb = pytest.importorskip("wandb")
# What it imports warns of what it uses itself.
pytestmark = pytest.mark.filterwarnings("default")

from wandb.proto import wandb_internal_pb2  # noqa: E402 - it needs wandb

from mqtune.integrations import WandB  # noqa: E402 - as above

#: W&B's files are logs as LevelDB has them: blocks of records, each with a checksum, a length, and whether it is a whole one, or the
#: first, a middle or the last part of one that spans blocks. The file's own header is part of the first block.
_BLOCK: Final = 32 * 1024
_HEAD: Final = struct.Struct("<IHB")
_WHOLE, _LAST = 1, 4


def written_in(path: Path) -> Iterator[bytes]:
    """Yield the records of a file."""
    data, at, record = path.read_bytes(), _HEAD.size, b""
    while at + _HEAD.size <= len(data):
        if _BLOCK - at % _BLOCK < _HEAD.size:
            at += _BLOCK - at % _BLOCK
            continue
        _, length, part = _HEAD.unpack_from(data, at)
        at += _HEAD.size + length
        record += data[at - length : at]
        if part in (_WHOLE, _LAST):
            yield record
            record = b""


def records(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield what the files of all runs say, each with the name of its run."""
    # Its service writes the last of them when the process ends, or now.
    wandb.teardown()
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        name = ""
        for data in written_in(path):
            record = wandb_internal_pb2.Record.FromString(data)
            name = record.run.display_name or name
            yield name, record


def steps(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    """Return the step and loss of each point, by the run's name."""
    found: dict[str, list[tuple[int, Any]]] = {}
    for name, record in records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
            found.setdefault(name, []).append((record.history.step.num, json.loads(items["loss"])))
    return found


@pytest.fixture(autouse=True)
def home() -> Iterator[None]:
    yield
    wandb.teardown()


def test_each_experiment_has_its_files_below_its_own_folder(tmp_path: Path) -> None:
    logger = WandB(mode="offline")
    for name in ("first", "second"):
        logger.setup(tmp_path / name)
        logger.write(tuner(mqtune.Callback()).run())

    assert all(list((tmp_path / name).glob("wandb/offline-run-*")) for name in ("first", "second"))


def test_each_trial_is_a_run_with_a_step_for_each_report_and_its_end(tmp_path: Path) -> None:
    # Its service takes longer to start on a busy machine than a run waits for callbacks at its end.
    WandB(mode="offline", folder=tmp_path).write(tuner(mqtune.Callback()).run())

    found = steps(tmp_path)
    assert [step for step, _ in found["0001"]] == [1, 2, 3]
    assert math.isnan(found["0001"][0][1])
    assert found["0001"][2][1] == pytest.approx(0.5 / 3)
    groups = {record.run.run_group for _, record in records(tmp_path) if record.HasField("run")}
    assert groups == {"mine"}
    exits = {name: record.exit.exit_code for name, record in records(tmp_path) if record.HasField("exit")}
    assert exits == {"0001": 0, "0002": 1}
