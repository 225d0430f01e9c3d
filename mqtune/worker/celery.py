"""The worker's Celery face: the app and the settings it owns, the pool, the one task, and what Flower sees.

Celery hands out ids of attempts and shows what runs; everything that must not be lost is in the journal. This is the
only module of the worker's side that imports celery.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from celery import Celery, bootsteps
from celery.apps.worker import Worker
from celery.concurrency.base import BasePool
from celery.exceptions import Ignore
from celery.signals import worker_shutting_down
from kombu.entity import Queue
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as redis_transport
from kombu.utils.objects import cached_property

from mqtune.errors import TrialFailed, WorkerStartError
from mqtune.journal.connection import celery_url, connect
from mqtune.messages import decode_value
from mqtune.resources import queue_name
from mqtune.trainable.process import become_subreaper
from mqtune.trial import AttemptEnd, TrialStatus
from mqtune.worker.attempt import STOP_S, AttemptRun, Outcome
from mqtune.worker.runtime import WorkerRuntime
from mqtune.worker.settings import WorkerSettings
from mqtune.worker.uplink import Wake

__all__ = ["TASK_NAME", "TrialApp", "TrialPool", "TrialWorker", "create_app"]

logger = logging.getLogger(__name__)

TASK_NAME: Final = "mqtune.run_trial"

#: What a worker of trials that run for hours needs of Celery on Redis; it doesn't start with anything else.
OWNED_SETTINGS: Final[dict[str, Any]] = {
    # Outcomes go to the journal. With a result backend, an outage while a task ends would block its slot for ever.
    "result_backend": None,
    "task_ignore_result": True,
    "task_track_started": False,
    # A message is taken off the queue when it is received: late acks are redelivered after the visibility timeout,
    # which would start healthy long trials a second time. A message that is lost is published again by the driver.
    "task_acks_late": False,
    # A task goes to a worker that has a slot for it, never to one that has it wait.
    "worker_disable_prefetch": True,
    "worker_prefetch_multiplier": 1,
    "worker_pool": "mqtune.worker.celery:TrialPool",
    "task_serializer": "json",
    "accept_content": ["json"],
    "event_serializer": "json",
    # Flower switches events on when it looks; without it they would cost and reach nobody.
    "worker_send_task_events": False,
    # A broken connection must not end trials.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "worker_pool_restarts": False,
    "worker_disable_rate_limits": True,
    "worker_enable_remote_control": True,
    "worker_hijack_root_logger": True,
    "worker_redirect_stdouts": False,
}
#: A half-open connection is noticed within a minute; the socket's timeout is longer than Celery's blocking reads.
TRANSPORT_OPTIONS: Final[dict[str, Any]] = {
    "socket_keepalive": True,
    "health_check_interval": 10,
    "socket_connect_timeout": 5,
    "socket_timeout": 30,
    "visibility_timeout": 3600,
}


#: The longest that one thread computes while another has something to pass on: Python's own 5 ms would be most of the
#: time in which a trial is stopped.
SWITCH_INTERVAL_S: Final = 0.0005


class TrialPool(BasePool):
    """Supervises one trial for each task, in a thread of its own.

    Unlike Celery's own thread pool it wakes the consumer when a slot becomes free (which otherwise looks once a
    second), it can terminate one task, and an error in a callback does not lose the slot.
    """

    signal_safe = False
    body_can_be_buffer = True

    def __init__(self, limit: int | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(limit, *args, **kwargs)
        self.wake = Wake()
        self.runtime: WorkerRuntime | None = None
        self._tokens = itertools.count(1)
        self._tasks: dict[int, str] = {}
        self._terminated: set[int] = set()
        self._executor: ThreadPoolExecutor | None = None

    @property
    def num_processes(self) -> int:
        """How many tasks the consumer may hold: one for each slot, and one for each slot that is about to be free."""
        return int(self.limit) + (self.runtime.ending if self.runtime is not None else 0)

    def on_start(self) -> None:
        # Twice the slots, because the next task of a slot arrives while the last one's process goes.
        self._executor = ThreadPoolExecutor(max_workers=2 * int(self.limit), thread_name_prefix="mqtune-slot")

    def register_with_event_loop(self, hub: Any) -> None:
        hub.add_reader(self.wake.fileno(), self.wake.clear)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = None,
        kwargs: Any = None,
        callback: Callable[[Any], None] | None = None,
        accept_callback: Callable[[int, float], None] | None = None,
        correlation_id: str = "",
        **_: Any,
    ) -> Future[None]:
        token = next(self._tokens)
        self._tasks[token] = correlation_id

        def work() -> None:
            try:
                if accept_callback is not None:
                    accept_callback(token, time.monotonic())
                result = target(*(args or ()), **(kwargs or {}))
                # A terminated task was already taken off the books, as revoked.
                if callback is not None and token not in self._terminated:
                    callback(result)
            except Exception:
                logger.exception("task %s: Celery's own bookkeeping failed", correlation_id)
            finally:
                self._tasks.pop(token, None)
                self._terminated.discard(token)
                self.wake.set()

        assert self._executor is not None  # noqa: S101 - Celery starts a pool before it uses it
        future = self._executor.submit(work)
        # Celery calls it after terminate_job, which has done what there is to do.
        future.terminate = lambda *_: None  # type: ignore[attr-defined]
        return future

    def terminate_job(self, token: int, signal: int | None = None) -> None:
        """End one task's trial because a person said so (``revoke(terminate=True)``, Flower's Terminate)."""
        task_id = self._tasks.get(token)
        if task_id is not None and self.runtime is not None:
            self._terminated.add(token)
            self.runtime.terminate(task_id, signal)

    def on_stop(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    on_terminate = on_stop

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        if self.runtime is not None:
            info["slots"] = str(self.runtime.plan.offer)
            info["trials"] = sorted(f"{r.journal.experiment}/{r.claim.trial}" for r in tuple(self.runtime.running))
        return info


class TrialChannel(redis_transport.Channel):
    """kombu's channel without the round trip that acknowledges what nobody keeps, and with one client instead of many."""

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Do nothing: the worker's queue is consumed without acknowledgements."""

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        # kombu makes a client for each command, which takes longer than the command; a client may be shared.
        yield client or self._shared_client

    @cached_property
    def _shared_client(self) -> Any:
        return self._create_client()


