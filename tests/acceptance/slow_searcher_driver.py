"""A driver of a scheduler of Syne Tune's whose searcher ponders in a thread; it writes down what is asked and decided, to be killed."""

from __future__ import annotations

import inspect
import json
import os
import random
import sys
import threading
import time
from typing import Any, Final

import trainables_syne_tune as trainables
from syne_tune.optimizer.baselines import ASHA

import mqtune
from mqtune.integrations.syne_tune import SyneTuneScheduler, config_space

#: How long a suggestion takes.
PONDERS_S: Final = 0.3
TRIALS: Final = 10
SPACE: Final = {"x": mqtune.uniform(0, 1), "epochs": 9, "step_s": 0.03}


def configs() -> list[float]:
    """What is suggested, in this order."""
    rng = random.Random(1)
    return [rng.random() for _ in range(TRIALS + 2)]


def say(*what: object) -> None:
    # In one piece, whenever this process is killed.
    os.write(1, f"{json.dumps(what)}\n".encode())


def theirs() -> Any:
    is_old = "trial_id" in inspect.signature(ASHA.suggest).parameters
    usual: dict[str, Any] = {"metric": "loss", "max_t": 9, "random_seed": 1}
    special = {"resource_attr": "epoch", "type": "promotion"} if is_old else {"time_attr": "epoch"}
    scheduler = ASHA(config_space(SPACE), **usual, **special)
    name, answers, decide = "get_config" if is_old else "suggest", iter(enumerate(configs())), scheduler.on_trial_result

    class Ponders(type(scheduler.searcher)):  # type: ignore[misc]
        """Is not known to be quick."""

    def ponder(*_: object, **__: object) -> dict[str, Any]:
        number, x = next(answers)
        is_apart = threading.current_thread() is not threading.main_thread()
        say("asked", number, is_apart)
        if is_apart:
            time.sleep(PONDERS_S)
        say("answered", number, is_apart)
        return {**SPACE, "x": x}

    def decided(trial: Any, result: dict[str, Any]) -> str:
        action: str = decide(trial, result)
        say("decided", trial.trial_id, result["epoch"], action)
        return action

    scheduler.searcher.__class__ = Ponders
    setattr(scheduler.searcher, name, ponder)
    scheduler.on_trial_result = decided
    return scheduler


def main(name: str, broker: str) -> None:
    mqtune.Tuner(
        trainables.epochs,
        SPACE,
        metric="loss",
        mode="min",
        max_trials=TRIALS,
        name=name,
        scheduler=SyneTuneScheduler(theirs()),
        backend=broker,
        run=mqtune.RunOptions(progress=False),
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
