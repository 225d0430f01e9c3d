"""A driver whose short trials go on for ever, on a fleet that it shares: a program of its own, which can be killed."""

from __future__ import annotations

import sys

import trainables

import mqtune
import mqtune.driver.timers
from mqtune.journal import demands

if __name__ == "__main__":
    broker, name, cpus, demand_s = sys.argv[1:]
    demands.DEMAND_S = float(demand_s)
    mqtune.driver.timers.KEEP_LOCK_S = 0.5
    mqtune.Tuner(
        trainables.as_long_as_it_says,
        {"seconds": 0.2},
        metric="loss",
        mode="min",
        max_trials=9999,
        resources=mqtune.Resources(cpus=int(cpus)),
        backend=broker,
        name=name,
        run=mqtune.RunOptions(progress=False),
    ).run()
