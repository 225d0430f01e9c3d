"""The driver of an experiment that others steer: a program of its own, which goes on with what an earlier one left."""

from __future__ import annotations

import sys
from pathlib import Path

import trainables_saving as saving
from pair import SLOT, SPACE, counting

import mqtune

broker, name, store = sys.argv[1:]
mqtune.Tuner(
    saving.Counts,
    SPACE,
    metric="loss",
    mode="min",
    max_trials=2,
    searcher=mqtune.PointsFirst([counting(), counting()]),
    resources=SLOT,
    backend=broker,
    name=name,
    checkpoints=mqtune.Checkpoints(Path(store)),
    run=mqtune.RunOptions(progress=False),
).run()
