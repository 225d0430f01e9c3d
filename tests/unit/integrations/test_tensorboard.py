"""Trials as runs of TensorBoard, read back from its files."""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqtune
from mqtune.integrations.tensorboard import TensorBoard

tensorboardx = pytest.importorskip("tensorboardX")

#: Of a run: the step and value of each point, by the curve.
Curves = dict[str, list[tuple[int, float]]]


def objective(config: dict[str, Any]) -> None:
    """Never run: its workers are simulated."""


def curve(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, object]]]:
    for epoch in range(1, 4):
        loss = math.nan if epoch == 1 else config["x"] / epoch
        yield 1.0, {"loss": loss, "nested": {"accuracy": 0.5}, "ok": True, "note": "text is no curve"}


def simulated() -> mqtune.Simulated:
    return mqtune.Simulated(curve, slots=2, keep_journal=True)


def tuner(runs: Path, backend: mqtune.Simulated | None = None) -> mqtune.Tuner:
    return mqtune.Tuner(
        objective,
        {"x": mqtune.uniform(0, 1), "layers": {"widths": mqtune.choice([[16], [32, 8]])}},
        metric="loss",
        mode="min",
        max_trials=2,
        seed=0,
        name="mine",
        backend=backend or simulated(),
        run=mqtune.RunOptions(progress=False, callbacks=[TensorBoard(runs)]),
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "home"))


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
                found = data.session_start_info.hparams
                hyperparameters = {
                    name: getattr(each, each.WhichOneof("kind") or "null_value") for name, each in found.items()
                }
            elif not value.tag.startswith("_hparams_"):
                curves[value.tag].append((event.step, value.simple_value))
    return curves, hyperparameters


def test_a_run_has_a_curve_for_each_number_and_the_config(tmp_path: Path) -> None:
    results = tuner(tmp_path / "runs").run()

    curves, hyperparameters = read(tmp_path / "runs" / "mine" / "0001")

    x = results["0001"].config["x"]
    assert [step for step, _ in curves["loss"]] == [1, 2, 3]
    assert [value for _, value in curves["loss"]] == pytest.approx([math.nan, x / 2, x / 3], nan_ok=True)
    assert curves["nested.accuracy"] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert curves["ok"] == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert "note" not in curves
    assert hyperparameters["x"] == pytest.approx(x)
    assert hyperparameters["layers.widths"] in ("[16]", "[32, 8]")


def test_points_have_the_times_of_their_reports(tmp_path: Path) -> None:
    results = tuner(tmp_path / "runs").run()

    times = {
        event.step: event.wall_time
        for event in events(tmp_path / "runs" / "mine" / "0002")
        if any(value.tag == "loss" for value in event.summary.value)
    }

    assert list(times.values()) == [report.timestamp for report in results.reports("0002")]


def test_a_driver_that_goes_on_adds_no_point_twice_and_leaves_the_files_of_others(tmp_path: Path) -> None:
    runs, backend = tmp_path / "runs", simulated()
    first = tuner(runs, backend)
    while sum(trial.reports for trial in first.get_trials()) < 2:
        first.step(1.0)
    first.close()
    (runs / "mine" / "0001" / "events.out.tfevents.of-the-trial").write_bytes(b"")
    tuner(runs, backend).run()
    written = {path: path.stat().st_mtime_ns for path in runs.rglob("*.mqtune")}

    tuner(runs, backend).run()

    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*.mqtune")} == written
    assert (runs / "mine" / "0001" / "events.out.tfevents.of-the-trial").exists()
    for trial in ("0001", "0002"):
        curves, _ = read(runs / "mine" / trial)
        assert [step for step, _ in curves["loss"]] == [1, 2, 3]


def test_an_experiment_that_has_ended_is_written_from_its_folder(tmp_path: Path) -> None:
    tuner(tmp_path / "runs").run()

    TensorBoard(tmp_path / "again").write(mqtune.Results.load("mine"))

    # As text, in which NaN equals itself.
    assert repr(read(tmp_path / "again" / "mine" / "0002")) == repr(read(tmp_path / "runs" / "mine" / "0002"))


def test_a_folder_that_can_not_be_written_is_said_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")

    with pytest.raises(FileExistsError, match="runs"):
        tuner(tmp_path / "runs").run()
