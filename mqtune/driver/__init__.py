"""The tuning loop of a driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.driver.driver import Driver as Driver
    from mqtune.driver.hooks import PAUSE_S as PAUSE_S, DriverHooks as DriverHooks
    from mqtune.driver.loop.requests import AT_ONCE as AT_ONCE
    from mqtune.driver.path.pace import LoopPace as LoopPace
    from mqtune.driver.path.plain import PlainReports as PlainReports
    from mqtune.driver.rules.checkpoints import (
        LOOK_APART_S as LOOK_APART_S,
        CheckpointGC as CheckpointGC,
        bring_dicts as bring_dicts,
    )
    from mqtune.driver.rules.room import RoomWatch as RoomWatch
    from mqtune.driver.setup.attach import attached as attached
    from mqtune.driver.setup.bundling import (
        BundleFolder as BundleFolder,
        bring as bring,
    )
    from mqtune.driver.setup.by_config import ResourcesByConfig as ResourcesByConfig
    from mqtune.driver.setup.connect import (
        BrokerDeployment as BrokerDeployment,
        DriverContext as DriverContext,
        unless_away as unless_away,
    )
    from mqtune.driver.setup.default_names import take_name as take_name
    from mqtune.driver.setup.definition import DefinitionWriter as DefinitionWriter
    from mqtune.driver.setup.interrupts import Interrupts as Interrupts
    from mqtune.driver.setup.local_slots import slot_settings as slot_settings
    from mqtune.driver.setup.options import (
        Checkpoints as Checkpoints,
        Deletes as Deletes,
        Failures as Failures,
        Process as Process,
        RunOptions as RunOptions,
    )
    from mqtune.driver.setup.ports import (
        CheckDeployment as CheckDeployment,
        MakeProject as MakeProject,
        ProgramFiles as ProgramFiles,
    )
    from mqtune.driver.setup.requirements import differences as differences
    from mqtune.driver.setup.retention import Retention as Retention
    from mqtune.driver.setup.settings import KnownTrainable as KnownTrainable, Settings as Settings
    from mqtune.driver.setup.tenancy import claim as claim, is_shared as is_shared, tenant_on as tenant_on
    from mqtune.driver.writing.actions import DriverAction as DriverAction, Requeue as Requeue
    from mqtune.driver.writing.ledger import Restored as Restored
    from mqtune.driver.writing.orders import AnswerQuestion as AnswerQuestion
    from mqtune.driver.writing.publishing import GATHER_S as GATHER_S, Publisher as Publisher

#: The names that other folders and tests may use, by the module that defines them.
_NAMES = {
    "setup.attach": ("attached",),
    "setup.bundling": ("BundleFolder", "bring"),
    "setup.by_config": ("ResourcesByConfig",),
    "setup.connect": ("BrokerDeployment", "DriverContext", "unless_away"),
    "setup.default_names": ("take_name",),
    "setup.definition": ("DefinitionWriter",),
    "setup.interrupts": ("Interrupts",),
    "setup.local_slots": ("slot_settings",),
    "setup.options": ("Checkpoints", "Deletes", "Failures", "Process", "RunOptions"),
    "setup.ports": ("CheckDeployment", "MakeProject", "ProgramFiles"),
    "setup.requirements": ("differences",),
    "setup.retention": ("Retention",),
    "setup.settings": ("KnownTrainable", "Settings"),
    "setup.tenancy": ("claim", "is_shared", "tenant_on"),
    "writing.actions": ("DriverAction", "Requeue"),
    "writing.ledger": ("Restored",),
    "writing.orders": ("AnswerQuestion",),
    "writing.publishing": ("GATHER_S", "Publisher"),
    "hooks": ("DriverHooks", "PAUSE_S"),
    "rules.checkpoints": ("CheckpointGC", "LOOK_APART_S", "bring_dicts"),
    "rules.room": ("RoomWatch",),
    "path.pace": ("LoopPace",),
    "path.plain": ("PlainReports",),
    "loop.requests": ("AT_ONCE",),
    "driver": ("Driver",),
}
__getattr__ = facade_of(__name__, _NAMES)
