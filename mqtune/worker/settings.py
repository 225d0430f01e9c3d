"""What an operator says about a worker, on the command line or in the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mqtune.core.errors import ConfigurationError
from mqtune.core.home import mqtune_home
from mqtune.core.resources import EVERY, check_experiments
from mqtune.worker.devices import SlotPlan, find_gpu_memory, find_gpus, plan_slots
from mqtune.worker.privileges import home_of

__all__ = ["WorkerSettings", "default_log_root"]

#: How long trials have to save and to leave when their worker is told to go: some clouds leave a machine 30 s in all.
GRACE_S: Final = 10.0
#: A day: whoever asks for more has taken seconds for something else.
LONGEST_GRACE_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """One worker's broker, devices and folders.

    Raises:
        ConfigurationError: the grace, or what stands for names of experiments, makes no sense.
    """

    broker: str
    gpus: str = "auto"
    slots_per_gpu: int = 1
    gpus_per_slot: int = 1
    cpus: int | None = None
    slots: int | None = None
    gpu_memory: str = "auto"
    #: Names, with commas between them.
    tags: str = ""
    #: Trainables must be below it.
    code_root: Path = field(default_factory=Path.cwd)
    log_root: Path = field(default_factory=mqtune_home)
    #: How long trials have, once the worker is told to go, to save and to leave.
    grace_s: float = GRACE_S
    #: The names of the experiments that it takes trials of, with * for any letters.
    experiments: str = EVERY
    #: Whether Celery's remote commands are obeyed: inspect, terminate, shutdown.
    remote_control: bool = True
    #: Who the worker becomes, and its trials with it, before it does anything; empty for who starts it.
    user: str = ""
    #: A pipe whose other end the driver that started this worker holds.
    owner_fd: int | None = None

    def __post_init__(self) -> None:
        check_experiments(self.experiments)
        if not math.isfinite(self.grace_s) or not 0 <= self.grace_s <= LONGEST_GRACE_S:
            raise ConfigurationError(
                f"--grace {self.grace_s:g} makes no sense; give the seconds that trials have to save when the worker is "
                f"told to go, from 0 to {LONGEST_GRACE_S:g}"
            )

    def plan(self) -> SlotPlan:
        """Return the worker's slots.

        Raises:
            ConfigurationError: the numbers don't go together, or a tag is no name.
        """
        gpus = find_gpus(self.gpus)
        return plan_slots(
            gpus,
            slots_per_gpu=self.slots_per_gpu,
            gpus_per_slot=self.gpus_per_slot,
            cpus=self.cpus,
            slots=self.slots,
            gpu_memory_mb=find_gpu_memory(self.gpu_memory, gpus),
            tags=[tag.strip() for tag in self.tags.split(",") if tag.strip()],
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> WorkerSettings:
        """Return the settings in the environment.

        They are MQTUNE_BROKER, MQTUNE_GPUS, MQTUNE_SLOTS_PER_GPU, MQTUNE_GPUS_PER_SLOT, MQTUNE_GPU_MEMORY, MQTUNE_CPUS,
        MQTUNE_SLOTS, MQTUNE_TAGS, MQTUNE_CODE_ROOT, MQTUNE_LOG_ROOT, MQTUNE_GRACE, MQTUNE_EXPERIMENTS, MQTUNE_USER and
        MQTUNE_REMOTE_CONTROL (0 switches it off).

        Raises:
            ConfigurationError: the broker is missing, or a number is not one.
        """
        get = environment.get
        broker, user = get("MQTUNE_BROKER"), get("MQTUNE_USER") or ""
        if not broker:
            raise ConfigurationError(
                "MQTUNE_BROKER is not set; give the Redis that the drivers use: redis://:password@head:6379/0"
            )
        return cls(
            broker=broker,
            gpus=get("MQTUNE_GPUS") or "auto",
            slots_per_gpu=_number(environment, "MQTUNE_SLOTS_PER_GPU") or 1,
            gpus_per_slot=_number(environment, "MQTUNE_GPUS_PER_SLOT") or 1,
            cpus=_number(environment, "MQTUNE_CPUS"),
            slots=_number(environment, "MQTUNE_SLOTS"),
            gpu_memory=get("MQTUNE_GPU_MEMORY") or "auto",
            tags=get("MQTUNE_TAGS") or "",
            code_root=Path(get("MQTUNE_CODE_ROOT") or Path.cwd()).absolute(),
            log_root=Path(get("MQTUNE_LOG_ROOT") or default_log_root(user)).absolute(),
            user=user,
            grace_s=_seconds(environment, "MQTUNE_GRACE", GRACE_S),
            experiments=get("MQTUNE_EXPERIMENTS") or EVERY,
            remote_control=_number(environment, "MQTUNE_REMOTE_CONTROL") != 0,
            owner_fd=_number(environment, "MQTUNE_OWNER_FD"),
        )


def default_log_root(user: str) -> Path:
    """Return where the output of trials goes that run as this user, or as who starts the worker.

    Raises:
        ConfigurationError: there is no such user.
    """
    return home_of(user) / "mqtune" if user and not os.environ.get("MQTUNE_HOME") else mqtune_home()


def _seconds(environment: Mapping[str, str], name: str, otherwise: float) -> float:
    text = environment.get(name, "").strip()
    try:
        return float(text) if text else otherwise
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} is not a number of seconds") from None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise ConfigurationError(f"{name}={text!r} is not a whole number")
    return int(text)
