"""Objectives as Optuna's users write them, on workers."""

from __future__ import annotations

import os
import time

import optuna


def by_run(trial: optuna.Trial) -> float:
    """All kinds of parameters, some of which others call for; what it was given comes back as attributes."""
    kind = trial.suggest_categorical("kind", ["none", None, True, 2, 2.5])
    depth = trial.suggest_int("depth", 1, 32, log=True)
    trial.set_user_attr("pid", os.getpid())
    trial.set_user_attr("seen", {"number": trial.number, "kind": kind, "direction": trial.study.direction.name})
    total = 0.0
    for layer in range(depth % 3):
        total += trial.suggest_int(f"units{layer}", 4, 128, step=4)
        assert trial.suggest_int(f"units{layer}", 4, 128, step=4) == trial.params[f"units{layer}"]
    if kind == "none":
        total += trial.suggest_float("rate", 1e-5, 1e-1, log=True)
    return total + trial.suggest_float("q", 0, 1, step=0.25)


def curve(trial: optuna.Trial) -> float:
    height = trial.suggest_float("height", 0, 1)
    value = 1.0
    for step in range(1, 10):
        value = height + 1 / step
        trial.report(value, step)
        if trial.should_prune():
            raise optuna.TrialPruned(f"at {step}")
    return value


def slow(trial: optuna.Trial) -> float:
    x = trial.suggest_float("x", 0, 1)
    for step in range(10):
        trial.report(x, step)
        time.sleep(0.06)
    y = trial.suggest_float("y", 0, 1)
    return x + y


def odd(trial: optuna.Trial) -> object:
    """What the study says of odd endings, by the trial's number."""
    what = trial.suggest_int("what", 0, 9)
    endings = [float("nan"), None, "text", (1.0, 2.0), 3, float("inf")]
    if what < len(endings):
        return endings[what]
    if what == 6:
        raise KeyError("caught")
    raise LookupError("not caught")


def stoppable(trial: optuna.Trial) -> float:
    """The first ends soon; any other goes on for ever, unless it is stopped."""
    x = trial.suggest_float("x", 0, 1)
    step = 0
    while trial.number or step < 20:
        trial.report(x, step := step + 1)
        time.sleep(0.05)
    return x
