"""The worker.

It claims attempts, runs each in its own process, and sends their reports to the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.worker.app import (
        TrialApp as TrialApp,
        TrialTransport as TrialTransport,
        create_app as create_app,
    )
    from mqtune.worker.attempt import AttemptRun as AttemptRun, WorkerParts as WorkerParts
    from mqtune.worker.consumer_watch import ConsumerWatch as ConsumerWatch
    from mqtune.worker.control_pipe import ControlPipe as ControlPipe
    from mqtune.worker.devices import (
        SlotPlan as SlotPlan,
        find_gpu_memory as find_gpu_memory,
        find_gpus as find_gpus,
        plan_slots as plan_slots,
        usable_cpus as usable_cpus,
        without_devices as without_devices,
    )
    from mqtune.worker.experiments import (
        REMEMBERED as REMEMBERED,
        ExperimentHere as ExperimentHere,
    )
    from mqtune.worker.flower import FlowerRows as FlowerRows
    from mqtune.worker.gpu_probe import Gpu as Gpu
    from mqtune.worker.gpus import GpuProbe as GpuProbe
    from mqtune.worker.impairments import ImpairmentCause as ImpairmentCause, Impairments as Impairments
    from mqtune.worker.importers import (
        ImporterHandle as ImporterHandle,
        Importers as Importers,
        ImportKey as ImportKey,
        SlotZygotes as SlotZygotes,
    )
    from mqtune.worker.logs import LogLimits as LogLimits, Logs as Logs, open_log as open_log
    from mqtune.worker.outcome import (
        AttemptOutcome as AttemptOutcome,
        Ending as Ending,
        RunResult as RunResult,
        broken_device as broken_device,
    )
    from mqtune.worker.preloads import Preloads as Preloads
    from mqtune.worker.privileges import become as become, home_of as home_of, without_secrets as without_secrets
    from mqtune.worker.processes import (
        MARK as MARK,
        MemoryKills as MemoryKills,
        end_leftovers as end_leftovers,
        find_counter as find_counter,
        reaper as reaper,
    )
    from mqtune.worker.retries import (
        ANOTHER_DEVICE_S as ANOTHER_DEVICE_S,
        ANOTHER_WORKER_S as ANOTHER_WORKER_S,
        Retries as Retries,
    )
    from mqtune.worker.revokes import Revokes as Revokes, revoke as revoke
    from mqtune.worker.runtime import WorkerRuntime as WorkerRuntime
    from mqtune.worker.scratch import Scratch as Scratch
    from mqtune.worker.settings import (
        GRACE_S as GRACE_S,
        OWNED_SETTINGS as OWNED_SETTINGS,
        WorkerSettings as WorkerSettings,
        celery_settings as celery_settings,
        check_concurrency as check_concurrency,
        check_folders as check_folders,
        check_options as check_options,
        check_settings as check_settings,
        take_name as take_name,
    )
    from mqtune.worker.shutdown import shutdown_s as shutdown_s
    from mqtune.worker.slots import (
        BACK_OFF_S as BACK_OFF_S,
        FAILED_STARTS as FAILED_STARTS,
        BackOff as BackOff,
        Slot as Slot,
        Slots as Slots,
        ZygoteFinder as ZygoteFinder,
    )
    from mqtune.worker.start import IMPORTER_IDLE_S as IMPORTER_IDLE_S, make_worker as make_worker
    from mqtune.worker.stream import READ_BYTES as READ_BYTES, Stream as Stream
    from mqtune.worker.threads import Step as Step, guarded as guarded
    from mqtune.worker.uplink import Uplink as Uplink
    from mqtune.worker.zygotes import (
        Gone as Gone,
        ZygoteDied as ZygoteDied,
        ZygoteHandle as ZygoteHandle,
        ZygoteSilent as ZygoteSilent,
        is_readable as is_readable,
    )

#: The names that other folders and tests may use, by the module that defines them.
_NAMES = {
    "app": ("TrialApp", "TrialTransport", "create_app"),
    "attempt": ("AttemptRun", "WorkerParts"),
    "consumer_watch": ("ConsumerWatch",),
    "control_pipe": ("ControlPipe",),
    "devices": (
        "SlotPlan",
        "find_gpu_memory",
        "find_gpus",
        "plan_slots",
        "usable_cpus",
        "without_devices",
    ),
    "experiments": ("ExperimentHere", "REMEMBERED"),
    "flower": ("FlowerRows",),
    "gpu_probe": ("Gpu",),
    "gpus": ("GpuProbe",),
    "impairments": ("ImpairmentCause", "Impairments"),
    "importers": ("ImportKey", "ImporterHandle", "Importers", "SlotZygotes"),
    "logs": ("LogLimits", "Logs", "open_log"),
    "outcome": ("AttemptOutcome", "Ending", "RunResult", "broken_device"),
    "preloads": ("Preloads",),
    "privileges": ("become", "home_of", "without_secrets"),
    "processes": ("MARK", "MemoryKills", "end_leftovers", "find_counter", "reaper"),
    "retries": ("ANOTHER_DEVICE_S", "ANOTHER_WORKER_S", "Retries"),
    "revokes": ("Revokes", "revoke"),
    "runtime": ("WorkerRuntime",),
    "scratch": ("Scratch",),
    "settings": (
        "GRACE_S",
        "OWNED_SETTINGS",
        "WorkerSettings",
        "celery_settings",
        "check_concurrency",
        "check_folders",
        "check_options",
        "check_settings",
        "take_name",
    ),
    "shutdown": ("shutdown_s",),
    "slots": ("BACK_OFF_S", "BackOff", "FAILED_STARTS", "Slot", "Slots", "ZygoteFinder"),
    "start": ("IMPORTER_IDLE_S", "make_worker"),
    "threads": ("Step", "guarded"),
    "stream": ("READ_BYTES", "Stream"),
    "uplink": ("Uplink",),
    "zygotes": ("Gone", "ZygoteDied", "ZygoteHandle", "ZygoteSilent", "is_readable"),
}
__getattr__ = facade_of(__name__, _NAMES)
