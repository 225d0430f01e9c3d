"""What a trial's function may have changed or left in its process, which then takes no further trial.

Python's own objects are not looked at: globals, caches, ``sys.path``, filters of warnings, handlers of loggers. To keep such things,
the imported libraries or a data set in a global, is what a process is used again for.
"""

from __future__ import annotations

import _thread
import builtins
import contextlib
import gc
import os
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from time import monotonic, sleep
from typing import Final, TypeVar

from mqtune.trainable import reporting
from mqtune.trainable.process.protocol import KEPT_BYTES, STOP_SIGNAL
from mqtune.trainable.process.signals import handler_of

#: Variables that libraries set by themselves when they are first used: torch.cuda, and scikit-learn for OpenMP.
_SET_BY_LIBRARIES: Final = frozenset({"CUDA_MODULE_LOADING", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"})
#: The stop signal has a handler for each trial; SIGCHLD has one of torch's once that has loaded data in processes, which disturbs
#: nobody; the last two can't have any.
_UNWATCHED: Final = frozenset({STOP_SIGNAL, signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP})
#: Those above have no use that Python programs know.
_FIRST_REALTIME: Final = 32
_SIGNALS: Final = [
    (signal.Signals(number).name, int(number))
    for number in sorted(signal.valid_signals() - _UNWATCHED)
    if number < _FIRST_REALTIME
]
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
#: The modules whose functions are compared: those that any trial may count on.
_MODULES: Final = (builtins, os, time, signal, threading, reporting)
_LIMITS: Final = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_STREAMS: Final = ("stdin", "stdout", "stderr")
#: The kinds of open files that count; a device, a pipe or what the kernel has made for this process alone disturbs nobody.
_KINDS: Final = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK, stat.S_IFBLK})
#: How long threads that are about to end are waited for: those of an executor that is shut down, or of a data loader.
_ENDING_S: Final = 0.1
_LOOK_S: Final = 0.001
#: How many things of a kind a reason names; nobody would read more.
_MOST_NAMED: Final = 5
_MOST_CHARS: Final = 500
_BYTES_PER_GB: Final = 1e9

_Name = TypeVar("_Name", str, bytes, int)


#: What tells an open file from any other: its device, its inode and its kind.
_File = tuple[int, int, int]


class Surroundings:
    """The state that the trials of a process share, as it was before the first of them."""

    def __init__(self) -> None:
        self._has_collected = False
        self._threads = _threads()
        self._environment = _environment()
        self._handlers = _handlers()
        self._settings = _settings()
        self._modules = [(module, dict(vars(module))) for module in _MODULES]
        self._streams = _streams()
        self.begin()

    def begin(self) -> None:
        """Record what each trial has for itself: its folder, and its open files."""
        self._folder, self._files = _working_directory(), _open_files()

    def collect(self) -> None:
        """Collect the garbage of a trial."""
        gc.collect()
        if not self._has_collected:
            # What the first trial has imported is there for good, and need not be looked through after each.
            gc.freeze()
            self._has_collected = True

    def changes(self) -> str:
        """Return in words what is not as it was; empty if everything is. Garbage must have been collected."""
        _reap()
        files = _open_files()
        settings = _changed(self._settings, _settings())
        if _working_directory() != self._folder:
            settings.append("the working directory")
        found = {
            "left the threads": self._left_threads(),
            "left open": [_path_of(fd) for fd in files.keys() - self._files.keys() if files[fd][-1] in _KINDS],
            "closed or replaced the descriptors": _changed(self._files, {fd: files.get(fd) for fd in self._files}),
            "changed the environment's": _variables(_changed(self._environment, _environment())),
            "changed the handlers of": _changed(self._handlers, _handlers()),
            "changed": settings,
            "replaced": [*self._replaced(), *_changed(self._streams, _streams())],
            "left": _left_on_device(),
        }
        text = "; ".join(f"it has {what} {_listed(names)}" for what, names in found.items() if names)
        # A file name that is not Unicode can't be sent.
        return text.encode(errors="backslashreplace").decode()[:_MOST_CHARS]

    def _left_threads(self) -> list[str]:
        over_at = monotonic() + _ENDING_S
        while (left := _changed(self._threads, _threads())) and monotonic() < over_at:
            sleep(_LOOK_S)
        return left

    def _replaced(self) -> Iterator[str]:
        for module, before in self._modules:
            now = vars(module)
            if now != before:
                replaced = (name for name, value in before.items() if callable(value) and now.get(name) is not value)
                yield from (f"{module.__name__}.{name}" for name in replaced)


def _changed(before: Mapping[_Name, object], now: Mapping[_Name, object]) -> list[str]:
    """Return the names of what has another value, is gone or is new."""
    if before == now:
        return []
    changed = (name for name in {**before, **now} if before.get(name) != now.get(name))
    return [os.fsdecode(name) if isinstance(name, bytes) else str(name) for name in changed]


def _environment() -> dict[bytes, bytes]:
    """Return the environment as ``os.environ`` has it, without decoding all of that."""
    kept = getattr(os.environ, "_data", None)
    if isinstance(kept, dict):
        return kept.copy()
    return {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}


def _variables(names: list[str]) -> list[str]:
    return [name for name in names if name not in _SET_BY_LIBRARIES]


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _threads() -> dict[str, int | None]:
    """Return the threads that Python knows by name, and how many it has started without knowing them."""
    named = threading.enumerate()
    return {**{thread.name: thread.ident for thread in named}, "without names": _thread._count() - len(named)}


def _reap() -> None:
    """Forget children that have ended, and that nobody has waited for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _handlers() -> dict[str, object]:
    return {name: handler_of(number) for name, number in _SIGNALS}


def _streams() -> dict[str, object]:
    return {f"sys.{name}": id(getattr(sys, name)) for name in _STREAMS}


def _settings() -> dict[str, object]:
    mask = os.umask(0)
    os.umask(mask)
    return {
        "the umask": mask,
        "the signals that are blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "a timer": [any(signal.getitimer(each)) for each in _TIMERS],
        "the limits of its resources": [resource.getrlimit(each) for each in _LIMITS],
        "its priority": os.getpriority(os.PRIO_PROCESS, 0),
        "its cores": _cores(),
        "its user": (os.getuid(), os.geteuid(), os.getgid(), os.getegid()),
        "the recursion limit": sys.getrecursionlimit(),
        "the tracing of calls": (sys.gettrace(), sys.getprofile()),
        "the collection of garbage": gc.isenabled(),
    }


def _cores() -> object:
    affinity = getattr(os, "sched_getaffinity", None)
    return affinity(0) if affinity else None


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _open_files() -> dict[int, _File]:
    """Return this process's open files by descriptor; none where the kernel doesn't list them (Linux does)."""
    found: dict[int, _File] = {}
    with contextlib.suppress(FileNotFoundError):
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                mode, inode, device = os.fstat(fd)[:3]
            except OSError:
                # That of the list itself is closed already.
                continue
            found[fd] = device, inode, stat.S_IFMT(mode)
    return found


def _path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return str(fd)


def _left_on_device() -> list[str]:
    """Return memory to the device that PyTorch holds for nothing, and say what is left; nothing without it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return []
        # An error in a kernel breaks everything that comes later in this process, and may not have been raised yet.
        cuda.synchronize()
        cuda.empty_cache()
        left = sum(cuda.memory_allocated(device) for device in range(cuda.device_count()))
    except Exception as error:  # noqa: BLE001 - a broken device raises what it likes
        return [f"a device that raises {type(error).__name__}"]
    return [f"{left / _BYTES_PER_GB:.1f} GB of device memory"] if left > KEPT_BYTES else []
