"""A worker's settings: the operator's, Celery's, and the checks before a worker starts."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from mqtune.core.errors import ConfigurationError, NameTaken, WorkerStartError
from mqtune.core.json_lines import LogFormat
from mqtune.core.keys import CONTROL_EXCHANGE, EVENT_EXCHANGE
from mqtune.core.machine import describe_process, is_gone, is_here, mqtune_home
from mqtune.core.resources import EVERY, checked_patterns
from mqtune.core.timing import Timing
from mqtune.journal.exchange.fleet import Fleet
from mqtune.journal.server.connection import RedisClient, celery_options, celery_tls, celery_url, redact
from mqtune.trainable.bundle import KEY_VARIABLE
from mqtune.worker.host.devices import SlotPlan, find_gpu_memory, find_gpus, plan_slots
from mqtune.worker.host.privileges import home_of
from mqtune.worker.loop.options import option

S = TypeVar("S", bound="ServiceSettings")

#: How long trials have to save and end when their worker shuts down. Some clouds stop a machine within 30 s.
GRACE_S: Final = 10.0
#: A day. A longer grace is probably a mistake in the unit.
LONGEST_GRACE_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """An operator's settings for one service. A service subclasses it, and declares its options as fields.

    Its methods are called in the order in which they stand here.
    """

    def check(self, settings: WorkerSettings) -> None:
        """Check these settings beside all others, when they are made.

        Raises:
            ConfigurationError: they are invalid, or contradict others.
        """

    def begin(self) -> None:
        """Begin work that must not wait for the worker's devices and its server.

        It is not called in the worker of a run on one machine. An error ends the worker's start.
        """

    def tags(self) -> Iterable[str]:
        """Return tags for every slot."""
        return ()

    def plan(self, settings: WorkerSettings, tags: Sequence[str]) -> SlotPlan | None:
        """Return the worker's slots, each with these tags.

        Return None if this service does not divide the worker's devices. The first answer counts.

        Raises:
            ConfigurationError: the devices can't be divided so.
        """
        return None

    def check_start(self, client: RedisClient, plan: SlotPlan, settings: WorkerSettings) -> None:
        """Check the worker's slots and the account of its connection, before it takes its name in the fleet.

        It is not called in the worker of a run on one machine.

        Raises:
            MqtuneError: something is missing. It ends the worker's start with one line.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings that an operator gives a worker; ``mqtune worker`` has an option for each.

    Raises:
        ConfigurationError: the grace, the pattern for names of experiments, or a service's setting is invalid.
    """

    broker: str
    gpus: str = option("auto", "GPUs to use: auto, a number, or a list such as 0,1.")
    slots_per_gpu: int = option(1, "Trials that share a GPU.")
    gpus_per_slot: int = option(1, "GPUs for each trial.")
    gpu_memory: str = option("auto", "Memory of each GPU in GB, or auto to ask nvidia-smi.")
    cpus: int | None = option(None, "CPU cores that the slots share; by default all.")
    slots: int | None = option(
        None, "Number of trials on a machine without GPUs; by default one per core. With --drivers, it may be 0."
    )
    tags: str = option("", "Tags that trials can require, such as a100,nvlink.")
    code_root: Path = option(
        make_default=Path.cwd, help="Folder that contains the trainables; by default the current one."
    )
    log_root: Path = option(make_default=mqtune_home, help="Folder for the output of trials; by default ~/mqtune.")
    grace_s: float = option(
        GRACE_S,
        "Seconds that trials have to save a checkpoint and exit when the worker shuts down.",
        name="grace",
    )
    experiments: str = option(
        EVERY,
        "Only run trials of these experiments; * is a wildcard: 'team-a-*'. For teams with separate accounts that "
        "share the worker: 'team-a-*,team-b-*'.",
    )
    remote_control: bool = option(True, "Obey Celery's remote commands: inspect, terminate, shutdown.")
    user: str = option("", "User that the worker and its trials run as, if root starts it.")
    log_format: LogFormat = option("text", "Log as text, or as one JSON object per line.")
    #: The keys of signed code and scripts; see ``CodeKeys``.
    code_key: str = field(default_factory=lambda: os.environ.get(KEY_VARIABLE, ""), repr=False)
    #: The read end of a pipe, if a driver started this worker. The driver has the write end.
    owner_fd: int | None = option(None, is_hidden=True)
    #: The worker's intervals and time-outs. Drivers must have the same leases and locks.
    timing: Timing = Timing()
    services: tuple[ServiceSettings, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "experiments", checked_patterns(self.experiments))
        if not math.isfinite(self.grace_s) or not 0 <= self.grace_s <= LONGEST_GRACE_S:
            raise ConfigurationError(
                f"--grace {self.grace_s:g} is invalid; give the seconds that trials have to save when the worker "
                f"shuts down, from 0 to {LONGEST_GRACE_S:g}"
            )
        for service in self.services:
            service.check(self)

    def of(self, kind: type[S]) -> S:
        """Return the settings for a service; its defaults if none were given."""
        return next((service for service in self.services if isinstance(service, kind)), None) or kind()

    def plan(self) -> SlotPlan:
        """Return the worker's slots.

        Raises:
            ConfigurationError: the numbers don't match, or a tag is no valid name.
        """
        tags = [tag.strip() for tag in self.tags.split(",") if tag.strip()]
        tags += chain.from_iterable(service.tags() for service in self.services)
        for service in self.services:
            if (plan := service.plan(self, tags)) is not None:
                return plan
        gpus = find_gpus(self.gpus)
        return plan_slots(
            gpus,
            slots_per_gpu=self.slots_per_gpu,
            gpus_per_slot=self.gpus_per_slot,
            cpus=self.cpus,
            slots=self.slots,
            gpu_memory_mb=find_gpu_memory(self.gpu_memory, gpus, self.timing),
            tags=tags,
        )


def default_log_root(user: str) -> Path:
    """Return the default log folder of a worker that runs as *user*; if empty, as this user.

    Raises:
        ConfigurationError: there is no such user.
    """
    return home_of(user) / "mqtune" if user and not os.environ.get("MQTUNE_HOME") else mqtune_home()


#: The settings of Celery that trials depend on. A worker refuses to start with other values.
OWNED_SETTINGS: Final[dict[str, Any]] = {
    # Outcomes go to the journal. With a result backend, an outage while a task ends would block its slot forever.
    "result_backend": None,
    "task_ignore_result": True,
    "task_track_started": False,
    # A message is removed from the queue when it is received. With late acks it would be delivered again after the
    # visibility timeout, which would start long trials a second time. The driver publishes lost messages again.
    "task_acks_late": False,
    # A worker takes a task only when it has a slot for it.
    "worker_disable_prefetch": True,
    "worker_prefetch_multiplier": 1,
    "worker_pool": "mqtune.worker.tasks.app:TrialPool",
    "task_serializer": "json",
    "accept_content": ["json"],
    "event_serializer": "json",
    "control_exchange": CONTROL_EXCHANGE,
    "event_exchange": EVENT_EXCHANGE,
    "event_queue_prefix": EVENT_EXCHANGE,
    # A broken connection must not end trials.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    # A full Redis refuses a worker that reconnects; the worker must wait then, and not end with its trials.
    "broker_channel_error_retry": True,
    "worker_pool_restarts": False,
    "worker_disable_rate_limits": True,
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
#: The interval of checks of a name that another worker holds. A living worker renews its name every few seconds.
_LOOK_AGAIN_S: Final = 0.5
_BY_SHAPE: Final = "the queue follows from the slots' resources"
_OWN_PROCESS: Final = "each trial has a process of its own"
_BY_SCHEDULER: Final = "the experiment limits how long a trial may take: timeout_s= of the Tuner, or its scheduler"
#: Options of ``celery worker`` that would do harm, or have no effect, and why.
_REFUSED_OPTIONS: Final = {
    "pool": "trials need mqtune's own pool",
    "autoscale": "a worker has as many slots as it has devices",
    "queues": _BY_SHAPE,
    "exclude_queues": _BY_SHAPE,
    "prefetch_multiplier": "a worker takes a task only when it has a slot for it",
    "time_limit": _BY_SCHEDULER,
    "soft_time_limit": _BY_SCHEDULER,
    "max_tasks_per_child": _OWN_PROCESS,
    "max_memory_per_child": _OWN_PROCESS,
    "pool_start_method": _OWN_PROCESS,
}


def owned_settings(settings: WorkerSettings) -> dict[str, Any]:
    """Return the settings of Celery that this worker must have."""
    return {
        **OWNED_SETTINGS,
        "worker_enable_remote_control": settings.remote_control,
        # Flower enables events by remote control; without that they are always sent.
        "worker_send_task_events": not settings.remote_control,
    }


def celery_settings(settings: WorkerSettings) -> dict[str, Any]:
    """Return all settings of a worker's Celery app."""
    return {
        **owned_settings(settings),
        "broker_url": celery_url(settings.broker),
        "broker_use_ssl": celery_tls(settings.broker),
        "broker_transport_options": {**TRANSPORT_OPTIONS, **celery_options(settings.broker)},
        "task_create_missing_queues": False,
    }


