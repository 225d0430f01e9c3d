"""What mqtune's checkpoints cost: a small dict in Redis, and a large directory in a store."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.measurement import Context, Figures
from benchmarks.saving import CALLS, ROUNDS
from benchmarks.systems.mqtune_running import Observed, fifo, observing, run
from benchmarks.work import stream
from benchmarks.work.base import percentiles

if TYPE_CHECKING:
    from mqtune.checkpoints import CheckpointStore
    from mqtune.core.trial import CheckpointId

__all__ = ["measure_dicts", "measure_directory", "measure_stream"]


def measure_dicts(context: Context) -> Figures:
    """Time reports with and without a dict, from before the call to its end and to the decision."""
    from benchmarks import trainables_saving

    observed = Observed()
    run(context, trainables_saving.dicts, 1, observing(fifo(), observed), slots=1)
    calls = json.loads((context.folder / CALLS).read_text())
    found: Figures = {}
    for name, wanted in (("plain", False), ("dict", True)):
        spans = [
            (after - before, decided - before)
            for (is_with, before, after), decided in zip(calls, observed.shown, strict=True)
            if is_with == wanted
        ]
        found |= percentiles(f"{name}_call", "us", [1e6 * call for call, _ in spans])
        found |= percentiles(f"{name}_decision", "ms", [1e3 * decision for _, decision in spans])
    return found


def measure_stream(context: Context) -> Figures:
    """Have two trials report as fast as they can, each time with a dict."""
    from benchmarks import trainables_saving

    observed, reports = Observed(), context.sizes["stream_reports"]
    run(context, trainables_saving.stream_dicts, stream.PARTIES, observing(fifo(), observed))
    figures = stream.figures(context.folder, reports=reports, last_decision=observed.shown[-1])
    return {"dict_reports_per_s": figures["reports_per_s"]}


def measure_directory(context: Context) -> Figures:
    """Time, in a trial, reports with a directory and plain copies of it; then have the last one fetched again."""
    from benchmarks import trainables_saving
    from mqtune.checkpoints import experiment_url, open_store
    from mqtune.driver.settings import Checkpoints

    folder = context.folder / "store"
    name = run(context, trainables_saving.directories, 1, fifo(), slots=1, checkpoints=Checkpoints(folder)).experiment
    taken = {
        name: statistics.median(times) for name, times in json.loads((context.folder / ROUNDS).read_text()).items()
    }
    store = open_store(experiment_url(folder, name))
    newest = max(store.ids())
    fetch_s = statistics.median(_fetch_s(context, store, newest) for _ in range(context.sizes["rounds"]))
    return {
        "copy_s": taken["copy"],
        "synced_copy_s": taken["synced_copy"],
        "save_s": taken["save"],
        "save_over_copy": taken["save"] / taken["copy"],
        "save_over_synced_copy": taken["save"] / taken["synced_copy"],
        "fetch_s": fetch_s,
        "fetch_over_copy": fetch_s / taken["copy"],
    }


def _fetch_s(context: Context, store: CheckpointStore, checkpoint: CheckpointId) -> float:
    target = context.folder / "fetched"
    begin = time.monotonic()
    store.fetch(checkpoint, target)
    taken_s = time.monotonic() - begin
    shutil.rmtree(target)
    return taken_s
