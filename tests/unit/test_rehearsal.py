"""What a zygote runs before its first trial, and what it leaves as it was."""

from __future__ import annotations

import subprocess
import sys

LEAVES_NOTHING = """
import os, signal
from mqtune.trainable import reporting
from mqtune.trainable.process.protocol import STOP_SIGNAL
from mqtune.trainable.process.rehearsal import rehearse

def state():
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return signal.getsignal(STOP_SIGNAL), blocked, sorted(os.listdir("/proc/self/fd")), reporting.current

signal.signal(STOP_SIGNAL, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {STOP_SIGNAL, signal.SIGINT})
before = state()
rehearse()
assert state() == before, (state(), before)
"""

ADAPTS = """
import dis
from mqtune.trainable.process.rehearsal import rehearse
from mqtune.trainable.process.session import Session

def written_as():
    return [each.opname for each in dis.get_instructions(Session.report)]

def run_as():
    return [each.opname for each in dis.get_instructions(Session.report, adaptive=True)]

rehearse()
changed = [now for now, before in zip(run_as(), written_as()) if now != before]
assert len(changed) > 20, changed
"""

IS_BROKEN = """
import os
from mqtune.trainable.process.rehearsal import rehearse

def pipe():
    raise OSError(24, "too many open files")

os.pipe = pipe
rehearse()
"""


def run(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_rehearsal_changes_nothing_that_a_trial_could_see() -> None:
    run(LEAVES_NOTHING)


def test_after_it_the_code_of_a_report_is_adapted_and_no_trial_has_to_learn_it() -> None:
    run(ADAPTS)


def test_one_that_can_not_be_done_is_left_out() -> None:
    run(IS_BROKEN)
