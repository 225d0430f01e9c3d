"""Two workers with one slot each, as on two machines, and tuners on them."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from running import running_worker

import mqtune
from mqtune.core.errors import MqtuneError
from mqtune.core.trial import Trial, TrialStatus
from mqtune.testing.backends.world import Nothing, drive

#: A shape that no other test's worker has.
SLOT = mqtune.Resources(cpus=5)
OPTIONS = ("--gpus", "0", "--slots", "1", "--cpus", "5")
ENDLESS = 100_000
SPACE = {"lr": mqtune.uniform(0, 10), "steps": mqtune.randint(0, ENDLESS + 1), "step_s": mqtune.uniform(0, 60)}

Tune = Callable[..., mqtune.Tuner]

_names = itertools.count(1)


def counting(steps: int = ENDLESS, *, lr: float = 1.0, step_s: float = 0.05) -> dict[str, Any]:
    """The config of a trial that counts up by lr, so often."""
    return {"lr": float(lr), "steps": steps, "step_s": float(step_s)}


@contextlib.contextmanager
def workers(broker: str, folder: Path, **given: Any) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a function that starts a worker by name, with more options."""
    with contextlib.ExitStack() as stack:

        def start(name: str, *more: str, options: Sequence[str] = OPTIONS) -> subprocess.Popen[bytes]:
            log = folder / f"{name}.log"
            return stack.enter_context(running_worker(broker, log, *options, *more, name=name, **given))

        yield start


@contextlib.contextmanager
def tuners(broker: str, store: Path) -> Iterator[Tune]:
    """Yield a function that builds tuners from a trainable and its first configs. Stop all trials afterwards."""
    built: list[mqtune.Tuner] = []

    def tune(trainable: Any, *configs: dict[str, Any], store: Path | None = store, **options: Any) -> mqtune.Tuner:
        first = mqtune.InitialPoints(configs)
        checkpoints = options.get("checkpoints", mqtune.Checkpoints())
        given = {"searcher": first, "max_trials": len(configs)} if configs else {"searcher": Nothing()}
        settings = {
            "space": SPACE,
            "metric": "loss",
            "mode": "min",
            "resources": SLOT,
            "backend": broker,
            "name": f"pair-{os.getpid()}-{next(_names)}",
            **given,
            **options,
            "checkpoints": checkpoints if checkpoints.store else replace(checkpoints, store=store),
            "run": replace(options.get("run", mqtune.RunOptions()), progress=False),
        }
        built.append(mqtune.Tuner(trainable, **settings))
        return built[-1]

    yield tune
    for tuner in built:
        with contextlib.suppress(MqtuneError):
            if any(not trial.status.is_terminal for trial in tuner.get_trials()):
                tuner.stop_all("the test is over")
                drive(tuner, lambda tuner=tuner: not tuner.busy_trials)
        tuner.close()


def both_run(tuner: mqtune.Tuner, reports: int = 3) -> tuple[Trial, Trial]:
    drive(tuner, lambda: sum(trial.attempt.reports >= reports for trial in tuner.get_trials()) == 2)
    first, second = tuner.get_trials()
    return first, second


def finished(tuner: mqtune.Tuner) -> list[Trial]:
    drive(tuner, lambda: tuner.is_finished)
    return tuner.get_trials()


def rows(tuner: mqtune.Tuner, trial: Trial, attempt: int) -> list[dict[str, Any]]:
    """Return the metrics of an attempt's reports, with late reports."""
    return [report.metrics for report in tuner.results().reports(trial.id) if report.attempt == attempt]


def paused(tuner: mqtune.Tuner, trial: Trial) -> Trial:
    """Pause a trial, and return it when its process is gone."""
    tuner.trial(trial).pause()
    drive(tuner, lambda: trial.status is TrialStatus.PAUSED)
    return trial
