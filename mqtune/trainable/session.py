"""``report``: how a trainable tells what it has reached, and hears that it should stop."""

from __future__ import annotations

import logging
import os
import signal
import struct
import sys
import threading
import time
from typing import Any, Final

from mqtune.messages import pack_metrics

__all__ = ["FRAME", "FRAME_END", "FRAME_REPORT", "STOP_SIGNAL", "Session", "StopTrial", "report"]

#: A frame on the pipe from a trial to its worker: length of the body, kind; the body follows.
FRAME: Final = struct.Struct("<IB")
FRAME_REPORT: Final = 1
FRAME_END: Final = 2

#: Tells a trial to stop. Not SIGUSR1, which NCCL and Python's faulthandler users take for themselves.
STOP_SIGNAL: Final = signal.SIGUSR2

_MAX_FRAME_BYTES: Final = 64 * 2**20


class StopTrial(BaseException):
    """The trial should stop now.

    Raised in the trial's main thread, wherever it is, and by each later ``report``. It is a BaseException so that
    ``except Exception`` doesn't swallow it; ``finally`` blocks run and have the rest of the stop's grace for it.
    """


class Session:
    """The trial's side of the pipe to its worker; one for each trial process."""

    def __init__(self) -> None:
        self._pipe = -1
        self._timestamp = 0.0
        self._lock = threading.Lock()
        self._main = threading.main_thread().ident
        self._main_reports = False
        self._told = False
        self._pid = os.getpid()

    def open(self, pipe: int, timestamp: float = 0.0) -> None:
        """Send from now on to *pipe*.

        Args:
            pipe: file descriptor of the pipe's write end, blocking: a full pipe makes ``report`` wait, and loses nothing.
            timestamp: that of the trial's last report in an earlier attempt; times never go back behind it.
        """
        self._pipe = pipe
        self._timestamp = timestamp

    def report(self, metrics: dict[str, Any]) -> None:
        """Send one report; see the function of the same name."""
        if self._told:
            raise StopTrial
        if os.getpid() != self._pid:
            raise RuntimeError("report: this is a child process of the trial; report from the trial's own process")
        is_main = threading.get_ident() == self._main
        if is_main:
            self._main_reports = True
        try:
            with self._lock:
                # A clock that steps back must not reorder a trial's reports.
                self._timestamp = max(time.time(), self._timestamp)
                self._send(FRAME_REPORT, pack_metrics(self._timestamp, metrics))
        finally:
            if is_main:
                self._main_reports = False
        if self._told:
            raise StopTrial

    def end(self, body: bytes) -> None:
        """Send how the trainable ended; nothing is sent after it."""
        with self._lock:
            self._send(FRAME_END, body)

    def tell(self, *_: object) -> None:
        """Handle the stop signal: raise StopTrial, but never in the middle of a frame."""
        self._told = True
        if not self._main_reports:
            raise StopTrial

    def _send(self, kind: int, body: bytes) -> None:
        if len(body) > _MAX_FRAME_BYTES:
            raise TypeError(
                f"report: {len(body) >> 20} MiB of metrics in one report; the most is {_MAX_FRAME_BYTES >> 20} MiB"
            )
        frame = FRAME.pack(len(body), kind) + body
        try:
            sent = os.write(self._pipe, frame)
            while sent < len(frame):
                sent += os.write(self._pipe, frame[sent:])
        except BrokenPipeError:
            raise StopTrial from None


#: The session of this process, if it is a trial.
current: Session | None = None


def report(metrics: dict[str, Any]) -> None:
    """Report metrics from a trainable.

    In a trial the report gets the next sequence number and this machine's time, and goes to the driver in order and
    exactly once; the call returns when the worker has it or the pipe to the worker has room for it, and waits while
    both are full. NumPy scalars and tensors without a dimension become numbers; NaN and infinity are allowed.
    Any thread of the trial's own process may call it. Outside a trial it logs the metrics.

    Args:
        metrics: names and values, among them the metric that the experiment optimises.

    Raises:
        TypeError: a value can't be sent, or a name is not a string; the message names it, and nothing was sent.
        StopTrial: the trial should stop.
    """
    if current is not None:
        current.report(metrics)
        return
    pack_metrics(0.0, metrics)
    logger = logging.getLogger("mqtune.report")
    if not logger.hasHandlers():
        # Run as a plain script, without logging set up, the metrics should be seen.
        logger.addHandler(logging.StreamHandler(sys.stderr))
        logger.setLevel(logging.INFO)
    logger.info("%s", "  ".join(f"{name}={_short(value)}" for name, value in metrics.items()))


def _short(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
