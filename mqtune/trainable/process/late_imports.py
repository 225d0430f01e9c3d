"""Modules that a trial imports late, when its function runs: found at its end, and imported in the zygote before further trials.

Each trial is a fork of a zygote that has imported the trainable's module, and nothing that its function imports later. PyTorch alone
imports some 900 modules when a trial makes its first optimizer, which takes longer than many a trial.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import os
import re
import reprlib
import signal
import sys
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from mqtune.trainable.process.descendants import own_children

#: Folders of installed packages, in a path.
_INSTALLED: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
#: The linear algebra of NumPy, SciPy, and what is built on them. Each copy starts a thread for each core but one when it is loaded,
#: ends them before a fork, and starts them again behind it.
_FORK_SAFE_POOL: Final = re.compile(r"openblas[^/]*\.so", re.IGNORECASE)


#: Files that a process has open if it uses a GPU: NVIDIA's devices, AMD's compute interface, and render nodes.
DEVICE_FILES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")

#: GNU's OpenMP, which PyTorch, scikit-learn and XGBoost each bring along, and how it is told to end its threads (omp_pause_hard).
_GNU_OPENMP: Final = re.compile(r"/\S*libgomp[^/\s]*\.so\S*")
_PAUSE_HARD: Final = 2

#: Modules that were imported one after the other, and what the trial had changed in its surroundings before: for each variable of the
#: environment a hash of its value, empty if it was removed.
Batch = tuple[Mapping[str, str], Sequence[str]]


def check_batches(said: Iterable[tuple[object, object]]) -> None:
    """Raise a TypeError or ValueError unless these are batches, which user code may have written or changed."""
    for changes, modules in said:
        if type(changes) is not dict or type(modules) is not list:
            raise TypeError(f"that it has imported {reprlib.repr(said)}")
        # The fastest check that all are texts.
        "".join([*changes, *changes.values(), *modules])


class Looks:
    """Notes whether what runs within it, by ``with``, reads some variables of the environment; it can be entered again.

    What reads the environment in C, and opens no device, is not seen. ``os.environ`` stays the same object.

    Attributes:
        names: the variables.
        seen: those that were read.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        self.seen: set[str] = set()
        self._plain = plain = type(os.environ)
        seen = self.seen

        def read(environ: os._Environ[str], name: str) -> str:
            if name in self.names:
                seen.add(name)
            return plain.__getitem__(environ, name)

        self._noting = type(plain.__name__, (plain,), {"__getitem__": read})

    def __enter__(self) -> None:
        if self.names:
            os.environ.__class__ = self._noting

    def __exit__(self, *_: object) -> None:
        os.environ.__class__ = self._plain


def device_files() -> list[str]:
    """Return the files of GPUs that this process has open."""
    return sorted(path for _, path in _open_files() if path.startswith(DEVICE_FILES))


def end_openmp_threads() -> None:
    """End the threads of OpenMP that this thread has used, which start again when they are needed.

    A process that is forked while they are there would wait for them for ever, as it has none of them.
    """
    for path in set(_GNU_OPENMP.findall(memory_map())):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW).omp_pause_resource_all(_PAUSE_HARD)


def memory_map() -> str:
    """Return what lies where in this process's memory, a line for each mapping; empty where the system does not list them."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return maps.read()
    except OSError:
        return ""


class Unsafe(NamedTuple):
    """An import after which no trial may be forked: the module, and what its import has left."""

    module: str
    why: str


class ImportWatch:
    """Notes which modules are imported from ``begin`` on, and what had changed by then that an import may look at."""

    def __init__(self) -> None:
        self._first = self._last = _surroundings()
        self._batches: list[tuple[dict[str, str], list[str]]] = []

    def begin(self) -> None:
        """Begin to note imports, also those of threads."""
        self._first = self._last = _surroundings()
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> None:
        """Note an import, and leave it to others."""
        now = _surroundings()
        if now != self._last or not self._batches:
            self._last = now
            self._batches.append((_changes(self._first, now), []))
        self._batches[-1][1].append(fullname)

    def end(self) -> list[Batch]:
        """Return the modules of Python and of installed packages that were imported, in their order, and note no more.

        The user's own are left out: their code may do anything on import, and may change.
        """
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)
        found = ((changes, list(filter(_is_library, names))) for changes, names in self._batches)
        return [(changes, names) for changes, names in found if names]


def _is_library(name: str) -> bool:
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
    if not isinstance(origin, str):
        return False
    return name.partition(".")[0] in sys.stdlib_module_names or bool(_INSTALLED.search(origin))


def _surroundings() -> dict[str, str]:
    # No variable has an empty name.
    return {**os.environ, "": os.pathsep.join(map(str, sys.path))}


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: _hashed(name, after.get(name)) for name in sorted(names)}


def _hashed(name: str, value: str | None) -> str:
    # It may be a password, and is kept in a file.
    return "" if value is None else hashlib.sha256(f"{name}={value}".encode(errors="surrogateescape")).hexdigest()


def _has(changes: Mapping[str, str]) -> bool:
    """Return whether what a trial had changed is so here."""
    if not changes:
        return True
    here = _surroundings()
    return all(_hashed(name, here.get(name)) == value for name, value in changes.items())


def preload(
    batches: Iterable[Batch], looks: contextlib.AbstractContextManager[None] | None = None
) -> tuple[list[str], Unsafe | None]:
    """Import modules in a process that is forked afterwards; stop at the first that is not safe to fork behind, and return it.

    Beside it, return those that it had to import: the others came with these, were there, or are parts of packages that are not.

    A module is imported only in the surroundings in which the trial has imported it: where that had set variables of the environment
    or ``sys.path`` before, the imports of other modules must have set these here too. So an import meets what it would meet in the trial;
    devices are the same in both. Safe is an import that leaves no thread, child, open file, signal handler or working
    directory that was not there before: a forked trial would lack the thread, share the file, and keep the rest. A module that can't
    be imported is left to the trial.
    """
    loaded: list[str] = []
    before = _footprint()
    for changes, modules in batches:
        for name in modules:
            package, is_part, _ = name.partition(".")
            if name in sys.modules or (is_part and package not in sys.modules) or not _has(changes):
                continue
            with contextlib.suppress(BaseException), looks or contextlib.nullcontext():
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
    handlers: tuple[object, ...]
    folder: str


def _footprint() -> _Footprint:
    end_openmp_threads()
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
    except OSError:
        return 0
    pools = len(set(_FORK_SAFE_POOL.findall(memory_map())))
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
