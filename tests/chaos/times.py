"""The times that a run goes by: mqtune's own, or the same in short, so that a lease runs out within seconds."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, Final

#: In the environment of drivers and workers: the times that they go by, as JSON; empty for mqtune's own.
TIMES: Final = "MQTUNE_CHAOS_TIMES"

#: Where each time is kept, and what it is in a short run, in seconds: each is a third of mqtune's own, as is its margin. Those of
#: sharing are much shorter, so that trials are paused for others at all in a run.
SHORT: Final[dict[str, dict[str, float]]] = {
    "mqtune.worker.runtime": {"LEASE_S": 5.0, "HEARTBEAT_S": 1.0},
    "mqtune.journal.lock": {"LOCK_S": 6.0, "KEEP_LOCK_S": 1.5},
    "mqtune.journal.submissions": {"HOLD_S": 6.0, "KEEP_S": 1.5},
    "mqtune.worker.drivers": {"BACK_S": 3.0, "SPREAD_S": 1.3},
    # An argument of a worker.
    "mqtune.worker.seats": {"SEAT_S": 4.0},
    "mqtune.driver.timers": {
        "LOOK_AT_LEASES_S": 0.2,
        "LEASE_GRACE_S": 2.7,
        "STALL_S": 2.7,
        "UNCLAIMED_S": 2.5,
        "LOOK_AT_ATTEMPTS_S": 2.5,
    },
    "mqtune.driver.trimming": {"_RETRY_S": 1.0},
    "mqtune.worker.threads": {"ROUND_S": 1.0},
    # A minute, as ever: how soon a worker takes what waits depends on the machine.
    "mqtune.worker.app": {"LOOKS": 60},
    "mqtune.worker.quick_failures": {"FIRST_PAUSE_S": 5.0},
    "mqtune.journal.demands": {"DEMAND_S": 6.0, "LENT_S": 1.0, "TABLE_S": 1.3, "REGISTER_S": 1.5},
    "mqtune.driver.sharing": {"LOOK_S": 0.3, "MEMORY_S": 20.0, "GRACE_S": 1.0, "TURN_S": 4.0},
    "mqtune.journal.connection": {"COMMAND_TIMEOUT_S": 4.0, "BLOCKING_READ_MAX_S": 1.5},
}
OWN: Final[dict[str, dict[str, float]]] = {}


def apply() -> None:
    """Have this process go by the times in its environment, wherever a module has taken one over."""
    times: dict[str, dict[str, float]] = json.loads(os.environ.get(TIMES) or "{}")
    for module, values in times.items():
        importlib.import_module(module)
        for name, value in values.items():
            _set_everywhere(name, getattr(sys.modules[module], name), value)


def _set_everywhere(name: str, before: float, value: float) -> None:
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] == "mqtune":
            _set(vars(module), name, before, value)


def _set(names: dict[str, Any], name: str, before: float, value: float) -> None:
    if names.get(name) == before:
        names[name] = value


def pause_s(times: dict[str, dict[str, float]]) -> float:
    """How long a device that is found broken takes no trial, at least."""
    return _value(times, "mqtune.worker.quick_failures", "FIRST_PAUSE_S")


def lease_s(times: dict[str, dict[str, float]]) -> float:
    """How long a worker may be silent."""
    return _value(times, "mqtune.worker.runtime", "LEASE_S")


def seat_s(times: dict[str, dict[str, float]]) -> float:
    """How long a seat of a gang is held for the others, at least."""
    return _value(times, "mqtune.worker.seats", "SEAT_S")


def lock_s(times: dict[str, dict[str, float]]) -> float:
    """How long a driver may be silent."""
    return _value(times, "mqtune.journal.lock", "LOCK_S")


def _value(times: dict[str, dict[str, float]], module: str, name: str) -> float:
    own = getattr(importlib.import_module(module), name)
    return float(times.get(module, {}).get(name, own))
