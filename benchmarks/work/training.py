"""Real trainings under ASHA, each in a user's script: a tuner's overhead and memory."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.measurement import Context, Figures
from benchmarks.processes import await_descendants, become_subreaper, descendants, pss_mb
from benchmarks.training.lines import Line, Settings, read_lines
from benchmarks.work.base import Figure, Workload

__all__ = ["MEMORY", "PREFIX", "TIME", "TRAININGS", "WORKLOADS", "Training", "figures", "measure", "measure_memory"]

SCRIPTS: Final = Path(__file__).parent.parent / "training" / "scripts"
PREFIX: Final = "training"
#: A training's two workloads, behind its name.
TIME: Final = "time"
MEMORY: Final = "memory"
#: One thread for each trial in all systems and in the bare loop, because there are as many slots as cores.
ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1"}
#: Trials of each slot before the parked ones: enough for a system to do everything once.
TRIALS_BEFORE: Final = 2
#: For processes that end or shrink shortly after the trials.
SETTLE_S: Final = 2.0
#: Patience with processes that the script leaves behind. Their processor time counts.
GOODBYE_S: Final = 10.0
POLL_S: Final = 0.05
#: The script's output, and the number of its last lines in an error.
OUTPUT_NAME: Final = "script.txt"
TAIL_LINES: Final = 9


class Training(NamedTuple):
    """A module of ``benchmarks.training``, and the packages that it imports."""

    name: str
    title: str
    module: str
    packages: tuple[str, ...]


TRAININGS: Final = (
    Training("pytorch", "PyTorch", "pytorch", ("torch", "sklearn")),
    Training("lightning", "Lightning", "lightning_module", ("lightning", "torch", "sklearn")),
    Training("perceptron", "scikit-learn's MLP", "perceptron", ("sklearn",)),
    Training("xgboost", "XGBoost", "xgboost_rounds", ("xgboost", "sklearn")),
    Training("open_file", "slow import with an open file", "open_file", ()),
)


def _workloads() -> Iterator[Workload]:
    for training in TRAININGS:
        title = training.title
        yield Workload(
            name=f"{PREFIX}/{training.name}/{TIME}",
            sizes={"trials": 40, "slots": 2, "epochs": 27},
            quick_sizes={"trials": 4, "epochs": 3},
            figures={
                "wall_over_ideal": Figure(f"{title}: wall / ideal, from the first report on", "×"),
                "cpu_over_bare": Figure(f"{title}: processor time / that of the bare loop", "×"),
                "first_report_s": Figure(f"{title}: script start to first report", "s"),
                "to_epoch_ms": Figure(f"{title}: a trial's last line to the next one's first epoch, p50", "ms"),
            },
            packages=training.packages,
        )
        yield Workload(
            name=f"{PREFIX}/{training.name}/{MEMORY}",
            sizes={"slots": 2},
            quick_sizes={"slots": 2},
            figures={
                "busy_pss_mb": Figure(f"{title}: memory at work, PSS", "MB"),
                "ready_s": Figure(f"{title}: script start until each slot trains", "s"),
            },
            packages=training.packages,
        )


WORKLOADS: Final = {workload.name: workload for workload in _workloads()}


class ScriptRun(NamedTuple):
    """A script's start (monotonic), and the processor time of all its processes."""

    started: float
    cpu_s: float


def measure(training: Training, script: str, *arguments: str) -> Callable[[Context], Figures]:
    """Return a measurement that runs a script, and then the same epochs in a bare loop."""

    def measure(context: Context) -> Figures:
        settings = Settings(training=training.module, folder=str(context.folder), **context.sizes)
        run = _run(settings, script, *arguments)
        lines = read_lines(context.folder)
        bare_folder = context.folder / "bare"
        bare_folder.mkdir()
        bare_settings = Settings(training=training.module, folder=str(bare_folder), **context.sizes)
        bare = _run(bare_settings, "run_bare.py", json.dumps(_trained(lines)))
        return figures(lines, run.started, slots=settings.slots, trials=settings.trials) | {
            "cpu_over_bare": run.cpu_s / bare.cpu_s
        }

    return measure


