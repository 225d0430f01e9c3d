"""A driver whose short trials go on for ever, on a fleet that it shares: a program of its own, which can be killed."""

from __future__ import annotations

import sys

import trainables

import mqtune
from mqtune.core.timing import Timing

if __name__ == "__main__":
    broker, name, cpus, demand_s = sys.argv[1:]
    mqtune.Tuner(
        trainables.as_long_as_it_says,
        {"seconds": 0.2},
        metric="loss",
        mode="min",
        max_trials=9999,
        resources=mqtune.Resources(cpus=int(cpus)),
        backend=broker,
        name=name,
        run=mqtune.RunOptions(progress=False, timing=Timing(lock_s=float(demand_s), keep_lock_s=0.5)),
    ).run()
