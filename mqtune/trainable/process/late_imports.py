"""Modules that a trial imports late, when its function runs: found at its end, and imported in the zygote before further trials.

Each trial is a fork of a zygote that has imported the trainable's module, and nothing that its function imports later. PyTorch alone
imports some 900 modules when a trial makes its first optimizer, which takes longer than many a trial.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from mqtune.trainable.process.descendants import own_children

#: Folders of installed packages, in a path.
_INSTALLED: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
#: The linear algebra of NumPy, SciPy, and what is built on them. Each copy starts a thread for each core but one when it is loaded,
#: ends them before a fork, and starts them again behind it.
_FORK_SAFE_POOL: Final = re.compile(r"openblas[^/]*\.so", re.IGNORECASE)


class Unsafe(NamedTuple):
    """An import after which no trial may be forked: the module, and what its import has left."""

    module: str
    why: str


def late_imports(before: Collection[str]) -> list[str]:
    """Return the modules of Python and of installed packages that were imported since, in their order.

    The user's own are left out: their code may do anything on import, and may change.

    Args:
        before: the names of the modules that were there.
    """
    return [name for name, module in list(sys.modules.items()) if name not in before and _is_library(name, module)]


def _is_library(name: str, module: object) -> bool:
    origin = getattr(getattr(module, "__spec__", None), "origin", None)
    if not isinstance(origin, str):
        # It was made while another one was imported.
        return False
    return name.partition(".")[0] in sys.stdlib_module_names or bool(_INSTALLED.search(origin))


def preload(modules: Sequence[str]) -> tuple[list[str], Unsafe | None]:
    """Import modules in a process that is forked afterwards; stop at the first that is not safe to fork behind, and return it.

    Beside it, return those that it had to import: the others came with these, or were there.

    Safe is an import that leaves no thread, child, open file, signal handler or working directory that was not there before: a forked
    trial would lack the thread, share the file, and keep the rest. What an import does besides, a trial's own import would do as well:
    this process has the trial's environment and devices. A module that can't be imported is left to the trial.
    """
    loaded: list[str] = []
    before = _footprint()
    for name in modules:
        if name in sys.modules:
            continue
        with contextlib.suppress(BaseException):
            importlib.import_module(name)
        after = _footprint()
        if why := _difference(before, after):
            return loaded, Unsafe(name, why)
        before = after
        if name in sys.modules:
            loaded.append(name)
    return loaded, None


class _Footprint(NamedTuple):
    threads: int
    native_threads: int
    children: frozenset[int]
    files: frozenset[tuple[int, str]]
    handlers: tuple[Any, ...]
    folder: str


def _footprint() -> _Footprint:
    return _Footprint(
        threads=threading.active_count(),
        native_threads=_native_threads(),
        children=frozenset(own_children()),
        files=_open_files(),
        handlers=tuple(map(signal.getsignal, sorted(signal.valid_signals()))),
        folder=os.getcwd(),
    )


def _difference(before: _Footprint, after: _Footprint) -> str:
    """Return what an import has left; empty if it is nothing."""
    if after.threads > before.threads or after.native_threads > before.native_threads:
        return "it has started a thread"
    if after.children != before.children:
        return "it has started a process"
    if opened := after.files - before.files:
        return f"it has opened {min(path for _, path in opened)}"
    if after.handlers != before.handlers:
        return "it has changed a signal's handler"
    return "" if after.folder == before.folder else "it has changed the working directory"


def _native_threads() -> int:
    """Return how many threads this process has, without those that end before a fork; 0 where the system does not list them."""
    try:
        threads = len(os.listdir("/proc/self/task"))
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            pools = len(set(_FORK_SAFE_POOL.findall(maps.read())))
    except OSError:
        return 0
    # A pool may have fewer.
    return max(1, threads - pools * ((os.cpu_count() or 1) - 1))


def _open_files() -> frozenset[tuple[int, str]]:
    """Return the open files, devices among them, each with its descriptor; none where the system does not list them."""
    found = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir("/proc/self/fd"):
            # That of the list itself is closed already.
            with contextlib.suppress(OSError):
                found.add((int(fd), os.readlink(f"/proc/self/fd/{fd}")))
    return frozenset(found)
