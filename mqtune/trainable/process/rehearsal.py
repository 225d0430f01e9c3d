"""Runs attempts of nothing in a zygote, before it forks any: what Python learns of the code in them, each trial has from its start.

A forked process copies each page of memory that it writes to. Code that runs for the first time writes to many: Python adapts its
instructions to what they meet, and keeps where it has found a method. A trial that reports once did that for most of its time.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Final, cast

from mqtune.core.trial import Config
from mqtune.trainable import reporting
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.protocol import STOP_SIGNAL, StartMessage
from mqtune.trainable.process.runner import run_attempt
from mqtune.trainable.process.session import Session

#: How often: CPython 3.11 adapts a function's instructions once it was called 8 times, and 3.12 and later sooner.
_TIMES: Final = 12
_MESSAGE: Final = {
    "config": {},
    "timestamp": 0.0,
    "epoch_s": 0.0,
    "stdout": "",
    "stderr": "",
    "trial": "",
    "attempt": 0,
    "experiment": "",
    "checkpoint": "",
    "checkpoint_data": None,
    "store": "",
    "sync": "stream",
    "folder": "",
    "working_dir": "",
    "reuse": False,
    "definition": b"",
    "options": {},
}


def rehearse() -> None:
    """Run attempts of a function of our own, whose reports nobody reads; nothing of the process is changed, and nothing is raised."""
    with contextlib.suppress(Exception), _signals_kept():
        for _ in range(_TIMES):
            _run_one()


def _run_one() -> None:
    with contextlib.ExitStack() as stack:
        ends = [fd for _ in range(2) for fd in os.pipe()]
        for fd in ends:
            stack.callback(os.close, fd)
        os.set_blocking(ends[2], False)
        zygotes, spares = Channel.pair()
        stack.callback(zygotes.close)
        stack.callback(spares.close)
        zygotes.send(_MESSAGE, [ends[1], ends[2]])
        received = spares.receive()
        assert received is not None  # noqa: S101 - it was sent just now
        for fd in received[1]:
            stack.callback(os.close, fd)
        stack.callback(setattr, reporting, "current", reporting.current)
        session = reporting.current = Session(cast("StartMessage", received[0]), received[1])
        run_attempt(lambda: _report_once, session)


def _report_once(_config: Config) -> None:
    reporting.report({"metric": 0.0, "epoch": 1})


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep which signals are blocked, and the handler of the stop signal, over the block."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handler = signal.getsignal(STOP_SIGNAL)
    try:
        yield
    finally:
        signal.signal(STOP_SIGNAL, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
