"""The worker of a run on one machine, without Celery.

Only its driver fills its queue, so Celery would bring nothing but its import and shutdown, which take longer than the
rest of a short run. In all else it is the same as any worker (``mqtune.worker.loop.start``).

A driver starts it as a program, mqtune/services/local_worker.py, before it is ready itself. Later it sends the settings
as one line of JSON through a pipe. When the driver's end of that pipe is closed, this process ends immediately, and its
zygotes kill their trials.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from mqtune.core.errors import BrokerUnavailable, MqtuneError
from mqtune.core.timing import Timing
from mqtune.journal.base import new_token
from mqtune.journal.exchange.fleet import Fleet
from mqtune.journal.exchange.local_queue import LocalQueue, Task
from mqtune.journal.server.connection import CONNECT_TIMEOUT_S, RedisClient, connect
from mqtune.worker.attempts.attempt import AttemptRun, stop_s
from mqtune.worker.attempts.retries import PUT_BACK_S
from mqtune.worker.host.privileges import conceal
from mqtune.worker.loop.runtime import FirstExperiment
from mqtune.worker.loop.settings import WorkerSettings, check_folders, take_name
from mqtune.worker.loop.shutdown import THREADS_END_S, Shutdown, end_with_owner, shutdown_s
from mqtune.worker.loop.start import make_worker, prepare_process
from mqtune.worker.ports import MakeServices
from mqtune.worker.programs.importers import OfferedImporter

logger = logging.getLogger(__name__)

#: The interval of checks whether the worker may take an attempt, if no slot becomes free.
_LOOK_S: Final = 1.0
#: How long an attempt without a slot waits before it is prepared. It is taken as soon as the previous attempt has a
#: slot, and should not compete with the start of that attempt for the cores.
_CALM_S: Final = 0.004
#: The interval of checks, at the end, whether all attempts have ended.
_END_LOOK_S: Final = 0.01


class LocalWorker:
    """Takes attempts from the local queue, and runs each in the thread that has taken it.

    Args:
        client: a checked connection.
        name: the worker's name in the fleet, which it has taken.
        settings: the same settings as those of any worker.
        token: the fleet's proof that it has that name.
        services: makes its services.
    """

    def __init__(
        self,
        client: RedisClient,
        name: str,
        settings: WorkerSettings,
        token: str,
        services: MakeServices,
    ) -> None:
        self._free = threading.Event()
        self._settings = settings
        plan = settings.plan()
        self._runtime = make_worker(
            client, name, plan, settings, wake_consumer=self._free.set, token=token, services=services
        )
        self._queue_name = self._runtime.parts.queue
        self._queue = LocalQueue(client, patience_s=float("inf"), closing=self._runtime.closing)
        # Two for each slot, as in any worker: the next attempt comes while the process of the last one ends.
        self._threads = [
            threading.Thread(target=self._run_attempts, name=f"mqtune-slot-{number}", daemon=True)
            for number in range(2 * len(plan.devices))
        ]
        #: Locked by the thread that waits for the next attempt.
        self._taking = threading.Lock()
        #: The threads with an attempt.
        self._busy: set[threading.Thread] = set()
        #: The errors that have ended a thread. The first one ends this worker.
        self._errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def offer(self, importer: OfferedImporter) -> None:
        """Use a fork of the driver as the importer of its carried trainable."""
        self._runtime.parts.slots.importers.offered = importer

    def expect(self, packages: Iterable[str]) -> None:
        """Have importers begin with these packages, without those that mqtune itself needs."""
        self._runtime.parts.slots.importers.packages = [name for name in packages if name not in sys.modules]

    def serve(self, ahead: FirstExperiment) -> NoReturn:
        """Join the fleet and take attempts, until a signal ends this process.

        Args:
            ahead: the experiment that it is started for.
        """
        leaving = Shutdown(
            self._begin_shutdown, self._requeue, shutdown_s(self._settings.grace_s, self._settings.timing)
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, leaving.begin)
        signal.signal(signal.SIGQUIT, leaving.end_at_once)
        self._runtime.start(ahead)
        for thread in self._threads:
            thread.start()
        # Signals are handled meanwhile.
        raise self._errors.get()

    def _run_attempts(self) -> None:
        """Take attempts and run them in this thread.

        One thread at a time waits for the next attempt.
        """
        me = threading.current_thread()
        try:
            while True:
                with self._taking:
                    # The task is taken before a slot is free, so that the slot need not wait for the server. No other
                    # worker could take it.
                    if (task := self._queue.take(self._queue_name)) is None or (run := self._run_of(task)) is None:
                        continue
                    if not self._wait_for_slot(_CALM_S):
                        run.prepare()
                        self._wait_for_slot()
                    self._busy.add(me)
                is_left = False
                with _errors_logged(task):
                    is_left = self._runtime.run(run).goes_back
                self._busy.discard(me)
                self._free.set()
                if is_left:
                    with _errors_logged(task):
                        self._runtime.closing.wait(PUT_BACK_S)
                        self._queue.put(self._queue_name, task)
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self._errors.put(error)

    def _run_of(self, task: Task) -> AttemptRun | None:
        """Return the run of a task's attempt. If it can't be run, log why and return None."""
        experiment, trial, attempt, digest, *asked = task
        with _errors_logged(task):
            return self._runtime.attempt(experiment, trial, attempt, new_token(), digest, *asked)
        return None

    def _wait_for_slot(self, timeout_s: float = math.inf) -> bool:
        """Wait until the worker may run another attempt. Return False after *timeout_s* seconds."""
        until = time.monotonic() + timeout_s
        while len(self._busy) >= self._runtime.capacity:
            if (left_s := until - time.monotonic()) <= 0:
                return False
            self._free.wait(min(left_s, _LOOK_S))
            self._free.clear()
        return True

    def _requeue(self) -> None:
        self._runtime.requeue_all("its worker was shut down")

    def _begin_shutdown(self) -> None:
        # Not here: a signal may have come while the main thread holds any lock.
        threading.Thread(target=self._shut_down, name="mqtune-ending", daemon=True).start()

    def _shut_down(self) -> NoReturn:
        code = 1
        try:
            self._requeue()
            self._runtime.close(grace_s=stop_s(self._settings.grace_s, self._settings.timing))
            over_at = time.monotonic() + THREADS_END_S
            while self._busy and time.monotonic() < over_at:
                time.sleep(_END_LOOK_S)
            code = int(bool(self._busy))
        finally:
            logging.shutdown()
            # Nothing is left to do, and a thread waits for an attempt that does not come.
            os._exit(code)


@contextlib.contextmanager
def _errors_logged(task: Task) -> Iterator[None]:
    """Log an error of one attempt instead of raising it."""
    trial = task[1]
    try:
        yield
    except BrokerUnavailable as error:
        # Raised only when the worker is shutting down: until then the journal tries again.
        logger.warning("the end of trial %s could not be journaled: %s", trial, error)
    except MqtuneError as error:
        logger.warning("trial %s is not run: %s", trial, error)
    except Exception:
        logger.exception("trial %s could not be run", trial)


def main(
    owner_fd: int,
    importer_fd: int | None,
    make_settings: Callable[[Mapping[str, Any]], WorkerSettings],
    services: Callable[[WorkerSettings], MakeServices],
) -> None:
    """Wait for the settings, and run a worker with them. Return if the driver needs no worker.

    Args:
        owner_fd: the read end of the pipe from the driver.
        importer_fd: the channel to a fork of the driver that waits to be an importer; None without one.
        make_settings: makes the worker's settings from values by name.
        services: makes the worker's services.
    """
    os.set_inheritable(owner_fd, False)
    line = _read_line(owner_fd)
    if not line:
        # The driver needs no worker.
        return
    told = json.loads(line)
    logging.basicConfig(level=logging.WARNING, format="[%(asctime)s: %(levelname)s] %(message)s")
    end_with_owner(owner_fd)
    conceal()
    name, ahead, packages = told.pop("name"), FirstExperiment(*told.pop("ahead")), told.pop("packages")
    roots = {root: Path(told[root]) for root in ("code_root", "log_root")}
    try:
        settings = make_settings(told | roots | {"timing": Timing(**told["timing"])})
        check_folders(settings.code_root, settings.log_root)
        client = connect(settings.broker, timing=settings.timing, role="worker")
        fleet = Fleet(client, patience_s=CONNECT_TIMEOUT_S)
        take_name(fleet, name, settings.timing.lease_s)
        prepare_process()
        worker = LocalWorker(client, name, settings, fleet.token, services(settings))
        worker.expect(packages)
        if importer_fd is not None:
            worker.offer(OfferedImporter(importer_fd))
        worker.serve(ahead)
    except MqtuneError as error:
        # One line instead of a traceback.
        sys.exit(f"mqtune: {error}")


def _read_line(fd: int) -> bytes:
    """Return the first line; empty if the pipe is closed before its end."""
    line = b""
    while not line.endswith(b"\n"):
        # One byte at a time: the rest is for the watch of the pipe.
        if not (byte := os.read(fd, 1)):
            return b""
        line += byte
    return line
