"""Real trainings under ASHA, each as a user's script: what a tuner adds to the training, and what it holds in memory."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.measurement import Context, Figures
from benchmarks.processes import Memory, await_descendants, become_subreaper, descendants, memory_of
from benchmarks.training.lines import Line, Settings, read_lines
from benchmarks.work.base import Figure, Over, Workload

__all__ = ["MEMORY", "PREFIX", "TIME", "TRAININGS", "WORKLOADS", "Training", "figures", "measure", "measure_memory"]

SCRIPTS: Final = Path(__file__).parent.parent / "training" / "scripts"
PREFIX: Final = "training"
#: A training's two workloads, behind its name.
TIME: Final = "time"
MEMORY: Final = "memory"
#: As many slots as the machine has cores, so a thread for each trial, in all systems and in the bare loop.
ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1"}
SLOTS: Final = 2
#: From which trial on it counts what one takes that is not the first of its kind.
THIRD: Final = 2
#: How many trials each slot has before those that are parked: a system has then done all that it does once.
TRIALS_BEFORE: Final = 2
#: For processes that end or shrink a moment after the trials.
SETTLE_S: Final = 2.0
#: How long what the script leaves behind may take to end by itself; its processor time counts.
GOODBYE_S: Final = 10.0
LOOK_S: Final = 0.05
#: What a script prints, and how much of it is shown where it fails.
OUTPUT_NAME: Final = "script.txt"
TAIL_LINES: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A module of ``benchmarks.training``, and what mqtune must reach with it."""

    name: str
    title: str
    module: str
    packages: tuple[str, ...]
    trials: int = 40
    bars: Mapping[str, float] = field(default_factory=dict)


TRAININGS: Final = {
    training.name: training
    for training in (
        Training(
            name="pytorch",
            title="PyTorch",
            module="pytorch",
            packages=("torch", "sklearn"),
            bars={"wall_over_ideal": 1.3, "to_epoch_ms": 30.0},
        ),
        Training(
            name="lightning",
            title="Lightning",
            module="lightning_module",
            packages=("lightning", "torch", "sklearn"),
        ),
        Training(name="perceptron", title="scikit-learn's MLP", module="perceptron", packages=("sklearn",)),
        Training(name="xgboost", title="XGBoost", module="xgboost_rounds", packages=("xgboost", "sklearn")),
    )
}
MODULES_BAR: Final = 10.0


def _figures(training: Training) -> Iterator[tuple[str, Figure]]:
    bar, title = training.bars.get, training.title
    yield (
        "wall_over_ideal",
        Figure(
            unit="×",
            higher_is_better=False,
            title=f"{title}: wall / ideal, from the first report on",
            bar=bar("wall_over_ideal"),
        ),
    )
    yield "script_over_ideal", Figure(unit="×", higher_is_better=False, title=f"{title}: the whole script / ideal")
    over = {"function": (Over(system="optuna", variant="processes", bar=1.5),)} if training.name == "pytorch" else None
    yield (
        "cpu_over_bare",
        Figure(
            unit="×",
            higher_is_better=False,
            title=f"{title}: processor time / that of the bare loop",
            over=over,
        ),
    )
    yield "first_report_s", Figure(unit="s", higher_is_better=False, title=f"{title}: script start to first report")
    yield (
        "to_epoch_ms",
        Figure(
            unit="ms",
            higher_is_better=False,
            title=f"{title}: a trial's last line to the next one's first epoch, p50",
            bar=bar("to_epoch_ms"),
        ),
    )
    yield (
        "to_trial_ms",
        Figure(unit="ms", higher_is_better=False, title=f"{title}: … and to the first line of its function, p50"),
    )
    yield (
        "modules",
        Figure(
            unit="",
            higher_is_better=False,
            title=f"{title}: modules imported in the third trial",
            bar=MODULES_BAR,
        ),
    )
    yield "modules_later", Figure(unit="", higher_is_better=False, shown=False)
    yield (
        "trials_a_process",
        Figure(
            unit="",
            higher_is_better=True,
            title=f"{title}: trials a process",
        ),
    )
    for name in ("wall_s", "script_s", "own_s", "bare_own_s", "cpu_s", "bare_cpu_s"):
        yield name, Figure(unit="s", higher_is_better=False, shown=False)
    for name in ("trials", "epochs"):
        yield name, Figure(unit="", higher_is_better=None, shown=False)


