"""The worker's Celery app: its pool, its steps, and its one task.

Celery carries ids of attempts and shows running trials. Everything that must not be lost is in the journal. On the
worker's side, this module alone imports celery.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from signal import SIG_IGN, SIGHUP, SIGKILL, getsignal
from typing import Any, Final

from celery import Celery, bootsteps, platforms
from celery.app.events import Events
from celery.apps.worker import Worker
from celery.bin.worker import click as celerys_cli
from celery.concurrency.base import BasePool
from celery.events.dispatcher import EventDispatcher
from celery.exceptions import Ignore
from celery.platforms import EX_FAILURE, EX_OK
from celery.signals import after_setup_logger, after_setup_task_logger, task_revoked
from celery.worker import control, state
from celery.worker.control import Panel, nok
from celery.worker.request import Request
from kombu.asynchronous import Hub
from kombu.common import ignore_errors
from kombu.entity import Queue
from kombu.transport import TRANSPORT_ALIASES
from kombu.utils.functional import maybe_list
from kombu.utils.objects import cached_property

from mqtune.core.errors import MqtuneError, TrialFailed
from mqtune.core.json_lines import logged_as
from mqtune.core.keys import TASK_NAME
from mqtune.core.resources import queue_name, queues_of
from mqtune.core.trial import AttemptEnd
from mqtune.journal.base import new_token
from mqtune.journal.exchange.fleet import Fleet
from mqtune.journal.server.connection import RedisClient, connect
from mqtune.journal.server.retry import retrying
from mqtune.worker.attempts.attempt import AttemptRun, stop_s
from mqtune.worker.attempts.retries import PUT_BACK_S
from mqtune.worker.host.devices import SlotPlan
from mqtune.worker.host.privileges import become, conceal
from mqtune.worker.loop.runtime import WorkerRuntime
from mqtune.worker.loop.settings import (
    WorkerSettings,
    celery_settings,
    check_broker,
    check_concurrency,
    check_folders,
    check_options,
    check_settings,
    owned_settings,
    take_name,
)
from mqtune.worker.loop.shutdown import THREADS_END_S, Shutdown, end_with_owner, shutdown_s
from mqtune.worker.loop.start import make_worker, prepare_process
from mqtune.worker.ports import MakeServices, WorkerHost, WorkerService
from mqtune.worker.reports.uplink import Wake
from mqtune.worker.tasks.consumer_watch import ConsumerWatch
from mqtune.worker.tasks.flower import FlowerRows, Text, failure, latest_report
from mqtune.worker.tasks.log_format import format_handlers
from mqtune.worker.tasks.revokes import Revokes
from mqtune.worker.tasks.transport import FollowingTransport, TrialTransport, close_unused_channels

logger = logging.getLogger(__name__)

#: The most commands to Redis at the same time: one for reports, one for the heartbeat, and two for attempts that begin
#: or end. Redis runs one at a time anyway, and takes 10,000 connections of all workers by default.
MOST_COMMANDS: Final = 4
#: The parts of kombu's description of a broker that have passwords.
_BROKER_SECRETS: Final = frozenset({"password", "transport_options", "alternates"})
#: Remote commands without an effect on trials, and the replacements.
_REFUSED_COMMANDS: Final = {
    "rate_limit": "a trial starts when a slot is free; max_concurrent= of the Tuner says how many run at once",
    "time_limit": "how long a trial may run is its experiment's to say: timeout_s= of the Tuner, or its scheduler",
}


class TrialPool(BasePool):
    """Celery's thread pool for trials: the thread of each task supervises one trial.

    Unlike Celery's own thread pool, it wakes the consumer when a slot becomes free (the consumer otherwise checks once
    a second), it can terminate a single task, and an error in a callback does not lose the slot.
    """

    signal_safe = False
    body_can_be_buffer = True

    def __init__(self, limit: int | None = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(limit, *args, **kwargs)
        self.wake = Wake()
        self.runtime: WorkerRuntime | None = None
        #: The loop of the consuming thread; kombu's own record of it is empty after a reconnection.
        self.hub: Hub | None = None
        #: The number of all tasks so far, and the ids of the present tasks by their numbers.
        self.taken = 0
        self.tasks: dict[int, str] = {}
        #: The runs of the present tasks by task id, and the ids of tasks that a person has terminated.
        self.runs: dict[str, AttemptRun] = {}
        self.terminated: set[str] = set()
        self._futures: set[Future[None]] = set()
        self._executor: ThreadPoolExecutor | None = None

    @property
    def num_processes(self) -> int:
        """How many tasks the consumer may hold."""
        return int(self.limit) if self.runtime is None else self.runtime.capacity

    def on_start(self) -> None:
        # Twice the slots: the next task of a slot arrives while the last one's process ends. A worker with driver slots
        # alone has no slots.
        self._executor = ThreadPoolExecutor(max_workers=max(1, 2 * int(self.limit)), thread_name_prefix="mqtune-slot")

    def register_with_event_loop(self, hub: Hub) -> None:
        self.hub = hub
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
        self.taken = token = self.taken + 1
        self.tasks[token] = correlation_id

        def work() -> None:
            try:
                if accept_callback is not None:
                    accept_callback(token, time.monotonic())
                result = target(*(args or ()), **(kwargs or {}))
                # Celery has already recorded a terminated task as revoked.
                if callback is not None and correlation_id not in self.terminated:
                    callback(result)
            except Exception:
                logger.exception("task %s: Celery's own bookkeeping failed", correlation_id)
            finally:
                self.tasks.pop(token, None)
                self.runs.pop(correlation_id, None)
                self.terminated.discard(correlation_id)
                self.wake.set()

        assert self._executor is not None  # noqa: S101 - Celery starts a pool before it uses it
        future = self._executor.submit(work)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        # Celery calls it after terminate_job, which has done everything already.
        future.terminate = lambda *_: None  # type: ignore[attr-defined]
        return future

    def terminate_job(self, token: int, signal: int | None = None) -> None:
        """End one task's trial for a person (``revoke(terminate=True)``, Flower's Terminate)."""
        task_id = self.tasks.get(token)
        if task_id is not None:
            self.terminated.add(task_id)
            if run := self.runs.get(task_id):
                run.terminate(kill=signal == SIGKILL)

    def enter(self, run: AttemptRun) -> None:
        """Register a run, so that it ends when its task is terminated, or now if it was terminated."""
        self.runs[run.task_id] = run
        if run.task_id in self.terminated:
            run.terminate(kill=False)

    def grow(self, n: int = 1) -> None:
        """Refuse this remote command; the error's text is the answer."""
        raise NotImplementedError("a worker has as many slots as it has devices: start another worker")

    shrink = grow

    def on_stop(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            wait(tuple(self._futures), timeout=THREADS_END_S)

    @property
    def is_busy(self) -> bool:
        """Whether a thread still runs. After a stop, such a thread hangs."""
        return any(not future.done() for future in tuple(self._futures))

    on_terminate = on_stop

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        if self.runtime is not None:
            info["slots"] = str(self.runtime.parts.slots.plan.offer)
            info["trials"] = sorted(f"{r.journal.experiment}/{r.claim.trial}" for r in tuple(self.runtime.running))
        return info


class TrialRequest(Request):
    """A task on its way through the worker, for ``inspect active`` and Flower."""

    def info(self, safe: bool = False) -> dict[str, Any]:
        """Return Celery's description, with the trial's config and the pid of its process."""
        run = self.app.trials.runs.get(self.id)
        shown = {"kwargs": self.kwargsrepr, "worker_pid": run.pid if run is not None else None}
        return {**super().info(safe), **shown}


def _make_refusal(command: str, reason: str) -> Callable[..., object]:
    def refuse(_: object, **asked: object) -> object:
        logger.warning("remote command %s (%s) is refused: %s", command, asked, reason)
        return nok(f"not done: {reason}")

    return refuse


class TrialWorker(Worker):
    """Celery's worker without the parts that don't scale. It refuses settings that harm trials."""

    def on_before_init(self, concurrency: object = None, **kwargs: Any) -> None:
        try:
            conceal()
            if self.app.settings.user:
                become(self.app.settings.user)
            check_options(_is_given)
            check_settings(self.app.conf, owned_settings(self.app.settings))
            self.app.prepare(self.hostname, concurrency)
            if self.app.settings.log_format == "json":
                for made in (after_setup_logger, after_setup_task_logger):
                    made.connect(partial(format_handlers, self.hostname), weak=False)
                # The banner is no JSON.
                kwargs["quiet"] = True
            # Celery would report success, and they would have no effect.
            Panel.data.update({name: _make_refusal(name, reason) for name, reason in _REFUSED_COMMANDS.items()})
            Panel.data.update({"revoke": self._revoke, "terminate": self._terminate})
        except MqtuneError as error:
            # One line instead of a traceback.
            sys.exit(f"mqtune: {error}")
        super().on_before_init(**kwargs)

    def prepare_args(self, **kwargs: Any) -> dict[str, Any]:
        # With gossip every worker hears every other's heartbeats: 500,000 messages a second for 1,000 workers.
        kwargs.update(without_gossip=True, without_mingle=True)
        self.concurrency = len(self.app.plan.devices)
        # Flower enables task events every five seconds, which is too late for the first trials.
        self.task_events: bool = self.task_events or self.app.is_watched
        # The URL of a socket can't name a transport class; this affects only the worker's own process.
        one, following = (
            f"{transport.__module__}:{transport.__name__}" for transport in (TrialTransport, FollowingTransport)
        )
        TRANSPORT_ALIASES.update({"redis": one, "rediss": one, "sentinel": following})
        prepared: dict[str, Any] = super().prepare_args(**kwargs)
        return prepared

    def install_platform_tweaks(self, worker: Any) -> None:
        """Install the signal handlers. SIGHUP drains the worker, unless it was ignored (nohup)."""
        hang_up = getsignal(SIGHUP)
        super().install_platform_tweaks(worker)
        # Celery's own handlers wait for trials to end by themselves, and then record them as terminated by a person.
        self.app.trials = self.pool
        settings = self.app.settings
        leaving = Shutdown(self._leave, self.app.requeue_all, shutdown_s(settings.grace_s, settings.timing))
        platforms.signals["SIGTERM"] = platforms.signals["SIGINT"] = leaving.begin
        platforms.signals["SIGQUIT"] = leaving.end_at_once
        # Celery's own handler would restart the worker.
        platforms.signals["SIGHUP"] = SIG_IGN if hang_up is SIG_IGN else leaving.begin

    def _revoke(self, panel: Any, task_id: Any, **asked: Any) -> Any:
        """Revoke tasks, and journal that, because workers forget revokes when they end."""
        self.app.revokes.add(maybe_list(task_id) or [])
        return control.revoke(panel, task_id, **asked)

    def _terminate(self, panel: Any, signal: Any, task_id: Any, **asked: Any) -> Any:
        return self._revoke(panel, task_id, **{**asked, "terminate": True, "signal": signal})

    def _process_task(self, req: Any) -> None:
        try:
            super()._process_task(req)
        except Exception as error:  # noqa: BLE001 - anybody may have written the message's headers
            # Without this, Celery would count it as active, in a slot.
            state.task_ready(req)
            logger.warning("task %.200s is not run: its message is malformed: %s", req.id, error)

    def _leave(self) -> None:
        state.should_stop = EX_OK
        self.pool.wake.set()

    def emit_banner(self) -> None:
        """Print Celery's banner, unless a full disk has the worker's output."""
        with contextlib.suppress(OSError):
            super().emit_banner()

    def start(self) -> None:
        super().start()
        if self.pool is not None and self.pool.is_busy:
            logger.error("a trial's process can't be killed; the worker ends without it")
            os._exit(EX_FAILURE)
        if self.exitcode:
            # ``worker_main`` would lose it.
            sys.exit(self.exitcode)


def _is_given(option: str) -> bool:
    """Whether an option is given on Celery's command line or in its environment variable."""
    context = celerys_cli.get_current_context(silent=True)
    source = context.get_parameter_source(option) if context is not None else None
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


class ListenedDispatcher(EventDispatcher):
    """Sends Celery's heartbeats only while somebody listens to events.

    Celery publishes one each two seconds: more than half of an idle worker's load on Redis. If a listener such as
    Flower has enabled task events, or was connected at the worker's start, all events are sent.
    """

    def send(self, type: str, *args: object, **kwargs: object) -> object:  # noqa: A002 - as Celery calls it
        """Send an event."""
        is_heard = not self.groups or "task" in self.groups
        return super().send(type, *args, **kwargs) if is_heard or type != "worker-heartbeat" else None


class TrialEvents(Events):
    """Celery's events with ``ListenedDispatcher``."""

    dispatcher_cls = f"{__name__}:{ListenedDispatcher.__name__}"


class TrialApp(Celery):
    """A Celery app whose workers run trials."""

    events_cls = f"{__name__}:{TrialEvents.__name__}"
    settings: WorkerSettings
    services: MakeServices
    plan: SlotPlan
    client: RedisClient
    #: Proves that the worker holds its name.
    token: str
    #: Whether somebody may be listening to events.
    is_watched: bool
    trials: TrialPool
    runtime: WorkerRuntime
    revokes: Revokes
    rows: FlowerRows

    @cached_property
    def Worker(self) -> Any:  # noqa: N802 - Celery's name
        """Return the worker class that ``celery worker`` starts."""
        return self.subclass_with_self(TrialWorker, name="Worker")

    def prepare(self, name: str, concurrency: object) -> None:
        """Find devices, connect, and check that the worker can run trials. Not called for Flower.

        Raises:
            MqtuneError: the worker can't start.
        """
        check_folders(self.settings.code_root, self.settings.log_root)
        for service in self.settings.services:
            service.begin()
        self.plan = self.settings.plan()
        check_concurrency(concurrency, len(self.plan.devices))
        queue = queue_name(self.plan.offer, self.settings.experiments)
        # Received messages leave the queue. An acknowledgement would cost two round trips a trial and save nothing: a
        # lost message is published again.
        queues = queues_of(queue)
        self.conf.update(task_queues=[Queue(name, no_ack=True) for name in queues], task_default_queue=queues[0])
        for celerys in (self.conf.broker_read_url, self.conf.broker_write_url):
            check_broker(self.settings.broker, celerys)
        timing = self.settings.timing
        self.client = connect(self.settings.broker, timing=timing, role="worker")
        self.client.limit_to(MOST_COMMANDS)
        for service in self.settings.services:
            service.check_start(self.client, self.plan, self.settings)
        fleet = Fleet(self.client, patience_s=timing.connect_timeout_s)
        take_name(fleet, name, timing.lease_s)
        self.token = fleet.token
        # The key where kombu keeps the queues of event listeners.
        listeners = f"_kombu.binding.{self.conf.event_exchange}"
        self.is_watched = bool(retrying(lambda: self.client.exists(listeners), patience_s=timing.connect_timeout_s))

    def requeue_all(self) -> None:
        """End all attempts so that their trials run again elsewhere, and start nothing more."""
        if self.trials.runtime is not None:
            self.trials.runtime.requeue_all("its worker was shut down")


class RuntimeStep(bootsteps.StartStopStep):
    """Starts the runtime after the pool and before the consumer. They stop in the reverse order."""

    requires = {"celery.worker.components:Pool"}  # noqa: RUF012 - Celery reads it from the class

    def start(self, worker: Any) -> None:
        app: TrialApp = worker.app
        settings = app.settings
        prepare_process()
        if settings.owner_fd is not None:
            end_with_owner(settings.owner_fd)
        rows = app.rows = FlowerRows(lambda: getattr(worker.consumer, "event_dispatcher", None))

        def close_unused() -> None:
            # A thousand workers would otherwise meet Redis' limit of 10,000 connections.
            unused_s = settings.timing.unused_s
            app.client.close_unused(unused_s)
            # In the thread that opens channels.
            worker.consumer.hub.call_soon(close_unused_channels, unused_s)

        watch = ConsumerWatch(
            worker,
            timing=settings.timing,
            close_unused=close_unused,
            is_leaving=lambda: state.should_stop is not None,
        )

        def services(host: WorkerHost) -> tuple[WorkerService, ...]:
            app.revokes = Revokes(host)
            return *app.services(host), watch, app.revokes

        runtime = worker.pool.runtime = app.runtime = make_worker(
            app.client,
            worker.hostname,
            app.plan,
            settings,
            wake_consumer=worker.pool.wake.set,
            show=rows.running,
            token=app.token,
            services=services,
        )
        runtime.start()

    def stop(self, worker: Any) -> None:
        if worker.pool.runtime is not None:
            worker.app.requeue_all()
            if tasks := worker.consumer.task_consumer:
                # A message that Redis delivers in this moment returns to the queue now, not when all trials have ended.
                ignore_errors(worker.consumer, tasks.channel.close)
            worker.pool.runtime.close(grace_s=stop_s(worker.app.settings.grace_s, worker.app.settings.timing))

    def terminate(self, worker: Any) -> None:
        if worker.pool.runtime is not None:
            worker.pool.runtime.close(grace_s=0)


class BrokerStep(bootsteps.StartStopStep):
    """Describes the broker to ``celery inspect stats`` and Flower.

    Celery's own step also shows options, which have the Sentinels' password.
    """

    requires = {"celery.worker.consumer.connection:Connection"}  # noqa: RUF012 - as above

    def info(self, consumer: Any) -> dict[str, object]:
        if consumer.connection is None:
            return {}
        known = consumer.connection.info()
        return {"broker": {name: value for name, value in known.items() if name not in _BROKER_SECRETS}}


def create_app(settings: WorkerSettings, services: MakeServices) -> TrialApp:
    """Return the Celery app of a worker, for ``celery -A`` and for Flower.

    Before a worker starts, it neither connects nor looks for devices.
    """
    app = TrialApp("mqtune", set_as_current=False)
    app.settings, app.services = settings, services
    app.conf.update(celery_settings(settings))
    app.steps["worker"].add(RuntimeStep)
    app.steps["consumer"].add(BrokerStep)

    @app.task(name=TASK_NAME, bind=True, throws=(TrialFailed,), Request=TrialRequest)
    def run_trial(self: Any, experiment: str, trial: str, attempt: int, definition: str, *asked: int) -> object:
        """Run one attempt, unless it is no longer wanted or another worker has it.

        See ``Task`` for the arguments.
        """
        with logged_as(experiment=experiment, trial=trial, attempt=attempt):
            try:
                run = app.runtime.attempt(experiment, trial, attempt, new_token(), definition, *asked)
            except MqtuneError as error:
                logger.warning("task %.200s is not run: %s", self.request.id, error)
                raise Ignore(f"not run: {error}") from None
            run.task_id = self.request.id
            return _run(app, run)

    @task_revoked.connect(weak=False)
    def revoked(request: Any, *, terminated: bool, **_: Any) -> None:
        if not terminated:
            app.rows.revoked(request.id, request.shadow, request.kwargsrepr)
            # This worker may know of the revoke from its state file (--statedb), and be the only one.
            app.revokes.add([request.id])

    return app


def _run(app: TrialApp, run: AttemptRun) -> object:
    """Run an attempt and tell Celery, and so Flower, how it ended."""
    pool: TrialPool = app.trials
    app.rows.begin(run)
    pool.enter(run)
    try:
        outcome = app.runtime.run(run)
    except MqtuneError as error:
        # The journal takes no more entries; or the server is away, and the worker is shutting down.
        logger.warning("task %.200s ends without an end in the journal: %s", run.task_id, error)
        raise Ignore(f"its end could not be journaled ({error}); the driver will count it as lost") from None
    if outcome.goes_back:
        _put_back(pool.hub, state.requests.get(run.task_id))
    app.rows.end(run, outcome)
    if outcome.end is AttemptEnd.COMPLETED:
        return Text(latest_report(run))
    if outcome.end is AttemptEnd.FAILED:
        raise failure(outcome)
    raise Ignore(outcome.note)


def _put_back(hub: Hub | None, request: Request | None) -> None:
    """Return a task's message to the far end of its queue after ``PUT_BACK_S``.

    The consuming thread does that. If the message is lost, the driver publishes it again.
    """
    if hub is None or request is None:
        return
    message = request.message

    def publish() -> None:
        channel, to = message.channel, message.delivery_info
        again = channel.prepare_message(
            message.body,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            headers=message.headers,
            properties=dict(message.properties),
        )
        try:
            channel.basic_publish(again, to["exchange"], to["routing_key"])
        except Exception as error:  # noqa: BLE001 - a connection is lost, or the worker ends
            logger.info("the task of an attempt is not put back: %s", error)

    hub.call_soon(hub.call_later, PUT_BACK_S, publish)
