"""The end of a trial's process: exit handlers, threads and buffers, as in a Python program."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import itertools
import logging
import os
import signal
import sys
import threading
import weakref
from types import ModuleType
from typing import Any, Final, NoReturn

from mqtune.trainable.process.late_imports import is_library
from mqtune.trainable.process.output import flush, flush_native

_BUFFERED: Final = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
#: An object of the standard library whose private parts are used here.
_Internal = Any
#: Names of a program's main module.
_OF_PROGRAM: Final = frozenset({"__main__", "__mp_main__"})
#: Whether the main module is this process's own, and not the driver's.
_owns_main = True
#: Last module inherited from the parent. Inherited modules are not cleared at the end, which would copy their memory.
_last_inherited = ""


def forget_exit_handlers() -> None:
    """Leave the parent's exit handlers to the parent. Handlers registered later run here.

    Otherwise each trial would delete the importer's temporary folders and end its processes.
    """
    global _last_inherited  # noqa: PLW0603 - of the process
    # A single name, as a set of all would access, and so copy, the memory of each.
    _last_inherited = next(reversed(sys.modules))
    atexit._clear()
    finalize: _Internal = weakref.finalize
    for finalizer in list(finalize._registry):
        finalizer.atexit = False
    # It registers itself with atexit at the first finalizer.
    finalize._registered_with_atexit = False
    if "multiprocessing.util" in sys.modules:
        util: _Internal = sys.modules["multiprocessing.util"]
        util._finalizer_registry.clear()
        util._run_after_forkers()
        children: _Internal = sys.modules["multiprocessing.process"]
        children._children = set()
        atexit.register(util._exit_function)
    atexit.register(logging.shutdown)


def keep_main() -> None:
    """Keep the main module at the end of this fork of the driver, and of its forks.

    Some of the driver's objects delete a folder when they are deleted.
    """
    global _owns_main  # noqa: PLW0603 - of the process
    _owns_main = False


def flush_all() -> None:
    """Flush the standard streams and all other files."""
    flush()
    # Not all files are flushed if the objects that refer to them are deleted together.
    for file in gc.get_objects():
        if issubclass(type(file), _BUFFERED):
            with contextlib.suppress(Exception):
                file.flush()


def leave(code: int, *, finalize: bool = False) -> NoReturn:
    """End this process like a Python program: threads, exit handlers, globals, files.

    Non-daemon threads are waited for, at most until the worker's stop ladder ends this process.

    Args:
        code: exit code, or the negative number of the signal to end by.
        finalize: whether Python itself does the last steps. With a large library they take a tenth of a second.
    """
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush_all()
    if finalize and code >= 0:
        ctypes.pythonapi.Py_Exit(code)
    if threading.active_count() == 1:
        # A daemon thread could still use them.
        _take_apart()
    flush_native()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def release_frames(error: BaseException | None) -> None:
    """Release the objects in an error's frames, such as files and tensors."""
    while error is not None:
        error.__traceback__ = None
        error.__cause__, error.__context__, error = None, None, error.__context__


def _take_apart() -> None:
    """Delete the program's own modules, and clear the still referenced ones, as Python does."""
    newer = itertools.takewhile(lambda name: name != _last_inherited, reversed(sys.modules))
    names = [*filter(_is_own, newer), *(_OF_PROGRAM & sys.modules.keys() if _owns_main else ())]
    # No name of this function may keep a module.
    modules = [weakref.ref(sys.modules[name]) for name in names if isinstance(sys.modules[name], ModuleType)]
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    for name in names:
        del sys.modules[name]
    gc.collect()
    for reference in reversed(modules):
        if (left := reference()) is not None:
            content = vars(left)
            for name in sorted(content.keys() - {"__builtins__"}, key=_is_public):
                content[name] = None


def _is_own(name: str) -> bool:
    return name not in _OF_PROGRAM and name.partition(".")[0] != "mqtune" and not is_library(name)


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name.startswith("__")
