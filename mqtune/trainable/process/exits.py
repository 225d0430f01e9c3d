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
import traceback
import weakref
from collections.abc import Collection
from types import ModuleType
from typing import Any, Final, NoReturn

from mqtune.trainable.process.late_imports import is_library
from mqtune.trainable.process.output import flush, flush_native

_BUFFERED: Final = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
#: The type of an object of the standard library whose private parts are used here.
_Internal = Any
_STANDARD_ERROR: Final = 2
#: Names of a program's main module.
_OF_PROGRAM: Final = frozenset({"__main__", "__mp_main__"})
#: Whether the main module belongs to this process, and not to the driver that it is a fork of.
_owns_main = True
#: Last module inherited from the parent. Inherited modules are not cleared at the end, which would copy their memory.
_last_inherited = ""


def forget_exit_handlers() -> None:
    """Discard the exit handlers that this fork has inherited. Later ones will run.

    Otherwise each trial would delete the importer's temporary folders and end its processes.
    """
    global _last_inherited  # noqa: PLW0603 - of the process
    # One name is enough. A set of all names would touch, and so copy, the memory of each.
    _last_inherited = next(reversed(sys.modules))
    atexit._clear()
    finalize: _Internal = weakref.finalize
    for finalizer in list(finalize._registry):
        finalizer.atexit = False
    # So the next finalizer registers the class with atexit again.
    finalize._registered_with_atexit = False
    if "multiprocessing.util" in sys.modules:
        util: _Internal = sys.modules["multiprocessing.util"]
        util._finalizer_registry.clear()
        util._run_after_forkers()
        children: _Internal = sys.modules["multiprocessing.process"]
        children._children = set()
        atexit.register(util._exit_function)
    atexit.register(logging.shutdown)


def close_files(but: Collection[int]) -> None:
    """Close this fork's descriptors, except for standard input and outputs and those in *but*."""
    for fd in map(int, os.listdir("/dev/fd")):
        if fd > _STANDARD_ERROR and fd not in but:
            # The list's own descriptor is closed already, which closerange ignores.
            os.closerange(fd, fd + 1)


def exit_with_error() -> NoReturn:
    """Print the current error, and end this process immediately, without exit handlers."""
    with contextlib.suppress(Exception):
        traceback.print_exc()
    flush()
    os._exit(1)


def keep_main() -> None:
    """Don't clear the main module when this fork of the driver, or a fork of it, ends.

    Some of the driver's objects would delete a folder.
    """
    global _owns_main  # noqa: PLW0603 - of the process
    _owns_main = False


def flush_all() -> None:
    """Flush the standard streams and all other files."""
    flush()
    # Python does not flush all files when the objects that refer to them are deleted together.
    for file in gc.get_objects():
        if issubclass(type(file), _BUFFERED):
            with contextlib.suppress(Exception):
                file.flush()


def leave(code: int, *, finalize: bool = False) -> NoReturn:
    """End this process like a Python program: threads, exit handlers, globals, files.

    It waits for non-daemon threads. Only the worker's stop ladder limits that.

    Args:
        code: exit code, or the negative number of the signal to end by.
        finalize: whether Python's own finalization does the last steps. With a large library it takes a tenth of a
            second.
    """
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush_all()
    if finalize and code >= 0:
        ctypes.pythonapi.Py_Exit(code)
    if threading.active_count() == 1:
        # Otherwise a daemon thread could still use them.
        _clear_modules()
    flush_native()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def exit_code(ending: SystemExit) -> int:
    """Return the exit code of a program that ends by ``sys.exit``."""
    if ending.code is None or isinstance(ending.code, int):
        return (ending.code or 0) & 0xFF
    return 1


def release_frames(error: BaseException | None) -> None:
    """Release the objects in the frames of an error, such as files and tensors."""
    while error is not None:
        error.__traceback__ = None
        error.__cause__, error.__context__, error = None, None, error.__context__


def _clear_modules() -> None:
    """Delete the program's own modules, and clear those that are still referenced, as Python does."""
    newer = itertools.takewhile(lambda name: name != _last_inherited, reversed(sys.modules))
    names = [*filter(_is_user_module, newer), *(_OF_PROGRAM & sys.modules.keys() if _owns_main else ())]
    # Weak, as this function must not keep a module alive.
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


def _is_user_module(name: str) -> bool:
    return name not in _OF_PROGRAM and name.partition(".")[0] != "mqtune" and not is_library(name)


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name.startswith("__")
