"""The tuning loop of a driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.driver.actions import (
        AnswerQuestion as AnswerQuestion,
        DriverAction as DriverAction,
        Requeue as Requeue,
    )
    from mqtune.driver.attach import attached as attached
    from mqtune.driver.bundling import (
        BundleFolder as BundleFolder,
        bring as bring,
    )
    from mqtune.driver.by_config import ResourcesByConfig as ResourcesByConfig
    from mqtune.driver.checkpoints import (
        LOOK_APART_S as LOOK_APART_S,
        CheckpointGC as CheckpointGC,
        bring_dicts as bring_dicts,
    )
    from mqtune.driver.connect import (
        BrokerDeployment as BrokerDeployment,
        DriverContext as DriverContext,
        unless_away as unless_away,
    )
    from mqtune.driver.default_names import take_name as take_name
    from mqtune.driver.definition import DefinitionWriter as DefinitionWriter
    from mqtune.driver.driver import Driver as Driver
    from mqtune.driver.interrupts import Interrupts as Interrupts
    from mqtune.driver.ledger import Restored as Restored
    from mqtune.driver.local_slots import slot_settings as slot_settings
    from mqtune.driver.options import (
        Checkpoints as Checkpoints,
        Deletes as Deletes,
        Failures as Failures,
        Process as Process,
        RunOptions as RunOptions,
    )
    from mqtune.driver.pace import LoopPace as LoopPace
    from mqtune.driver.plain import PlainReports as PlainReports
    from mqtune.driver.publishing import GATHER_S as GATHER_S, Publisher as Publisher
    from mqtune.driver.requests import AT_ONCE as AT_ONCE
    from mqtune.driver.requirements import differences as differences
    from mqtune.driver.retention import Retention as Retention
    from mqtune.driver.room import RoomWatch as RoomWatch
    from mqtune.driver.settings import KnownTrainable as KnownTrainable, Settings as Settings
    from mqtune.driver.tenancy import claim as claim, is_shared as is_shared, tenant_on as tenant_on

#: The names that other folders and tests may use, by the module that defines them.
_NAMES = {
    "actions": ("AnswerQuestion", "DriverAction", "Requeue"),
    "attach": ("attached",),
    "bundling": ("BundleFolder", "bring"),
    "by_config": ("ResourcesByConfig",),
    "checkpoints": ("CheckpointGC", "LOOK_APART_S", "bring_dicts"),
    "connect": ("BrokerDeployment", "DriverContext", "unless_away"),
    "default_names": ("take_name",),
    "definition": ("DefinitionWriter",),
    "driver": ("Driver",),
    "interrupts": ("Interrupts",),
    "ledger": ("Restored",),
    "local_slots": ("slot_settings",),
    "options": ("Checkpoints", "Deletes", "Failures", "Process", "RunOptions"),
    "pace": ("LoopPace",),
    "plain": ("PlainReports",),
    "requests": ("AT_ONCE",),
    "publishing": ("GATHER_S", "Publisher"),
    "requirements": ("differences",),
    "retention": ("Retention",),
    "room": ("RoomWatch",),
    "settings": ("KnownTrainable", "Settings"),
    "tenancy": ("claim", "is_shared", "tenant_on"),
}
__getattr__ = facade_of(__name__, _NAMES)
