"""What becomes of reports while Redis is away: ``python -m tests.chaos.outage --seconds 30``.

Trials report on while the server is killed, and frozen. Each report has a number and a time of the worker's, so that the
journal shows afterwards which were made meanwhile, and whether one is lost or there twice.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import msgpack

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import times  # noqa: E402 - found only now
from campaign import plan_of  # noqa: E402
from claims import Claims  # noqa: E402
from observed import Observed, Violation, decoded, rows  # noqa: E402
from world import World  # noqa: E402

_TRIALS: Final = 4
#: Some 80 reports a second from each trial, of some 200 bytes.
_EPOCH_S: Final = 0.0125
#: What is waited before an outage, and after, so that all that waits has come.
_CALM_S: Final = 5.0
#: More than any measurement lasts.
_ENDLESS: Final = 10_000_000
#: An attempt's start, and its first report, on a busy machine.
_SOON_S: Final = 60.0


def main() -> int:
    """Measure, and print the figures as JSON; 1 if a report is lost or there twice, or a trial was disturbed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.outage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    figures = {
        "killed and restarted": measure(_killed, given.seconds),
        "frozen": measure(_frozen, given.seconds),
    }
    print(json.dumps(figures, indent=1))
    return 1 if any(each["violations"] or each["attempts"] != _TRIALS for each in figures.values()) else 0


def measure(fail: Callable[[World, float], None], seconds: float) -> dict[str, Any]:
    """Have Redis away for some seconds, and return what became of the reports."""
    with _endless_trials(_TRIALS, epoch_s=_EPOCH_S, seats=2, slots=2) as world:
        time.sleep(_CALM_S)
        begin = time.time()
        fail(world, seconds)
        end = time.time()
        time.sleep(_CALM_S)
        violations: list[Violation] = []
        observed = Observed(_entries(world), max_trials=_TRIALS, may_lose=False)
        claims = Claims(violations, observed)
        for entry in decoded(observed.entries, violations):
            claims.take(entry)
        arrived = [(at, row) for at, kind, body in _events(world) if kind == "reports" for row in rows(body)]
        meanwhile = [(at, row) for at, row in arrived if begin <= row.timestamp < end]
        return {
            "outage (s)": round(end - begin, 1),
            "reports": len(arrived),
            "made meanwhile, and arrived": len(meanwhile),
            "all of them there after (s)": round(max((at for at, _ in meanwhile), default=end) - end, 2),
            "report() waited for (s)": round(_longest_pause(arrived), 1),
            "attempts": sum(map(len, claims.attempts.values())),
            "violations": violations,
        }


@contextmanager
def _endless_trials(number: int, *, epoch_s: float, seats: int, slots: int) -> Iterator[World]:
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
            world.wait(lambda: len(_running(world)) == number, _SOON_S, "the trials did not report")
            yield world
        finally:
            world.close()


def _entries(world: World) -> list[tuple[str, bytes]]:
    """Return the journal so far."""
    client: Any = world.server.client
    return [(id_.decode(), fields[b"e"]) for id_, fields in client.xrange(world.experiments[0].keys.journal)]


def _events(world: World) -> list[tuple[float, str, Any]]:
    """Return the journal's events so far: when each was written, by the server's clock, its kind and its body."""
    return [(int(id_.split("-")[0]) / 1000, *msgpack.unpackb(data)[1:]) for id_, data in _entries(world)]


def _running(world: World) -> dict[str, str]:
    """Return the trials whose newest attempt has reported, and the workers that they are on."""
    found: dict[str, tuple[str, bool]] = {}
    for _, kind, body in _events(world):
        if kind == "started":
            found[body["trial"]] = body["worker"].partition("@")[0], False
        elif kind == "reports":
            for row in rows(body):
                found[row.trial] = found[row.trial][0], True
        elif kind == "ended":
            found.pop(body["trial"], None)
    return {trial: worker for trial, (worker, reports) in found.items() if reports}


def _longest_pause(arrived: list[tuple[float, Any]]) -> float:
    """Return the longest time between two reports of a trial: at most the outage, where its pipe was full."""
    last: dict[str, float] = {}
    longest = 0.0
    for _, row in arrived:
        longest = max(longest, row.timestamp - last.get(row.trial, row.timestamp))
        last[row.trial] = row.timestamp
    return longest


def _killed(world: World, seconds: float) -> None:
    world.server.kill()
    time.sleep(seconds)
    world.server.start()


def _frozen(world: World, seconds: float) -> None:
    server = world.server.process
    assert server is not None
    server.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    server.send_signal(signal.SIGCONT)
    world.server.wait_up()


if __name__ == "__main__":
    sys.exit(main())
