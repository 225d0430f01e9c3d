"""An importer that is a fork of the driver, for a trainable that can't be sent to another process.

Such a trainable is, for instance, a closure over a lock. The importer *carries* it: it executes nothing, and each trial
is a fork with the driver's objects. No other process can ever replace it.

It is forked before the driver starts a server, a thread or anything else. Its parent becomes the private worker, which
reaps it and its orphans, as with any importer.

Other trainables never run in a fork of the driver. The program would be executed a second time in one process, and so
register, patch and add everything twice in the libraries.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Final, NoReturn

from mqtune.trainable.process import footprint
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.exits import close_files, exit_with_error, forget_exit_handlers, keep_main
from mqtune.trainable.process.importer import serve
from mqtune.trainable.process.late_imports import USUAL, preload
from mqtune.trainable.spec import Function, carry

#: Signals that Python ignores in a program. Programs started by ``subprocess`` have the system's defaults for these.
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)


def why_no_fork() -> str:
    """Return why the driver can't be forked, as words after "this program". Empty if it can be."""
    if sys.platform != "linux":
        return "does not run on Linux"
    if threading.current_thread() is not threading.main_thread():
        return "runs the experiment in a thread"
    now = footprint.take()
    begun = now._replace(
        threads=frozenset(),
        native_threads=frozenset(),
        children=frozenset(),
        devices=frozenset(),
        libraries=frozenset(),
        files=frozenset(file for file in now.files if _is_inherited(file.fd)),
    )
    traces = footprint.traces(begun, now)
    return f"has {footprint.describe(traces)}" if traces else ""


def _is_inherited(fd: int) -> bool:
    """Whether this process has inherited a descriptor, which Python has not opened itself."""
    try:
        return os.get_inheritable(fd)
    except OSError:
        # It was closed meanwhile.
        return True


def own_files() -> set[int]:
    """Return the descriptors that objects of this process may own.

    A fork must keep them open. Otherwise another file may get the number, and the object's deletion would close that
    file.
    """
    return {fd for fd in map(int, os.listdir("/proc/self/fd")) if not _is_inherited(fd)}


def fork_importer(channel: Channel, files: Collection[int], carried: Function) -> None:
    """Fork the importer. Return only in the parent.

    Args:
        channel: to the worker.
        files: descriptors to keep open, beside the channel's. Their buffers must have been flushed.
        carried: the trainable, for the importer to keep.
    """
    if os.fork() != 0:
        return
    try:
        _become_importer(channel, files, carried)
    except BaseException:  # noqa: BLE001 - no error may make it a second driver
        exit_with_error()


def _become_importer(channel: Channel, files: Collection[int], carried: Function) -> NoReturn:
    # The fork happens within subprocess.Popen, which has disabled the garbage collector.
    gc.enable()
    os.setsid()
    has_faulthandler = faulthandler.is_enabled()
    # Otherwise it would not notice that its handlers are gone, and set none again.
    faulthandler.disable()
    for number in signal.valid_signals():
        # Ignored signals stay ignored, as after an exec. Some can't have another handler.
        if signal.getsignal(number) != signal.SIG_IGN:
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    close_files({channel.fileno(), *files})
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    if has_faulthandler:
        faulthandler.enable()
    forget_exit_handlers()
    carry(carried)
    keep_main()
    channel.send({"is": "here", "pid": os.getpid()})
    # Meanwhile the worker starts.
    _, unsafe = preload([({}, USUAL)])
    if unsafe is not None:
        channel.receive()
        channel.send({"is": "unsafe", "module": unsafe.module, "why": unsafe.why})
        os._exit(0)
    serve(channel, os.getppid(), "importer")
    os._exit(0)
