"""Executes a program once, before any trial, to find out how trials can execute it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypedDict, cast

from mqtune.core.errors import TrainableNotFound
from mqtune.trainable.frozen_code import frozen, loaded_files, times_of
from mqtune.trainable.process import footprint
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import become_subreaper, end_children
from mqtune.trainable.process.environment import describe_environment
from mqtune.trainable.process.exits import forget_exit_handlers, leave
from mqtune.trainable.process.late_imports import Batch, EnvironmentReads, ImportWatch
from mqtune.trainable.process.life import Executed
from mqtune.trainable.process.output import CapturedOutput
from mqtune.trainable.process.program import Program
from mqtune.trainable.process.protocol import describe_error
from mqtune.trainable.spec import extras_of

#: A program that takes longer is slow. A slow program without traces is executed once for all trials. A quicker one is
#: executed by each trial's process, while the slot's previous trial still runs.
_SLOW_CPU_S: Final = 0.25
_SLOW_S: Final = 2.0
#: Kinds of traces that the slot's previous trial may have, too. With one, a trial executes the program only at its
#: start.
_EXCLUSIVE: Final = frozenset({"device", "listener", "child"})
#: Maximum number of changed files in an error.
_MAX_DIFFERING: Final = 5
#: Characters of output in the error of a program that ended itself.
_MAX_TAIL_CHARS: Final = 2_000


class ScoutResult(TypedDict):
    """How a program can be executed for trials.

    Attributes:
        error: type and text of the program's error; None without one.
        batches: the packages that the scout had to import.
        files: paths of the user's code, with modification times in nanoseconds.
        data: other files of the user that the program has read, with modification times.
        environment: the versions of everything.
        is_slow: whether each trial would spend much time on executing it.
        is_clean: whether trials can be forked after it has been executed.
        is_exclusive: whether a trial must not execute it while the slot's previous trial runs.
        why: why it is not clean, in words; else empty.
        seconds: how long it took.
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


def scout(channel: Channel, program: Program, reads: EnvironmentReads) -> Executed | None:
    """Execute a program and send a ``ScoutResult``. Then end this process, or become the importer.

    Return the executed program if this process becomes the importer.
    """
    # This process adopts orphans of the program, and ends them at its own end.
    become_subreaper()
    forget_exit_handlers()
    verdict, executed = _execute(program, reads)
    channel.send(cast("dict[str, object]", verdict))
    if channel.receive() is None:
        end_children()
        leave(0)
    channel.close()
    # An importer adopts no orphans: those of a dead zygote go to the worker, which ends them.
    become_subreaper(on=False)
    return executed


def _execute(program: Program, reads: EnvironmentReads) -> tuple[ScoutResult, Executed | None]:
    watch, opened = ImportWatch(), OpenedFiles()
    before, handlers = footprint.take(), footprint.exit_handlers()
    captured = CapturedOutput()
    error: tuple[str, str] | None = None
    trainable = None
    cpu_s, began, began_ns = time.process_time(), time.monotonic(), time.time_ns()
    watch.begin()
    opened.begin()
    try:
        with reads:
            trainable = program.load()
            if program.spec.kind == "function":
                # Forks inherit the cached result.
                extras_of(trainable)
    except BaseException as raised:  # noqa: BLE001 - user code runs
        error = type(raised).__name__, str(raised) if isinstance(raised, TrainableNotFound) else describe_error(raised)
    opened.end()
    seconds, cpu_s = time.monotonic() - began, time.process_time() - cpu_s
    batches = watch.end()
    printed = captured.end()
    if error is not None:
        error = _add_hints(error, printed, program)
    traces = footprint.traces(before, footprint.take())
    why = f"it has {footprint.describe(traces)}" if traces else ""
    # If packages were imported, the new handlers may be theirs.
    if not why and not batches and footprint.exit_handlers() > handlers:
        why = "it registers an exit handler, which runs in each trial"
    files = loaded_files(program.code_root)
    data = [pair for pair in opened.files(program, began_ns) if pair not in files]
    environment = dict(describe_environment([path for path, _ in files]))
    if differing := _differing(program):
        environment["differs"] = differing
    verdict: ScoutResult = {
        "error": error,
        "batches": batches,
        # Somebody may correct a differing file, so it is watched even if nothing has imported it.
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


def _add_hints(error: tuple[str, str], printed: Sequence[bytes], program: Program) -> tuple[str, str]:
    kind, text = error
    if kind == "SystemExit":
        said = printed[1].decode(errors="replace").strip()[-_MAX_TAIL_CHARS:]
        text = (
            f"{text.rstrip()}\nthe program exits while it is imported, for example by an argument parser or a command "
            "at its top level: "
            'move that below `if __name__ == "__main__":`, or into the trainable'
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
        sys.addaudithook(self._record_open)

    def end(self) -> None:
        """Stop recording."""
        self._is_on = False

    def _record_open(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._is_on or event != "open":
            return
        path, _, flags = arguments
        if isinstance(path, str | bytes) and isinstance(flags, int):
            written = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            (self._written if written else self._read).add(os.path.abspath(os.fsdecode(path)))

    def files(self, program: Program, since_ns: int) -> list[tuple[str, int]]:
        """Return the user's files that were read and not written, with their modification times.

        Files that changed after *since_ns* are left out.
        """
        roots = tuple(f"{root}{os.sep}" for root in (program.code_root, program.home))
        theirs = [path for path in self._read - self._written if path.startswith(roots) and _is_of_user(path)]
        return [(path, time_ns) for path, time_ns in times_of(theirs) if time_ns < since_ns]


def _is_of_user(path: str) -> bool:
    return "site-packages" not in path and "__pycache__" not in path and Path(path).is_file()
