"""A program in a terminal of its own, as a person has it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

#: Makes the terminal the session's own, without which Ctrl-C means nothing, and becomes the program.
_TAKE_TERMINAL: Final = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """What a person does and sees; the program is the leader of the terminal's session, so that keys reach it."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.raw = b""
        self._terminal = terminal

    @property
    def text(self) -> str:
        return _CONTROL.sub("", self.raw.decode(errors="replace"))

    def wait_for(self, pattern: str, deadline_s: float) -> None:
        """Wait until what was written matches; fail when the program ends before, or too late."""
        deadline = time.monotonic() + deadline_s
        while not re.search(pattern, self.text):
            assert self._read(deadline), f"ended without {pattern!r}:\n{self.text[-3000:]}"

    def press(self, key: bytes) -> None:
        os.write(self._terminal, key)

    def wait(self, deadline_s: float) -> int:
        deadline = time.monotonic() + deadline_s
        while self._read(deadline):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def _read(self, deadline: float) -> bool:
        assert time.monotonic() < deadline, f"too late:\n{self.text[-3000:]}"
        if not select.select([self._terminal], [], [], 0.1)[0]:
            return True
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            return False
        self.raw += data
        return bool(data)


def processes_in(home: Path) -> list[str]:
    """Return the living processes of experiments in this home, wherever their parents are."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("MQTUNE_HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid}: {' '.join(process.cmdline())}")
    return found


@contextlib.contextmanager
def terminal(command: Sequence[str], *, columns: int = 100, lines: int = 40) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", _TAKE_TERMINAL, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