def check_options(is_given: Callable[[str], bool]) -> None:
    """Raise WorkerStartError if ``celery worker`` has an option that can't be used with trials."""
    for name, reason in _REFUSED_OPTIONS.items():
        if is_given(name):
            raise WorkerStartError(f"--{name.replace('_', '-')} can't be used, because {reason}: leave the option out")


def check_settings(conf: Any, owned: Mapping[str, Any] = OWNED_SETTINGS) -> None:
    """Raise WorkerStartError if one of Celery's settings *conf* differs from *owned*."""
    for name, value in owned.items():
        own = getattr(conf, name)
        if own != value:
            shown = redact(own) if isinstance(own, str) else own
            raise WorkerStartError(
                f"Celery's setting {name} is {shown!r}, but trials need {value!r}: remove it from the configuration, "
                f"the "
                "command line and the environment"
            )


def check_concurrency(concurrency: object, slots: int) -> None:
    """Raise WorkerStartError if Celery's number of threads is not the number of slots."""
    if concurrency not in (None, 0, slots):
        raise WorkerStartError(
            f"--concurrency {concurrency}: this worker has {slots} slots; choose them with --slots, --gpus or "
            "--slots-per-gpu of mqtune worker, or MQTUNE_SLOTS, MQTUNE_GPUS or MQTUNE_SLOTS_PER_GPU"
        )


