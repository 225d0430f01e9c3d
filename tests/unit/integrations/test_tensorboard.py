"""Trials as runs of TensorBoard, read back from its files."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import logged
import pytest

import mqtune
from mqtune.integrations import TensorBoard

tensorboardx = pytest.importorskip("tensorboardX")

#: Of a run: the step and value of each point, by the curve.
Curves = dict[str, list[tuple[int, float]]]


def tuner(runs: Path, backend: mqtune.Simulated | None = None) -> mqtune.Tuner:
    return logged.tuner(TensorBoard(runs), backend)


def events(folder: Path) -> Iterator[Any]:
    """Yield the events of a run: records of a length, its checksum, the event and its checksum."""
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            yield tensorboardx.proto.event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            at += 12 + length + 4


def read(folder: Path) -> tuple[Curves, dict[str, Any]]:
    """Return a run's curves, and the hyperparameters that it began with."""
    curves: Curves = defaultdict(list)
    hyperparameters: dict[str, Any] = {}
    for event in events(folder):
        for value in event.summary.value:
            if value.tag == "_hparams_/session_start_info":
                data = tensorboardx.proto.plugin_hparams_pb2.HParamsPluginData()
                data.ParseFromString(value.metadata.plugin_data.content)
                found = data.session_start_info.hparams.items()
                hyperparameters = {name: getattr(each, each.WhichOneof("kind") or "null_value") for name, each in found}
            elif not value.tag.startswith("_hparams_"):
                curves[value.tag].append((event.step, value.simple_value))
    return curves, hyperparameters


def test_a_run_has_a_curve_for_each_number_and_the_config(tmp_path: Path) -> None:
    results = tuner(tmp_path / "runs").run()

    curves, hyperparameters = read(tmp_path / "runs" / "mine" / "0001")
    found = events(tmp_path / "runs" / "mine" / "0001")
    times = [event.wall_time for event in found if any(value.tag == "loss" for value in event.summary.value)]

    assert [step for step, _ in curves["loss"]] == [1, 2, 3]
    assert [value for _, value in curves["loss"]] == pytest.approx([math.nan, 0.25, 0.5 / 3], nan_ok=True)
    assert curves["val.top@5"] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert times == [report.timestamp for report in results.reports("0001")]
    assert "note" not in curves
    assert hyperparameters == {"x": 0.5, "layers.widths": "[32, 8]"}
    # As text, in which NaN equals itself.
    TensorBoard(tmp_path / "again").write(mqtune.Results.load("mine"))
    assert repr(read(tmp_path / "again" / "mine" / "0001")) == repr((curves, hyperparameters))


def test_a_folder_that_can_not_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")

    with pytest.raises(FileExistsError, match="runs"):
        tuner(tmp_path / "runs").run()