def _memory_figures(training: Training) -> Iterator[tuple[str, Figure]]:
    title = training.title
    # Eight slots import once.
    over = {"function, 8 slots": (Over(system="mqtune", variant="function, 1 slot", bar=1.5),)}
    ready = {"function, 8 slots": (Over(system="mqtune", variant="function, 1 slot", bar=1.3),)}
    barred = training.name == "pytorch"
    yield (
        "idle_pss_mb",
        Figure(unit="MB", higher_is_better=False, title=f"{title}: memory idle, PSS", over=over if barred else None),
    )
    yield "busy_pss_mb", Figure(unit="MB", higher_is_better=False, title=f"{title}: memory at work, PSS")
    yield (
        "ready_s",
        Figure(
            unit="s",
            higher_is_better=False,
            title=f"{title}: script start until each slot trains",
            over=ready if barred else None,
        ),
    )
    for name in ("idle_processes", "busy_processes"):
        yield name, Figure(unit="", higher_is_better=None, shown=False)


def _workloads() -> Iterator[Workload]:
    for training in TRAININGS.values():
        yield Workload(
            name=f"{PREFIX}/{training.name}/{TIME}",
            title=f"{training.title}: {training.trials} trials of at most 27 epochs under ASHA",
            sizes={"trials": training.trials, "slots": SLOTS, "epochs": 27},
            quick_sizes={"trials": 4, "epochs": 3},
            figures=dict(_figures(training)),
            packages=training.packages,
        )
        yield Workload(
            name=f"{PREFIX}/{training.name}/{MEMORY}",
            title=f"{training.title}: memory of all processes",
            sizes={"slots": SLOTS},
            quick_sizes={"slots": SLOTS},
            figures=dict(_memory_figures(training)),
            packages=training.packages,
        )


WORKLOADS: Final = {workload.name: workload for workload in _workloads()}


class ScriptRun(NamedTuple):
    """When a script was started and had exited (monotonic), and the processor time of all its processes."""

    started: float
    exited: float
    cpu_s: float


def measure(training: Training, script: str, *arguments: str) -> Callable[[Context], Figures]:
    """Return a measurement that runs a script, and then the same trials for as many epochs in a bare loop."""

    def measure(context: Context) -> Figures:
        settings = _settings(training, context.folder, context.sizes, trials=context.sizes["trials"])
        run = _run(settings, script, *arguments)
        lines = read_lines(context.folder)
        (context.folder / "bare").mkdir()
        bare_settings = _settings(training, context.folder / "bare", context.sizes, trials=settings.trials)
        bare = _run(bare_settings, "run_bare.py", json.dumps(_trained(lines)))
        return figures(lines, run, slots=settings.slots, trials=settings.trials) | _over_bare(
            run, read_lines(context.folder / "bare"), bare
        )

    return measure


def _settings(training: Training, folder: Path, sizes: Mapping[str, int], *, trials: int, parked: int = 0) -> Settings:
    return Settings(
        training=training.module,
        folder=str(folder),
        trials=trials,
        slots=sizes["slots"],
        epochs=1 if parked else sizes["epochs"],
        parked=parked,
    )


def _run(settings: Settings, script: str, *arguments: str) -> ScriptRun:
    """Run a script to its end, and wait for all that it has started."""
    become_subreaper()
    before_s = _children_s()
    started = time.monotonic()
    process = _start(settings, script, *arguments)
    process.wait()
    exited = time.monotonic()
    _check_end(process, settings)
    await_descendants(GOODBYE_S)
    return ScriptRun(started, exited, _children_s() - before_s)


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
    """Take the end of a script whose exit code is not 0 for a failure, which its last lines explain.

    Raises:
        RuntimeError: it is.
    """
    if process.returncode:
        output = (Path(settings.folder) / OUTPUT_NAME).read_text(errors="replace").splitlines()
        tail = "\n".join(output[-TAIL_LINES:])
        raise RuntimeError(f"the script ended with exit code {process.returncode}\n{tail}")


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _trained(lines: Sequence[Line]) -> list[tuple[int, int]]:
    """Return the trials in the order in which they began, each with the number of its epochs."""
    epochs = [line.trial for line in lines if line.what == "epoch"]
    return [(line.trial, epochs.count(line.trial)) for line in lines if line.what == "begin" and line.trial in epochs]


