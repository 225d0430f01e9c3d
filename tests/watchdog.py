"""Ends what a test run started when the run itself is killed; started by conftest.py with the run's mark and folder."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Final

import psutil

__all__ = ["RUN_MARK", "processes_of_run"]

#: In the environment of every process that a test starts, so that one that lost its parents is found too.
RUN_MARK: Final = "MQTUNE_TEST_RUN"
#: How long what was started may take to see that the run is gone and end by itself.
GRACE_S: Final = 3.0
_POLL_S: Final = 0.1


def processes_of_run(mark: str, folder: Path) -> list[psutil.Process]:
    """The living processes that carry the run's mark, or work in its folder: a Redis server overwrites its environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            marked = process.environ().get(RUN_MARK) == mark or folder in Path(process.cwd()).parents
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def main(mark: str, folder: Path) -> None:
    """Wait until standard input ends, which only the end of the test run does, then see that nothing is left."""
    while os.read(0, 1):
        pass
    deadline = time.monotonic() + GRACE_S
    while processes_of_run(mark, folder) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    for process in processes_of_run(mark, folder):
        with contextlib.suppress(psutil.Error):
            process.kill()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