def check_folders(code_root: Path, log_root: Path) -> None:
    """Create the log folder, and check both folders.

    Raises:
        ConfigurationError: the code root is not a folder, or the log folder is not writable.
    """
    if not code_root.is_dir():
        raise ConfigurationError(f"the code root {code_root} is not a folder: give the one below which trainables are")
    try:
        log_root.mkdir(parents=True, exist_ok=True)
        writable = os.access(log_root, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise ConfigurationError(
            f"the log root {log_root} is not writable: choose another folder by --log-root or MQTUNE_LOG_ROOT"
        )


def check_broker(broker: str, celerys: str) -> None:
    """Raise WorkerStartError if Celery has another broker than mqtune."""
    if celerys != celery_url(broker) and celery_url(celerys) != celery_url(broker):
        raise WorkerStartError(
            f"Celery's broker is {redact(celerys)} (--broker or CELERY_BROKER_URL) and mqtune's is {redact(broker)}: "
            "give only MQTUNE_BROKER"
        )


def take_name(fleet: Fleet, name: str, hold_s: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Reserve a worker's name for *hold_s* seconds, also if a killed worker still holds it.

    A killed worker of this machine is recognized immediately. For one of another machine or container, this waits until
    its reservation expires.

    Raises:
        WorkerStartError: a running worker has the name.
    """
    dead, due_s = "", math.inf
    while True:
        try:
            fleet.take_name(name, hold_s, dead=dead)
            return
        except NameTaken as taken:
            process = taken.holder.rpartition(" ")[0]
            # A worker that has restarted in place (exec) is this process.
            if not dead and (is_gone(process) or process == describe_process()):
                dead = taken.holder
                continue
            # It runs, or it has renewed its hold since the last check.
            if is_here(process) or taken.left_s > due_s:
                raise WorkerStartError(
                    f"{taken}; give this worker another name: --name gpu1 (mqtune worker) or -n gpu1@%h (celery worker)"
                ) from None
            due_s = taken.left_s
            sleep(_LOOK_AGAIN_S)