def figures(lines: Sequence[Line], run: ScriptRun, *, slots: int, trials: int) -> Figures:
    """Return the figures that the lines of a run have; ideal is the epochs' own time, shared out to the slots.

    Raises:
        RuntimeError: not all trials have trained.
    """
    epochs = [line for line in lines if line.what == "epoch"]
    begins = sorted((line for line in lines if line.what == "begin"), key=lambda line: line.began)
    if len({line.trial for line in epochs}) < trials:
        raise RuntimeError(f"{len({line.trial for line in epochs})} of {trials} trials have trained")
    first_report, last_end = min(line.ended for line in epochs), max(line.ended for line in lines)
    after_s = sum(max(0.0, line.ended - max(line.began, first_report)) for line in epochs)
    own_s = _own_s(lines)
    found = {
        "wall_over_ideal": (last_end - first_report) / (after_s / slots),
        "script_over_ideal": (run.exited - run.started) / (own_s / slots),
        "first_report_s": first_report - run.started,
        "trials_a_process": len(begins) / len({line.pid for line in begins}),
        "wall_s": last_end - first_report,
        "script_s": run.exited - run.started,
        "own_s": own_s,
        "trials": len(begins),
        "epochs": len(epochs),
    }
    return found | _handovers(lines, begins, slots) | _modules(lines, begins)


def _own_s(lines: Sequence[Line]) -> float:
    return sum(line.ended - line.began for line in lines if line.what == "epoch")


def _handovers(lines: Sequence[Line], begins: Sequence[Line], slots: int) -> Figures:
    """Return the median times from a trial's last line to the next one's first, and to its first epoch.

    No more trials run at once than there are slots: with two the third begins behind the first end, the fourth behind the
    second, and so on.
    """
    last: dict[int, float] = {}
    first_epoch: dict[int, float] = {}
    for line in lines:
        last[line.trial] = max(line.ended, last.get(line.trial, line.ended))
        if line.what == "epoch":
            first_epoch.setdefault(line.trial, line.began)
    nexts = begins[max(slots, THIRD) :]
    pairs = list(zip(sorted(last.values())[max(0, THIRD - slots) :], nexts, strict=False))
    if not pairs:
        return {}
    return {
        "to_trial_ms": statistics.median(begin.began - end for end, begin in pairs) * 1000,
        "to_epoch_ms": statistics.median(
            first_epoch[begin.trial] - end for end, begin in pairs if begin.trial in first_epoch
        )
        * 1000,
    }


def _modules(lines: Sequence[Line], begins: Sequence[Line]) -> Figures:
    """Return how many modules the third trial has imported, and in the median those from the third on."""
    at_end = {line.trial: line.modules for line in lines}
    imported = [at_end[begin.trial] - begin.modules for begin in begins[THIRD:]]
    return {"modules": imported[0], "modules_later": statistics.median(imported)} if imported else {}


def _over_bare(run: ScriptRun, bare_lines: Sequence[Line], bare: ScriptRun) -> Figures:
    return {
        "cpu_over_bare": run.cpu_s / bare.cpu_s,
        "cpu_s": run.cpu_s,
        "bare_cpu_s": bare.cpu_s,
        "bare_own_s": _own_s(bare_lines),
    }


def measure_memory(training: Training, script: str, *arguments: str) -> Callable[[Context], Figures]:
    """Return a measurement of memory while each slot has a trial in the midst of its training, and when all have ended."""

    def measure(context: Context) -> Figures:
        slots = context.sizes["slots"]
        trials = slots * (TRIALS_BEFORE + 1)
        settings = _settings(training, context.folder, context.sizes, trials=trials, parked=slots)
        become_subreaper()
        started = time.monotonic()
        process = _start(settings, script, *arguments)
        busy = _memory_when(lambda: len(list(context.folder.glob("ready-*"))) == slots, process, settings)
        (context.folder / "release").touch()
        idle = _memory_when((context.folder / "idle").exists, process, settings)
        (context.folder / "leave").touch()
        process.wait()
        _check_end(process, settings)
        await_descendants(GOODBYE_S)
        lines = read_lines(context.folder)
        firsts = sorted(line.began for line in lines if line.what == "epoch")
        return {
            "idle_pss_mb": idle.pss_mb,
            "busy_pss_mb": busy.pss_mb,
            "ready_s": firsts[slots - 1] - started,
            "idle_processes": idle.processes,
            "busy_processes": busy.processes,
        }

    return measure


def _memory_when(is_time: Callable[[], bool], process: subprocess.Popen[bytes], settings: Settings) -> Memory:
    """Add up all processes of the script, a moment after it is time.

    Raises:
        RuntimeError: the script has ended.
    """
    while not is_time():
        if process.poll() is not None:
            _check_end(process, settings)
            raise RuntimeError("the script has ended too early")
        time.sleep(LOOK_S)
    time.sleep(SETTLE_S)
    return memory_of(descendants(os.getpid()))
