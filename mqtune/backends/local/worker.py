"""A worker on this machine. It ends with its driver."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

from mqtune.backends.local.processes import wait_for_end
from mqtune.core.errors import TrainableNotFound
from mqtune.core.timing import Timing
from mqtune.trainable.cells import Carried
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.driver_fork import fork_importer, own_files, why_no_fork
from mqtune.trainable.process.exits import flush_all
from mqtune.trainable.process.late_imports import imported_packages
from mqtune.trainable.spec import Function

#: Timeout of a worker's shutdown. Stopping its trials takes at most 15 s.
_STOP_TIMEOUT_S: Final = 20.0


class WorkerProcess:
    """A worker process on this machine. It ends when the process that started it is gone.

    Args:
        arguments: the arguments of Python that start the worker.
        environment: additional environment variables.
        carried: a trainable in this process's memory. A fork of this process then becomes the worker's importer. None
            if workers can import the trainable.
    """

    def __init__(
        self,
        log: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str] = {},
        *,
        carried: Function | None = None,
    ) -> None:
        offered: dict[str, Any] = {}
        with ExitStack() as stack:
            if carried is not None:
                files = own_files()
                # Otherwise the fork would write the buffered text a second time.
                flush_all()
                worker_end, importer_end = Channel.pair()
                stack.callback(worker_end.close)
                stack.callback(importer_end.close)
                environment = {**environment, "MQTUNE_IMPORTER_FD": str(worker_end.fileno())}
                offered = {
                    "pass_fds": [worker_end.fileno()],
                    "preexec_fn": partial(fork_importer, importer_end, files, carried),
                }
            self._start(log, arguments, environment, **offered)

    def _start(
        self,
        log: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        preexec_fn: Callable[[], None] | None = None,
    ) -> None:
        self.log = log
        owned, self._owner = os.pipe()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    # -P: don't import from the working directory, such as a folder named mqtune.
                    [sys.executable, "-P", *arguments],
                    env={**os.environ, **environment, "MQTUNE_OWNER_FD": str(owned)},
                    pass_fds=[owned, *pass_fds],
                    preexec_fn=preexec_fn,  # noqa: PLW1509 - there are no threads then
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # The driver handles Ctrl-C in the terminal.
                    start_new_session=True,
                )
        finally:
            os.close(owned)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def problem(self) -> str | None:
        """Return why the worker has ended, with the end of its log. None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        tail = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])
        return f"the local worker ended with code {code}; the end of {self.log}:\n{tail}"

    def leave(self) -> None:
        """Order the worker to requeue its trials and end. Return immediately."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Order the worker to requeue its trials and end. Wait for its end; kill it after 20 s."""
        self.leave()
        wait_for_end(self._process, _STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Kill the worker and its trials."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self._owner)
        self._owner = -1


def private_name() -> str:
    """Return the name of this process's own worker in the fleet's register."""
    return f"local-{os.getpid()}@{socket.gethostname()}"


class PrivateWorker(WorkerProcess):
    """The worker of one run, without Celery.

    It imports its modules, and then waits for ``begin``.

    Args:
        folder: the experiment's folder, for the logs of the worker and its trials.
        carried: the trainable, if it exists in this process's memory only. Trials are then forks of this process.

    Raises:
        TrainableNotFound: the trainable exists in this process only, and this process can't be forked.
    """

    def __init__(self, folder: Path, carried: Carried | None = None) -> None:
        if carried is not None and (why_not := why_no_fork()):
            raise TrainableNotFound(
                f"{carried.why}. Trials on this machine could be forks of this program, but it can't be forked, "
                f"because it {why_not}"
            )
        super().__init__(
            folder / "worker.log",
            ["-m", "mqtune.services.local_worker"],
            carried=None if carried is None else carried.call,
        )
        self._folder = folder
        self._packages = imported_packages()

    def begin(
        self,
        broker: str,
        *,
        code_root: Path,
        slots: Mapping[str, str | int],
        ahead: tuple[str, str],
        code_key: str = "",
        timing: Timing = Timing(),
    ) -> None:
        """Let the worker connect and run trials. If it has ended, ``problem`` says why.

        Args:
            code_root: a folder above the trainable.
            slots: settings of ``mqtune worker`` for its slots.
            ahead: its only experiment, and a digest of the experiment's definition. The worker imports its trainable
                before the first trial.
            code_key: the key that signs the driver's code; empty if the driver sends no code.
            timing: the worker's leases and timeouts.
        """
        settings = {
            "name": private_name(),
            "experiments": ahead[0],
            "broker": broker,
            "code_root": str(code_root),
            "log_root": str(self._folder.parent),
            "code_key": code_key,
            **({"accept_code": True} if code_key else {}),
            "ahead": ahead,
            "packages": self._packages,
            "timing": asdict(timing),
            **slots,
        }
        with contextlib.suppress(BrokenPipeError):
            os.write(self._owner, json.dumps(settings).encode() + b"\n")
