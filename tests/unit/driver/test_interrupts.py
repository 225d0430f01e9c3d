from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import eventually

#: A searcher, say, that is in the middle of C code, where no Python handler can run.
BUSY = """
import hashlib, sys, threading
from mqtune.driver.interrupts import Interrupts

begins = threading.Event()
threading.Thread(target=lambda: begins.wait() and print("busy", flush=True), daemon=True).start()
# The other thread gets its turn when the main thread is in C code, and not before.
sys.setswitchinterval(3600)
with Interrupts().handled(lambda: "kept in /somewhere"):
    begins.set()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


WAITS = """
import time
from mqtune.driver import interrupts

interrupts.ORDERLY_S = 0.2
with interrupts.Interrupts().handled(lambda: "kept in /somewhere"):
    print("busy", flush=True)
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            print("ended at once", flush=True)
            break
"""


#: More files than select() takes: a script's own, as with a large data set.
HOLDS_MANY_FILES = """
import os, resource
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limit), limit))
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
"""


@pytest.mark.parametrize("before", ["", HOLDS_MANY_FILES], ids=["", "with many files"])
def test_an_end_in_good_order_that_takes_too_long_is_cut_short(before: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", before + WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as waits:
        try:
            assert waits.stdout is not None
            assert waits.stdout.readline() == "busy\n"
            waits.send_signal(signal.SIGINT)
            said, errors = waits.communicate(timeout=20)
        finally:
            waits.kill()
    assert said == "ended at once\n"
    assert "takes too long" in errors
    assert waits.returncode == 0


#: Its standard error is closed, or a pipe that nobody reads and that is full.
MUTE = """
import os, signal
from mqtune.driver.interrupts import Interrupts

if {is_closed}:
    os.close(2)
else:
    os.dup2(os.pipe()[1], 2)
    os.set_blocking(2, False)
    try:
        while True:
            os.write(2, b" " * 4096)
    except BlockingIOError:
        os.set_blocking(2, True)
interrupts = Interrupts()
with interrupts.handled():
    signal.raise_signal(signal.SIGTERM)
    print("signals:", interrupts.count, flush=True)
"""


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "stuck"])
def test_a_signal_counts_although_nobody_can_be_told(is_closed: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MUTE.format(is_closed=is_closed)], stdout=subprocess.PIPE, timeout=20, check=True
    )

    assert done.stdout == b"signals: 1\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_second_signal_ends_a_process_whose_main_thread_is_busy_in_c_code(
    number: signal.Signals, code: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as busy:
        try:
            assert busy.stdout is not None
            assert busy.stdout.readline() == "busy\n"
            busy.send_signal(number)
            # Two of them that wait are one.
            status = Path(f"/proc/{busy.pid}/status")
            eventually(lambda: "ShdPnd:\t0000000000000000" in status.read_text())
            busy.send_signal(number)
            busy.wait(10)
        finally:
            busy.kill()
        assert busy.stderr is not None
        assert busy.returncode == code
        assert "kept in /somewhere" in busy.stderr.read()
