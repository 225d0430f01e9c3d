"""Drivers that run in the fleet: the workers that host them, what is submitted, and a driver's process as the run sees it."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
from lone import PATIENCE_S, connected
from redis.backoff import NoBackoff
from redis.retry import Retry
from waiting import eventually, family_of, lives

from mqtune.core.owner import this_owner
from mqtune.core.submission import Submission
from mqtune.services.submissions.board import Submissions
from mqtune.trainable import Bundle, File

HERE: Final = Path(__file__).parent
#: What hosts take scripts by.
KEY: Final = "the key of a campaign's hosts"


class SubmittedProcess:
    """The process of a driver that somebody else has started: how it has ended is told by what it has left."""

    def __init__(self, pid: int, exit_file: Path) -> None:
        self.returncode: int | None = None
        self._exit_file = exit_file
        self._family = family_of(pid)[:1]

    def poll(self) -> int | None:
        if self.returncode is None and not any(map(lives, self._family)):
            self.returncode = int(self._exit_file.read_text()) if self._exit_file.exists() else -signal.SIGKILL
        return self.returncode

    def send_signal(self, number: int) -> None:
        for process in self._family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 60.0) -> None:
        eventually(lambda: self.poll() is not None, timeout)


class Desk:
    """Where drivers of a run are submitted, and ended; each call answers within some seconds, also while the Redis is away or frozen.

    Args:
        server: returns the Redis.
    """

    def __init__(self, server: Callable[[], Any]) -> None:
        self._server = server
        self._bundle = Bundle.of({"submitted_main.py": File((HERE / "submitted_main.py").read_bytes())})

    @contextlib.contextmanager
    def _submissions(self) -> Iterator[Submissions]:
        # The thread that waits here is the one that thaws a Redis that is frozen.
        with connected(self._server(), retry=Retry(NoBackoff(), 0)) as client:
            yield Submissions(client, patience_s=PATIENCE_S)

    def submit(self, name: str, arguments: tuple[str, ...]) -> None:
        """Submit the next driver of an experiment.

        Raises:
            MqtuneError: one waits or runs, somebody drives, or the Redis is away.
        """
        wanted = Submission(name, "submitted_main.py", arguments, self._bundle.digest, this_owner(), time.time())
        with self._submissions() as submissions:
            submissions.submit(wanted, self._bundle, KEY)

    def halt(self, name: str) -> bool:
        """Have no worker run a driver of an experiment any more; whether that is so already.

        Raises:
            MqtuneError: the Redis is away.
        """
        with self._submissions() as submissions:
            return submissions.halt(name, "nobody is to drive") != "told"


def new_drivers(told: Path, known: set[Path]) -> Iterator[tuple[Path, SubmittedProcess]]:
    """Yield the drivers that have begun since, in their order: what each is told, and its process."""
    for file in sorted(told.glob("*.pid")):
        path = file.with_suffix("")
        text = file.read_text()
        if path not in known and text.endswith("\n"):
            yield path, SubmittedProcess(int(text), path.with_suffix(".exit"))