class TrialTransport(redis_transport.Transport):
    """kombu's Redis transport with the channel above."""

    Channel = TrialChannel


class TrialWorker(Worker):
    """Celery's worker, without what a fleet of hundreds can't afford, and only with the settings that it needs."""

    def prepare_args(self, **kwargs: Any) -> dict[str, Any]:
        # With gossip every worker hears every other's heartbeats: 500,000 messages a second for 1,000 workers.
        kwargs.update(without_gossip=True, without_mingle=True)
        _check_settings(self, kwargs)
        # A socket's URL leaves no other way to say which transport is meant; this is the worker's own process.
        TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{TrialTransport.__name__}"))
        return super().prepare_args(**kwargs)  # type: ignore[no-any-return]


def _check_settings(worker: TrialWorker, options: dict[str, Any]) -> None:
    conf = worker.app.conf
    for name, value in OWNED_SETTINGS.items():
        if conf[name] != value:
            raise WorkerStartError(
                f"Celery's setting {name} is {conf[name]!r}, but trials need {value!r}: remove it from the configuration"
            )
    slots = worker.app.slots
    if worker.concurrency != slots:
        raise WorkerStartError(
            f"--concurrency {worker.concurrency}: this worker has {slots} slots; choose them with --slots, --gpus or --slots-per-gpu"
        )
    if worker.pool_cls != conf.worker_pool and getattr(worker.pool_cls, "__name__", "") != TrialPool.__name__:
        raise WorkerStartError(f"--pool {worker.pool_cls!r} can't run trials: leave the option out")
    if options.get("autoscale"):
        raise WorkerStartError("--autoscale can't be used: a worker has as many slots as it has devices")


class TrialApp(Celery):
    """A Celery app whose workers run trials."""

    settings: WorkerSettings
    slots: int

    @cached_property
    def Worker(self) -> Any:  # noqa: N802 - Celery's name
        """Return the worker class that ``celery worker`` starts."""
        return self.subclass_with_self(TrialWorker, name="Worker")


class RuntimeStep(bootsteps.StartStopStep):
    """Starts the runtime after the pool and before the consumer; stops it after both."""

    requires = {"celery.worker.components:Pool"}  # noqa: RUF012 - Celery reads it from the class

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._runtime: WorkerRuntime | None = None

    def start(self, worker: Any) -> None:
        app: TrialApp = worker.app
        settings = app.settings
        # A zygote that is killed leaves its trial to this process.
        become_subreaper()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        if settings.owner_fd is not None:
            _end_with_owner(settings.owner_fd)
        self._runtime = worker.pool.runtime = app.runtime = WorkerRuntime(
            connect(settings.broker),
            name=worker.hostname,
            plan=settings.plan(),
            code_root=settings.code_root,
            log_root=settings.log_root,
            wake_consumer=worker.pool.wake.set,
            show=lambda run: _show(worker, run, "running"),
        )
        app.show = lambda run, state: _show(worker, run, state)
        self._runtime.start()

    def stop(self, worker: Any) -> None:
        if self._runtime is not None:
            self._runtime.close(grace_s=STOP_S)

    def terminate(self, worker: Any) -> None:
        if self._runtime is not None:
            self._runtime.close(grace_s=0)


