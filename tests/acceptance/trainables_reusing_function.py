"""A function whose process goes from trial to trial, unless it does something to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import mqtune

kept = []


def reuses(config):
    """Report as often as its config says, and then do what that says."""
    print(f"lr={config['lr']:g}")
    for step in range(1, config["steps"] + 1):
        mqtune.report({"loss": -config["lr"] * step, "pid": os.getpid()})
        time.sleep(config["step_s"])
    _DEEDS.get(config["do"], lambda: None)()


def _fail():
    raise ValueError("no luck")


def _leave_a_thread():
    threading.Thread(target=_report_on, name="reporter", daemon=True).start()


def _report_on():
    while True:
        # It is told to stop, too.
        with contextlib.suppress(BaseException):
            mqtune.report({"loss": -1e9, "pid": 0})
        time.sleep(0.01)


def _leave_a_file():
    kept.append(Path(__file__).open())  # noqa: SIM115 - that is the deed


def _fork_a_daemon():
    kept.append(subprocess.Popen(["sleep", "60"], start_new_session=True))


_DEEDS = {
    "fail": _fail,
    "exit": lambda: os._exit(0),
    "chdir": lambda: os.chdir("/"),
    "close output": lambda: os.close(1),
    "ignore SIGTERM": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN),
    "thread": _leave_a_thread,
    "file": _leave_a_file,
    "daemon": _fork_a_daemon,
}
