"""Trainables that start what would outlive them; workers import them from here."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import mqtune

#: Holds a lock as it would hold a device, in a session of its own, with a parent that has ended and without the environment.
DAEMON = """
import fcntl, os, sys, time
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
if os.fork():
    os._exit(0)
os.setsid()
os.closerange(0, 3)
time.sleep(120)
"""


def keeps_a_lock(config):
    """Fail when somebody else has the lock, leave it to a daemon, and report on."""
    environment = {} if config["bare"] else None
    subprocess.run([sys.executable, "-c", DAEMON, config["lock"]], env=environment, check=True)
    for step in range(2_000):
        mqtune.report({"loss": 1.0, "step": step, "pid": os.getpid()})
        time.sleep(0.1)
