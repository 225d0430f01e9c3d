"""What becomes of reports while Redis is away: ``python -m tests.chaos.outage --seconds 30``.

Trials report on while the server is killed, and frozen. Each report has a number and a time of the worker's, so that the
journal shows afterwards which were made meanwhile, and whether one is lost or there twice.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

from claims import Claims  # noqa: E402 - found only now
from figures import endless_trials, entries, events  # noqa: E402
from observed import Observed, Violation, decoded, rows  # noqa: E402
from world import World  # noqa: E402

_TRIALS: Final = 4
#: Some 80 reports a second from each trial, of some 200 bytes.
_EPOCH_S: Final = 0.0125
#: What is waited before an outage, and after, so that all that waits has come.
_CALM_S: Final = 5.0


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
    with endless_trials(_TRIALS, epoch_s=_EPOCH_S, seats=2, slots=2) as world:
        time.sleep(_CALM_S)
        begin = time.time()
        fail(world, seconds)
        end = time.time()
        time.sleep(_CALM_S)
        violations: list[Violation] = []
        observed = Observed(entries(world), max_trials=_TRIALS, may_lose=False)
        claims = Claims(violations, observed)
        for entry in decoded(observed.entries, violations):
            claims.take(entry)
        arrived = [(at, row) for at, kind, body in events(world) if kind == "reports" for row in rows(body)]
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
