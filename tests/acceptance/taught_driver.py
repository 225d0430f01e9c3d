"""The driver of an experiment that has learnt from another one: a program of its own, which a test kills."""

from __future__ import annotations

import sys

import trainables

import mqtune


def taught(name: str, broker: str, old: str, max_concurrent: int = 1) -> mqtune.Tuner:
    """A tuner whose trials never report, so that what is suggested depends on what was learnt alone."""
    return mqtune.Tuner(
        trainables.silent,
        {"x": mqtune.uniform(0, 1)},
        metric="loss",
        mode="min",
        max_trials=9,
        seed=3,
        name=name,
        backend=broker,
        searcher=mqtune.WarmStart([old], "tpe"),
        run=mqtune.RunOptions(progress=False, max_concurrent=max_concurrent),
    )


if __name__ == "__main__":
    taught(*sys.argv[1:]).run()
