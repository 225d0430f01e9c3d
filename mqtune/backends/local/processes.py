"""Waits for processes that were started here."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess


def wait_for_end(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for a process to end, at most *timeout_s* seconds. Reap it and return whether it did.

    ``Popen.wait`` with a timeout polls at intervals of up to 50 ms, which is longer than a server takes to end.
    """
    if process.poll() is None:
        with contextlib.suppress(AttributeError, OSError):
            pidfd = os.pidfd_open(process.pid)
            try:
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                poll.poll(timeout_s * 1000)
                timeout_s = 0
            finally:
                os.close(pidfd)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    return process.returncode is not None