def _end_with_owner(fd: int) -> None:
    """End this process at once when the driver that started it is gone; its zygotes then kill their trials."""

    def watch() -> None:
        while os.read(fd, 1):
            pass
        logger.warning("the driver that started this worker is gone; the worker ends")
        os._exit(1)

    threading.Thread(target=watch, name="mqtune-owner", daemon=True).start()


def _show(worker: Any, run: AttemptRun, state: str) -> None:
    """Put an attempt's row in Flower right: Flower takes the state from the event's name, and the rest from its fields."""
    dispatcher = getattr(worker.consumer, "event_dispatcher", None)
    if dispatcher is None or not dispatcher.enabled or not run.task_id:
        return
    try:
        dispatcher.send(
            f"task-{state}",
            uuid=run.task_id,
            name=f"{run.journal.experiment}/{run.definition['trainable']['name']}",
            args="",
            kwargs=" ".join(f"{name}={_short(value)}" for name, value in run.config.items()),
            result=_latest(run),
        )
    except Exception as error:  # noqa: BLE001 - what people watch must not disturb what they watch
        logger.warning("Flower could not be told of %s: %s", run.task_id, error)


def _latest(run: AttemptRun) -> str:
    if run.stream is None or run.stream.last_report is None:
        return ""
    _, metrics = decode_value(run.stream.last_report)
    return f"report {run.stream.sequence}: " + " ".join(f"{name}={_short(value)}" for name, value in metrics.items())


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


#: The state that Flower shows at the end, for ends that Celery has no word for.
_LAST_STATE: Final = {
    AttemptEnd.STOPPED: TrialStatus.EARLY_STOPPED.value,
    AttemptEnd.PAUSED: TrialStatus.PAUSED.value,
    AttemptEnd.LOST: AttemptEnd.LOST.value,
    AttemptEnd.HANDED_BACK: AttemptEnd.HANDED_BACK.value,
}


def create_app(settings: WorkerSettings) -> TrialApp:
    """Return the Celery app of a worker; ``celery -A`` takes it, and so does Flower.

    It connects to nothing before a worker starts.
    """
    plan = settings.plan()
    queue = queue_name(plan.offer)
    app = TrialApp("mqtune", set_as_current=False)
    app.settings = settings
    app.slots = len(plan.devices)
    app.conf.update(
        OWNED_SETTINGS,
        broker_url=celery_url(settings.broker),
        broker_transport_options=TRANSPORT_OPTIONS,
        worker_concurrency=app.slots,
        # Taken off the queue for good when it is received: an acknowledgement a moment later would cost two round trips
        # for each trial, and save nothing, since a message that is lost is published again.
        task_queues=[Queue(queue, no_ack=True)],
        task_default_queue=queue,
        task_create_missing_queues=False,
    )
    app.steps["worker"].add(RuntimeStep)

    @app.task(name=TASK_NAME, bind=True, throws=(TrialFailed,))
    def run_trial(self: Any, experiment: str, trial: str, attempt: int, definition: str) -> str:
        """Run one attempt, if it is still wanted and nobody else has it."""
        runtime: WorkerRuntime = app.runtime
        run = runtime.attempt(experiment, trial, attempt, uuid.uuid4().hex, definition)
        run.task_id = self.request.id
        return _told(app, run, runtime.run(run))

    @worker_shutting_down.connect(weak=False)
    def hand_back(**_: Any) -> None:
        # A signal handler: the pool hands the trials back, here only the word is passed on.
        runtime = getattr(app, "runtime", None)
        if runtime is not None:
            threading.Thread(target=runtime.hand_back_all, args=("its worker was shut down",), daemon=True).start()

    return app


def _told(app: Any, run: AttemptRun, outcome: Outcome) -> str:
    """Tell Celery, and so Flower, how an attempt ended."""
    if outcome.end is AttemptEnd.COMPLETED:
        return _latest(run)
    if outcome.end is AttemptEnd.FAILED:
        raise TrialFailed(outcome.note)
    app.show(run, _LAST_STATE[outcome.end] if outcome.end is not None else "superseded")
    raise Ignore(outcome.note)
