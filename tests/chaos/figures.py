"""What a measurement needs: endless trials on mqtune's own times, and how a spread of values is told."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import msgpack
import times
from campaign import plan_of
from observed import rows
from world import World

#: More than any measurement lasts.
_ENDLESS: Final = 10_000_000
#: An attempt's start, and its first report, on a busy machine.
_SOON_S: Final = 60.0


def spread(values: list[float]) -> dict[str, float]:
    """Return what a list of values is like; p99 is by the nearest rank, and so the highest of few."""
    if not values:
        return {}
    ordered = sorted(values)
    p99 = ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]
    return {"number": len(ordered), "p50": median(ordered), "p99": p99, "longest": ordered[-1]}


@contextmanager
def endless_trials(number: int, *, epoch_s: float, seats: int, slots: int) -> Iterator[World]:
    """Trials that report every *epoch_s* seconds, and save, on mqtune's own times; all is gone afterwards."""
    constants = {"epochs": _ENDLESS, "epoch_s": epoch_s, "saves": "dict", "every": 5}
    plan = {
        **plan_of(Random(1), 1),
        "name": "endless",
        "scheduler": "FIFO",
        "trainable": "function",
        "mischief": [""],
        "reuse": False,
        "chapter_bytes": 0,
        "epochs": _ENDLESS,
        "constants": constants,
        "breaks_at": [0],
        "max_trials": number,
        "max_failures": 0,
        "sync": "stream",
        "on_driver_loss": "continue",
    }
    with tempfile.TemporaryDirectory(prefix="mqtune-chaos-") as folder:
        world = World(Path(folder) / "run", [plan], times.OWN, seats=seats, slots=slots)
        try:
            world.start()
            world.start_driver()
            world.wait(lambda: len(running(world)) == number, _SOON_S, "the trials did not report")
            yield world
        finally:
            world.close()


def entries(world: World) -> list[tuple[str, bytes]]:
    """Return the journal so far."""
    client: Any = world.server.client
    return [(id_.decode(), fields[b"e"]) for id_, fields in client.xrange(world.experiments[0].keys.journal)]


def events(world: World) -> list[tuple[float, str, Any]]:
    """Return the journal's events so far: when each was written, by the server's clock, its kind and its body."""
    return [(int(id_.split("-")[0]) / 1000, *msgpack.unpackb(data)[1:]) for id_, data in entries(world)]


def running(world: World) -> dict[str, str]:
    """Return the trials whose newest attempt has reported, and the workers that they are on."""
    found: dict[str, tuple[str, bool]] = {}
    for _, kind, body in events(world):
        if kind == "started":
            found[body["trial"]] = body["worker"].partition("@")[0], False
        elif kind == "reports":
            for row in rows(body):
                found[row.trial] = found[row.trial][0], True
        elif kind == "ended":
            found.pop(body["trial"], None)
    return {trial: worker for trial, (worker, reports) in found.items() if reports}
