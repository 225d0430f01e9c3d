"""A worker on this machine that ends with the driver that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

#: A worker that shuts down requeues its trials; stopping them takes at most 15 s.
_STOP_TIMEOUT_S: Final = 20.0
#: Environment variables of ``mqtune worker`` that are set by operators for workers of their own.
_OF_OPERATORS: Final = frozenset(
    f"MQTUNE_{name}"
    for name in (
        "CPUS",
        "EXPERIMENTS",
        "GPUS",
        "GPUS_PER_SLOT",
        "GPU_MEMORY",
        "GRACE",
        "REMOTE_CONTROL",
        "SLOTS",
        "SLOTS_PER_GPU",
        "TAGS",
        "USER",
    )
)


class LocalWorker:
    """A worker process on this machine; it ends by itself when the process that started it is gone.

    Args:
        broker: the server's URL; it is passed in the environment, which other users can't read.
        folder: the experiment's folder, for the logs of the worker and its trials.
        code_root: the folder below which the trainable is.
        options: the options of ``mqtune worker`` about its slots.
    """

    def __init__(self, broker: str, *, folder: Path, code_root: Path, options: Sequence[str]) -> None:
        self.log = folder / "worker.log"
        ours_read, self._owner = os.pipe()
        environment = {
            # Settings for an operator's own workers do not apply to this one.
            **{name: value for name, value in os.environ.items() if name not in _OF_OPERATORS},
            "MQTUNE_BROKER": broker,
            "MQTUNE_CODE_ROOT": str(code_root),
            "MQTUNE_LOG_ROOT": str(folder.parent),
            "MQTUNE_OWNER_FD": str(ours_read),
        }
        # -P: what lies where the driver was started, such as a folder named mqtune, must not be imported instead.
        command = [sys.executable, "-P", "-m", "mqtune", "worker", "--name", f"local-{os.getpid()}", *options]
        # What Celery logs of each task is in the journal.
        command += ["--loglevel", "WARNING"]
        try:
            with self.log.open("ab") as output:
                self._process = subprocess.Popen(
                    command,
                    env=environment,
                    pass_fds=[ours_read],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # The driver handles Ctrl-C in the terminal.
                    start_new_session=True,
                )
        finally:
            os.close(ours_read)

    def problem(self) -> str | None:
        """Return why the worker has ended, with the end of its log; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        tail = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])
        return f"the local worker ended with code {code}; the end of {self.log}:\n{tail}"

    def stop(self) -> None:
        """Have the worker requeue its trials and shut down; wait until it is gone."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the worker; its trials are killed with it."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._owner)
        self._owner = -1