def _run(settings: Settings, script: str, *arguments: str) -> ScriptRun:
    """Run a script to its end, and wait for all its descendants."""
    become_subreaper()
    before_s = _children_s()
    started = time.monotonic()
    process = _start(settings, script, *arguments)
    process.wait()
    _check_end(process, settings)
    await_descendants(GOODBYE_S)
    return ScriptRun(started, _children_s() - before_s)


def _start(settings: Settings, script: str, *arguments: str) -> subprocess.Popen[bytes]:
    with (Path(settings.folder) / OUTPUT_NAME).open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(SCRIPTS / script), *arguments],
            cwd=settings.folder,
            env={**os.environ, **ENVIRONMENT, **settings.variables()},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _check_end(process: subprocess.Popen[bytes], settings: Settings) -> None:
    """Check that an ended script has succeeded.

    Raises:
        RuntimeError: its exit code is not 0; the text has its last lines.
    """
    if process.returncode:
        output = (Path(settings.folder) / OUTPUT_NAME).read_text(errors="replace").splitlines()
        tail = "\n".join(output[-TAIL_LINES:])
        raise RuntimeError(f"the script ended with exit code {process.returncode}\n{tail}")


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _trained(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Return the trials in the order of their beginnings, each with its number of epochs."""
    epochs = [line.trial for line in lines if line.what == "epoch"]
    return [(line.trial, epochs.count(line.trial)) for line in lines if line.what == "begin" and line.trial in epochs]


def figures(lines: Sequence[Line], started: float, *, slots: int, trials: int) -> Figures:
    """Return the figures of a run's lines. The ideal is the epochs' own time over the slots.

    Raises:
        RuntimeError: not all trials have trained.
    """
    epochs = [line for line in lines if line.what == "epoch"]
    trained = {line.trial for line in epochs}
    if len(trained) < trials:
        raise RuntimeError(f"{len(trained)} of {trials} trials have trained")
    first_report, last_end = min(line.ended for line in epochs), max(line.ended for line in lines)
    own_s = sum(max(0.0, line.ended - max(line.began, first_report)) for line in epochs)
    return {
        "wall_over_ideal": (last_end - first_report) / (own_s / slots),
        "first_report_s": first_report - started,
    } | _handover(lines, slots)


def _handover(lines: Sequence[Line], slots: int) -> Figures:
    """Return the median time from a trial's last line to the next one's first epoch.

    With two slots the third trial begins after the first end, the fourth after the second, and so on.
    """
    begins = sorted((line for line in lines if line.what == "begin"), key=lambda line: line.began)
    last: dict[int, float] = {}
    first_epoch: dict[int, float] = {}
    for line in lines:
        last[line.trial] = max(line.ended, last.get(line.trial, line.ended))
        if line.what == "epoch":
            first_epoch.setdefault(line.trial, line.began)
    gaps = [
        first_epoch[begin.trial] - end
        for end, begin in zip(sorted(last.values()), begins[slots:], strict=False)
        if begin.trial in first_epoch
    ]
    return {"to_epoch_ms": statistics.median(gaps) * 1000} if gaps else {}


def measure_memory(training: Training, script: str, *arguments: str) -> Callable[[Context], Figures]:
    """Return a measurement of all processes' memory while each slot has a trial in training."""

    def measure(context: Context) -> Figures:
        slots = context.sizes["slots"]
        settings = Settings(
            training=training.module,
            folder=str(context.folder),
            trials=slots * (TRIALS_BEFORE + 1),
            slots=slots,
            epochs=1,
            parked=slots,
        )
        become_subreaper()
        started = time.monotonic()
        process = _start(settings, script, *arguments)
        while len(list(context.folder.glob("ready-*"))) < slots:
            if process.poll() is not None:
                _check_end(process, settings)
                raise RuntimeError("the script has ended too early")
            time.sleep(POLL_S)
        time.sleep(SETTLE_S)
        busy_mb = pss_mb(descendants(os.getpid()))
        (context.folder / "release").touch()
        process.wait()
        _check_end(process, settings)
        await_descendants(GOODBYE_S)
        firsts = sorted(line.began for line in read_lines(context.folder) if line.what == "epoch")
        return {"busy_pss_mb": busy_mb, "ready_s": firsts[slots - 1] - started}

    return measure
