"""Waits for the end of child processes."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess


def wait_for_end(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait up to *timeout_s* seconds for a process to end, and reap it.

    Return whether it has ended. It returns sooner than ``Popen.wait`` with a timeout, which polls at intervals of up to
    50 ms.
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
