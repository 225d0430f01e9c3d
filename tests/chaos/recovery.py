"""How long a trial takes to report again when its worker is killed: ``python -m tests.chaos.recovery --rounds 20``.

Workers are killed (SIGKILL of the Celery process) while others have slots free, with mqtune's own times.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, Final

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import times  # noqa: E402 - found only now
from campaign import recoveries  # noqa: E402
from figures import endless_trials, events, running, spread  # noqa: E402

#: Each of three workers has two slots, so that what one of them ran finds room on the others.
_TRIALS: Final = 4
_EPOCH_S: Final = 0.05
#: What a recovery may take beyond the lease.
_BEYOND_S: Final = 2.0
#: For this long nobody is killed once all run again, so that deaths come anywhere between two heartbeats.
_CALM_S: Final = 4.0
_STUCK_S: Final = 120.0
#: A trial that is lost more often than five times is not run again.
_DEATHS_PER_WORLD: Final = 5


def main() -> int:
    """Measure, and print the figures as JSON; 1 if they miss the bar."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    figures = measure(given.rounds, Random(given.seed))
    print(json.dumps(figures, indent=1))
    return 0 if figures["longest"] <= figures["bar"] else 1


def measure(rounds: int, random: Random) -> dict[str, Any]:
    """Kill a worker *rounds* times, and return how long its trials took to report again, in seconds."""
    found: list[float] = []
    for first in range(0, rounds, _DEATHS_PER_WORLD):
        found += _deaths(min(_DEATHS_PER_WORLD, rounds - first), random)
    lease_s = times.lease_s(times.OWN)
    return {
        "deaths": rounds,
        "lease": lease_s,
        "bar": lease_s + _BEYOND_S,
        **spread([round(each, 3) for each in found]),
    }


def _deaths(count: int, random: Random) -> list[float]:
    killed: list[tuple[str, float]] = []
    with endless_trials(_TRIALS, epoch_s=_EPOCH_S, seats=3, slots=2) as world:
        for _ in range(count):
            time.sleep(random.uniform(0, _CALM_S))
            name = random.choice(sorted(set(running(world).values())))
            worker = next(each for each in world.living_workers() if each.name == name)
            worker.is_given_up = True
            # By the server's clock, which is this machine's.
            killed.append((name, time.time()))
            worker.process.kill()
            world.start_worker(worker.seat)
            world.wait(lambda: _all_report(running(world), name), _STUCK_S, f"the trials of {name} do not report")  # noqa: B023
        return recoveries(events(world), killed)


def _all_report(workers: dict[str, str], dead: str) -> bool:
    return len(workers) == _TRIALS and dead not in workers.values()


if __name__ == "__main__":
    sys.exit(main())
