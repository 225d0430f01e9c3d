"""One driver of several experiments: a program of its own, which is killed, and whose heir makes the same tuners."""

from __future__ import annotations

import sys
from typing import Any, Final

import trainables_saving as saving

import mqtune

MAX_T: Final = 9
TRIALS: Final = 9
_SPACE: Final[dict[str, Any]] = {"lr": mqtune.uniform(0, 10), "steps": MAX_T, "step_s": 0.01}
_REPEATED: Final[dict[str, Any]] = {**_SPACE, "lr": mqtune.choice([1.0, 2.0, 3.0]), "steps": mqtune.randint(2, 20)}

SCHEDULERS: Final = {
    "pasha": lambda: mqtune.PASHA(MAX_T),
    "rush": lambda: mqtune.RUSH(MAX_T, candidates=2),
    "cost": lambda: mqtune.PromotionASHA(MAX_T, cost="time_total_s"),
    "halving": lambda: mqtune.HyperBand(MAX_T, brackets=1, scope="last-3-avg"),
    "repeater": mqtune.FIFO,
}


def tuners(broker: str, name: str) -> dict[str, mqtune.Tuner]:
    """Return a tuner for each scheduler, and one for a Repeater."""
    return {
        kind: mqtune.Tuner(
            saving.CountsInDict,
            _REPEATED if kind == "repeater" else _SPACE,
            metric="loss",
            mode="min",
            max_trials=TRIALS,
            searcher=mqtune.Repeater("lr") if kind == "repeater" else None,
            scheduler=make(),
            resources=mqtune.Resources(cpus=5),
            backend=broker,
            name=f"{name}-{kind}",
            seed=5,
            process=mqtune.Process(sync="lockstep"),
            run=mqtune.RunOptions(progress=False, max_concurrent=1),
        )
        for kind, make in SCHEDULERS.items()
    }


def drive_all(driven: dict[str, mqtune.Tuner]) -> None:
    """Drive them by turns, to the end of all."""
    while any(not tuner.is_finished for tuner in driven.values()):
        for tuner in driven.values():
            if not tuner.is_finished:
                tuner.step(0.01)


if __name__ == "__main__":
    drive_all(tuners(*sys.argv[1:]))
