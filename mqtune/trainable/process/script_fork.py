"""Runs a Python script in a fork of its trial's process, which has the script's packages."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from mqtune.trainable import main_module, reporting
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.exits import (
    close_files,
    exit_code,
    exit_with_error,
    forget_exit_handlers,
    leave,
    release_frames,
)
from mqtune.trainable.process.late_imports import ImportWatch
from mqtune.trainable.process.output import restore_output
from mqtune.trainable.process.program import seed_generators
from mqtune.trainable.process.protocol import RELAY, STOP_SIGNAL
from mqtune.trainable.process.relay import address_of


class ForkedScript:
    """The process of a forked script, with the ``subprocess.Popen`` methods that its parent needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code


def fork_script(
    path: Path,
    arguments: list[str],
    environment: Mapping[str, str],
    output: int,
    channel: Channel,
    *,
    module: str = "",
    root: Path,
) -> ForkedScript:
    """Start a script in a fork of this process.

    Args:
        environment: additional environment variables.
        output: descriptor for its standard output.
        channel: the script's end of its channel to this process.
        module: the script's module name, if it runs by ``python -m``; else empty.
        root: folder from which Python finds the module.
    """
    # A signal that comes before the script has set its handlers would be lost.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            try:
                _prepare(environment, output, channel.fileno())
                sys.argv[:] = [str(path), *arguments]
                sys.orig_argv[:] = [sys.executable, *(["-m", module] if module else [str(path)]), *arguments]
                if module:
                    main_module.put_first(str(root))
                _become_script(path, module, mask)
            except BaseException:  # noqa: BLE001 - no error of a script may make it its parent
                exit_with_error()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return ForkedScript(pid)


def _prepare(environment: Mapping[str, str], output: int, channel: int) -> None:
    """Give this fork the files, signals and variables of a new program."""
    for number in (signal.SIGTERM, STOP_SIGNAL):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(output, 1)
    own = os.dup(channel)
    close_files({own})
    os.set_inheritable(own, True)
    reporting.current = None
    restore_output()
    os.environ.update({**environment, RELAY: address_of(own)})
    forget_exit_handlers()
    importlib.invalidate_caches()
    seed_generators()


def _become_script(path: Path, module: str, mask: set[int]) -> NoReturn:
    watch = ImportWatch()
    watch.begin()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    code = _run(path, module)
    # If the trial's process is gone, nobody needs the message.
    with contextlib.suppress(Exception):
        channel = int(os.environ[RELAY].partition(":")[0])
        Channel.of_fd(os.dup(channel)).send({"do": "imported", "batches": watch.end()})
    # Daemon threads may use the script's globals, and the frames of an error refer to them.
    leave(code, finalize=code > 0 or threading.active_count() > 1)


def _run(path: Path, module: str = "") -> int:
    try:
        main_module.execute_file(path, as_program=True, module=module)
    except SystemExit as ending:
        if not isinstance(ending.code, int | None):
            sys.stderr.write(f"{ending.code}\n")
        return exit_code(ending)
    except BaseException as error:  # noqa: BLE001 - whatever the script raises ends it
        _print_error(error, _from_script(error.__traceback__, path))
        release_frames(error)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _print_error(error: BaseException, trace: TracebackType | None) -> None:
    sys.excepthook(type(error), error.with_traceback(trace), trace)


def _from_script(trace: TracebackType | None, path: Path) -> TracebackType | None:
    """Return the part of a traceback from the script's first frame on. None for a syntax error."""
    while trace is not None and trace.tb_frame.f_code.co_filename != str(path):
        trace = trace.tb_next
    return trace
