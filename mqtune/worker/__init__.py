"""The worker.

It claims attempts, runs each in its own process, and sends their reports to the journal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.worker.attempts.attempt import AttemptRun as AttemptRun, WorkerParts as WorkerParts
    from mqtune.worker.attempts.back_off import (
        BACK_OFF_S as BACK_OFF_S,
        FAILED_STARTS as FAILED_STARTS,
        BackOff as BackOff,
    )
    from mqtune.worker.attempts.control_pipe import ControlPipe as ControlPipe
    from mqtune.worker.attempts.retries import (
        ANOTHER_DEVICE_S as ANOTHER_DEVICE_S,
        ANOTHER_WORKER_S as ANOTHER_WORKER_S,
        Retries as Retries,
    )
    from mqtune.worker.attempts.slots import (
        Slot as Slot,
        Slots as Slots,
        ZygoteFinder as ZygoteFinder,
    )
    from mqtune.worker.hooks import WorkerHooks as WorkerHooks
    from mqtune.worker.host.devices import (
        SlotPlan as SlotPlan,
        find_gpu_memory as find_gpu_memory,
        find_gpus as find_gpus,
        plan_slots as plan_slots,
        plan_slots_by_memory as plan_slots_by_memory,
        usable_cpus as usable_cpus,
        without_devices as without_devices,
    )
    from mqtune.worker.host.gpu_probe import Gpu as Gpu
    from mqtune.worker.host.gpus import GpuProbe as GpuProbe
    from mqtune.worker.host.impairments import ImpairmentCause as ImpairmentCause, Impairments as Impairments
    from mqtune.worker.host.logs import LogLimits as LogLimits, Logs as Logs, open_log as open_log
    from mqtune.worker.host.privileges import become as become, home_of as home_of, without_secrets as without_secrets
    from mqtune.worker.host.processes import (
        MARK as MARK,
        MemoryKills as MemoryKills,
        end_leftovers as end_leftovers,
        find_counter as find_counter,
        reaper as reaper,
    )
    from mqtune.worker.host.scratch import Scratch as Scratch
    from mqtune.worker.host.threads import Step as Step, guarded as guarded
    from mqtune.worker.loop.options import Option as Option, option as option, options_of as options_of
    from mqtune.worker.loop.runtime import WorkerRuntime as WorkerRuntime
    from mqtune.worker.loop.settings import (
        GRACE_S as GRACE_S,
        OWNED_SETTINGS as OWNED_SETTINGS,
        ServiceSettings as ServiceSettings,
        WorkerSettings as WorkerSettings,
        celery_settings as celery_settings,
        check_concurrency as check_concurrency,
        check_folders as check_folders,
        check_options as check_options,
        check_settings as check_settings,
        default_log_root as default_log_root,
        take_name as take_name,
    )
    from mqtune.worker.loop.shutdown import shutdown_s as shutdown_s
    from mqtune.worker.loop.start import IMPORTER_IDLE_S as IMPORTER_IDLE_S, make_worker as make_worker
    from mqtune.worker.programs.experiments import (
        REMEMBERED as REMEMBERED,
        ExperimentHere as ExperimentHere,
    )
    from mqtune.worker.programs.importers import (
        ImporterHandle as ImporterHandle,
        Importers as Importers,
        ImportKey as ImportKey,
        SlotZygotes as SlotZygotes,
    )
    from mqtune.worker.programs.preloads import Preloads as Preloads
    from mqtune.worker.programs.zygotes import (
        Gone as Gone,
        ZygoteDied as ZygoteDied,
        ZygoteHandle as ZygoteHandle,
        ZygoteSilent as ZygoteSilent,
        is_readable as is_readable,
    )
    from mqtune.worker.reports.outcome import (
        AttemptOutcome as AttemptOutcome,
        Ending as Ending,
        RunResult as RunResult,
        broken_device as broken_device,
    )
    from mqtune.worker.reports.stream import READ_BYTES as READ_BYTES, Stream as Stream
    from mqtune.worker.reports.uplink import Uplink as Uplink
    from mqtune.worker.tasks.app import (
        TrialApp as TrialApp,
        create_app as create_app,
    )
    from mqtune.worker.tasks.consumer_watch import ConsumerWatch as ConsumerWatch
    from mqtune.worker.tasks.flower import FlowerRows as FlowerRows
    from mqtune.worker.tasks.revokes import Revokes as Revokes, revoke as revoke
    from mqtune.worker.tasks.transport import TrialTransport as TrialTransport

#: The names that other folders and tests may use, by the module that defines them.
_NAMES = {
    "host.devices": (
        "SlotPlan",
        "find_gpu_memory",
        "find_gpus",
        "plan_slots",
        "plan_slots_by_memory",
        "usable_cpus",
        "without_devices",
    ),
    "host.gpu_probe": ("Gpu",),
    "host.gpus": ("GpuProbe",),
    "host.impairments": ("ImpairmentCause", "Impairments"),
    "host.logs": ("LogLimits", "Logs", "open_log"),
    "host.privileges": ("become", "home_of", "without_secrets"),
    "host.processes": ("MARK", "MemoryKills", "end_leftovers", "find_counter", "reaper"),
    "host.scratch": ("Scratch",),
    "host.threads": ("Step", "guarded"),
    "programs.experiments": ("ExperimentHere", "REMEMBERED"),
    "programs.importers": ("ImportKey", "ImporterHandle", "Importers", "SlotZygotes"),
    "programs.preloads": ("Preloads",),
    "programs.zygotes": ("Gone", "ZygoteDied", "ZygoteHandle", "ZygoteSilent", "is_readable"),
    "reports.outcome": ("AttemptOutcome", "Ending", "RunResult", "broken_device"),
    "reports.stream": ("READ_BYTES", "Stream"),
    "reports.uplink": ("Uplink",),
    "hooks": ("WorkerHooks",),
    "attempts.attempt": ("AttemptRun", "WorkerParts"),
    "attempts.back_off": ("BACK_OFF_S", "BackOff", "FAILED_STARTS"),
    "attempts.control_pipe": ("ControlPipe",),
    "attempts.retries": ("ANOTHER_DEVICE_S", "ANOTHER_WORKER_S", "Retries"),
    "attempts.slots": ("Slot", "Slots", "ZygoteFinder"),
    "loop.options": ("Option", "option", "options_of"),
    "loop.runtime": ("WorkerRuntime",),
    "loop.settings": (
        "GRACE_S",
        "OWNED_SETTINGS",
        "ServiceSettings",
        "WorkerSettings",
        "celery_settings",
        "check_concurrency",
        "check_folders",
        "check_options",
        "check_settings",
        "default_log_root",
        "take_name",
    ),
    "loop.shutdown": ("shutdown_s",),
    "loop.start": ("IMPORTER_IDLE_S", "make_worker"),
    "tasks.app": ("TrialApp", "create_app"),
    "tasks.consumer_watch": ("ConsumerWatch",),
    "tasks.flower": ("FlowerRows",),
    "tasks.revokes": ("Revokes", "revoke"),
    "tasks.transport": ("TrialTransport",),
}
__getattr__ = facade_of(__name__, _NAMES)
