"""An experiment that is written into another tool: one trial that completes, and one that fails after its last report."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import mqtune


def objective(config: dict[str, Any]) -> None:
    """Never run: its workers are simulated."""


def curve(config: dict[str, Any]) -> Iterator[tuple[float, dict[str, object] | Exception]]:
    for epoch in range(1, 4):
        yield 1.0, {"loss": math.nan if epoch == 1 else config["x"] / epoch, "val": {"top@5": 0.5}, "note": "text"}
    if config["x"] > 0.8:
        yield 1.0, RuntimeError("bad luck")


def tuner(logger: mqtune.Callback, backend: mqtune.Simulated | None = None) -> mqtune.Tuner:
    return mqtune.Tuner(
        objective,
        {"x": mqtune.grid_search([0.5, 0.9]), "layers": {"widths": mqtune.choice([[32, 8]])}},
        metric="loss",
        mode="min",
        name="mine",
        backend=backend or mqtune.Simulated(curve),
        run=mqtune.RunOptions(progress=False, callbacks=[logger]),
    )
