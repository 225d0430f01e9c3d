"""A function whose process goes from trial to trial, unless it does something to it."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import mqtune


def reuses(config):
    """Report as often as its config says, and then do what that says."""
    print(f"lr={config['lr']:g}")
    for step in range(1, config["steps"] + 1):
        mqtune.report({"loss": -config["lr"] * step, "pid": os.getpid()})
        time.sleep(config["step_s"])
    if config["do"] == "chdir":
        os.chdir("/")
    if config["do"] == "thread":
        threading.Thread(target=_report_on, name="reporter", daemon=True).start()


def _report_on():
    while True:
        # It is told to stop, too.
        with contextlib.suppress(BaseException):
            mqtune.report({"loss": -1e9, "pid": 0})
        time.sleep(0.01)
