"""Executes a program once, before any trial, to find out how trials can execute it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.frozen_code import frozen, loaded_files, times_of
from mqtune.trainable.process import footprint
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import become_subreaper, end_children
from mqtune.trainable.process.environment import describe_environment
from mqtune.trainable.process.exits import forget_exit_handlers, leave
from mqtune.trainable.process.late_imports import Batch, ImportWatch, Looks
from mqtune.trainable.process.life import Executed
from mqtune.trainable.process.output import CapturedOutput
from mqtune.trainable.process.program import Program
from mqtune.trainable.process.protocol import describe_error
from mqtune.trainable.spec import extras_of

#: Times from which a program is slow. A slow program without traces is executed once for all trials. A quicker one is
#: executed by each trial's process, before the slot's previous trial has ended.
_SLOW_CPU_S: Final = 0.25
_SLOW_S: Final = 2.0
#: Traces that the previous trial may still need. Each trial executes the program at its own start.
_EXCLUSIVE: Final = frozenset({"device", "listener", "child"})
#: Maximum number of changed files in an error.
_MAX_DIFFERING: Final = 5
#: Characters of output in the error of a program that ended itself.
_MAX_TAIL_CHARS: Final = 2_000


class ScoutResult(TypedDict):
    """A scout's result: how a program can be executed for trials.

    Attributes:
        error: type and text of the program's error; None without one.
        batches: packages that the scout had to import.
        files: the user's code, with modification times.
        data: further user files that the program has read, with modification times.
        environment: the versions of everything.
        is_slow: whether each trial would spend much time on it.
        is_clean: whether a fork after it is safe.
        is_exclusive: whether it must not be executed while the previous trial runs.
        why: its traces in words; empty without one.
    """

    error: tuple[str, str] | None
    batches: Sequence[Batch]
    files: Sequence[tuple[str, int]]
    data: Sequence[tuple[str, int]]
    environment: dict[str, Any]
    is_slow: bool
    is_clean: bool
    is_exclusive: bool
    why: str
    seconds: float


def scout(channel: Channel, program: Program, looks: Looks, modules: Collection[str]) -> Executed | None:
    """Execute a program, send the verdict, and end this process or become the importer.

    *modules* are the names of modules that are not part of the program.
    """
    # Orphans of the program end with this process.
    become_subreaper()
    forget_exit_handlers()
    verdict, executed = _execute(program, looks, modules)
    channel.send(cast("dict[str, object]", verdict))
    if channel.receive() is None:
        end_children()
        leave(0)
    channel.close()
    # The worker has to end the orphans of a dead zygote.
    become_subreaper(on=False)
    return executed


def _execute(program: Program, looks: Looks, modules: Collection[str]) -> tuple[ScoutResult, Executed | None]:
    watch, opened = ImportWatch(), OpenedFiles()
    before, handlers = footprint.take(), footprint.exit_handlers()
    captured = CapturedOutput()
    error: tuple[str, str] | None = None
    trainable = None
    cpu_s, began, began_ns = time.process_time(), time.monotonic(), time.time_ns()
    watch.begin()
    opened.begin()
    try:
        with looks:
            trainable = program.load()
            if program.spec.kind == "function":
                # Cached here for the forks.
                extras_of(trainable)
    except BaseException as raised:  # noqa: BLE001 - user code runs
        error = type(raised).__name__, str(raised) if isinstance(raised, TrainableNotFound) else describe_error(raised)
    opened.end()
    seconds, cpu_s = time.monotonic() - began, time.process_time() - cpu_s
    batches = watch.end()
    printed = captured.end()
    if error is not None:
        error = _explained(error, printed, program)
    traces = footprint.traces(before, footprint.take())
    why = f"it has {footprint.describe(traces)}" if traces else ""
    # Libraries register their own handlers on import.
    if not why and not batches and footprint.exit_handlers() > handlers:
        why = "it registers an exit handler, which runs in each trial"
    files = loaded_files(program.code_root)
    data = [pair for pair in opened.files(program, began_ns) if pair not in files]
    imported = [name for name in sys.modules if name not in modules]
    environment = dict(describe_environment(imported, [path for path, _ in files]))
    if differing := _differing(program):
        environment["differs"] = differing
    verdict: ScoutResult = {
        "error": error,
        "batches": batches,
        # Differing files may be corrected, even if nothing has imported them yet.
        "files": [*{*files, *times_of(frozen().differing)}],
        "data": data,
        "environment": environment,
        "is_slow": cpu_s > _SLOW_CPU_S or seconds > _SLOW_S,
        "is_clean": not why,
        "is_exclusive": any(trace.kind in _EXCLUSIVE for trace in traces),
        "why": why,
        "seconds": seconds,
    }
    return verdict, None if trainable is None else Executed(trainable, printed)


def _explained(error: tuple[str, str], printed: Sequence[bytes], program: Program) -> tuple[str, str]:
    kind, text = error
    if kind == "SystemExit":
        said = printed[1].decode(errors="replace").strip()[-_MAX_TAIL_CHARS:]
        text = (
            f"{text.rstrip()}\nthe program ends itself while it is imported, as a parser of arguments or a command at its top level "
            'does: put that below `if __name__ == "__main__":`, or into the trainable'
        ) + (f"\n{said}" if said else "")
    if differing := _differing(program):
        text = f"{text.rstrip()}\n{', '.join(differing)} there is not as it was when the experiment began"
    return kind, text


def _differing(program: Program) -> list[str]:
    return [os.path.relpath(path, program.code_root) for path in frozen().differing[:_MAX_DIFFERING]]


class OpenedFiles:
    """Records the files that this process reads through Python."""

    def __init__(self) -> None:
        self._read: set[str] = set()
        self._written: set[str] = set()
        self._is_on = False

    def begin(self) -> None:
        """Record files from now on. The hook stays in this process, as Python removes none."""
        self._is_on = True
        sys.addaudithook(self._note)

    def end(self) -> None:
        """Stop recording."""
        self._is_on = False

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._is_on or event != "open":
            return
        path, _, flags = arguments
        if isinstance(path, str | bytes) and isinstance(flags, int):
            written = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            (self._written if written else self._read).add(os.path.abspath(os.fsdecode(path)))

    def files(self, program: Program, since_ns: int) -> list[tuple[str, int]]:
        """Return the read and unchanged files of the user, with their modification times."""
        roots = tuple(f"{root}{os.sep}" for root in (program.code_root, program.home))
        theirs = [path for path in self._read - self._written if path.startswith(roots) and _is_of_user(path)]
        return [(path, time_ns) for path, time_ns in times_of(theirs) if time_ns < since_ns]


def _is_of_user(path: str) -> bool:
    return "site-packages" not in path and "__pycache__" not in path and Path(path).is_file()
