"""A driver script: the same experiment each time that it is run, with what its scheduler was shown written down."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import times
from counting import Counts, counts

import mqtune
from mqtune.core.errors import ConfigurationError, MqtuneError, RunInterrupted
from mqtune.core.trial import Decision, Report, Trial
from mqtune.journal.files import chapters
from mqtune.schedulers.base import Scheduler
from mqtune.services.shares import demands

#: How it ends: with an experiment that is finished, one that is to go on, or an error that mqtune explains.
FINISHED: Final = 0
TO_GO_ON: Final = 10
REFUSED: Final = 11
#: Has it go on with the experiment as whoever has lost the script does.
ATTACH: Final = "--attach"


class Told:
    """A file with a line for each call; what was written stays when the process is killed."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, what: str, *values: object) -> None:
        os.write(self._file, (json.dumps([round(time.monotonic(), 3), what, *values]) + "\n").encode())


class Watched(Scheduler):
    """A scheduler that writes down what it is told and what it returns."""

    def __init__(self, inner: Scheduler, told: Told) -> None:
        self._inner, self._told = inner, told
        self.asks_ahead = inner.asks_ahead
        self.check_space, self.choose, self.describe = inner.check_space, inner.choose, inner.describe

    def bind(self, metric: str, mode: str) -> None:
        super().bind(metric, mode)
        self._inner.bind(metric, mode)

    def on_queue(self, trial: Trial) -> None:
        self._told("stage", trial.id, trial.attempt.number)
        self._inner.on_queue(trial)

    def on_report(self, trial: Trial, report: Report) -> Decision:
        decision = self._inner.on_report(trial, report)
        self._told("report", trial.id, report.attempt, report.sequence, decision.action.value)
        return decision

    def on_trial_pause(self, trial: Trial) -> None:
        self._told("pause", trial.id)
        self._inner.on_trial_pause(trial)

    def on_trial_end(self, trial: Trial) -> None:
        self._told("end", trial.id, trial.status.name)
        self._inner.on_trial_end(trial)


def scheduler_of(plan: dict[str, Any]) -> Scheduler:
    steps = {"max_t": plan["epochs"], "time_attr": "step"}
    match plan["scheduler"]:
        case "ASHA":
            return mqtune.ASHA(grace_period=2, reduction_factor=3, **steps)
        case "PromotionASHA":
            return mqtune.PromotionASHA(grace_period=2, reduction_factor=2, **steps)
        case "HyperBand":
            return mqtune.HyperBand(**steps)
    return mqtune.PBT(3, {"x": mqtune.uniform(0, 1)}, seed=plan["seed"], time_attr="step")


def trainable_of(kind: str) -> Any:
    """Return what the workers run: a function, a class, a script, or a function in a module that meddles with signals."""
    if kind == "careless":
        # Only where it is wanted: it would meddle with the campaign's signals, too.
        import careless

        return careless.counts
    return {"function": counts, "class": Counts, "script": Path(__file__).with_name("counting_script.py")}[kind]


def tuner_of(plan: dict[str, Any], told: Told) -> mqtune.Tuner:
    space = {
        "x": mqtune.uniform(0, 1),
        "breaks_at": mqtune.choice(plan["breaks_at"]),
        "mischief": mqtune.choice(plan["mischief"]),
        **plan["constants"],
    }
    return mqtune.Tuner(
        trainable_of(plan["trainable"]),
        space,
        metric="loss",
        mode="min",
        searcher=plan["searcher"],
        scheduler=Watched(scheduler_of(plan), told),
        resources=mqtune.Resources(cpus=plan["cpus"], gpus=plan["gpus"], **plan["gang"]),
        max_trials=plan["max_trials"],
        failures=mqtune.Failures(
            max_failures=plan["max_failures"],
            on_driver_loss=plan["on_driver_loss"],
            driver_loss_grace_s=plan["driver_loss_grace_s"],
        ),
        process=mqtune.Process(sync=plan["sync"], reuse=plan["reuse"]),
        checkpoints=mqtune.Checkpoints(plan["store"]),
        backend=plan["broker"],
        run=mqtune.RunOptions(progress=False, timing=times.of_this_process(), **plan["standing"]),
        name=plan["name"],
        seed=plan["seed"],
    )


def attached(plan: dict[str, Any], told: Told) -> mqtune.Tuner:
    """Go on with what stands in Redis, or in this machine's copy; begin it if there is nothing yet."""
    scheduler = Watched(scheduler_of(plan), told)
    try:
        run = mqtune.RunOptions(progress=False, timing=times.of_this_process())
        return mqtune.Tuner.attach(plan["name"], backend=plan["broker"], run=run, scheduler=scheduler)
    except ConfigurationError as error:
        if not str(error).startswith("there is no experiment"):
            raise
        return tuner_of(plan, told)


def summary(tuner: mqtune.Tuner) -> dict[str, Any]:
    return {
        trial.id: {
            "status": trial.status.name,
            "reports": trial.reports,
            "attempts": [attempt.end.value if attempt.end else None for attempt in trial.attempts],
            "checkpoints": list(trial.checkpoints),
            "best": trial.best_value,
        }
        for trial in tuner.get_trials()
    }


def main(plan_path: Path, told_path: Path, results_path: Path, *how: str) -> int:
    plan = json.loads(plan_path.read_text())
    if host := os.environ.get("MQTUNE_CHAOS_HOST"):
        # As on another machine, where process numbers mean nothing.
        socket.gethostname = lambda: host
    if plan["chapter_bytes"]:
        chapters.CHAPTER_BYTES = plan["chapter_bytes"]
    if plan["ignores_quotas"]:
        demands.decoded_quotas = lambda pairs: {}
    told = Told(told_path)
    try:
        tuner = attached(plan, told) if ATTACH in how else tuner_of(plan, told)
        is_finished = False
        with suppress(RunInterrupted):
            tuner.run()
            # Whether that was right is the checker's to say: a request may have ended it before all trials have begun.
            is_finished = True
    except MqtuneError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return REFUSED
    if not is_finished:
        return TO_GO_ON
    draft = results_path.with_suffix(".new")
    draft.write_text(json.dumps(summary(tuner)))
    draft.replace(results_path)
    return FINISHED


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:4])))
