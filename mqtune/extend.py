"""Internal names for integrations, in addition to ``mqtune`` and its public packages.

Your own searcher, scheduler, exporter, importer or logger may import them. They may change with each minor version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtune.core.lazy import found_when_used

if TYPE_CHECKING:
    from mqtune.backends.base import Backend as Backend
    from mqtune.core import checks as checks
    from mqtune.core.codec import Body as Body, decode_value as decode_value, encode_value as encode_value
    from mqtune.core.entry_points import importing as importing
    from mqtune.core.errors import (
        BrokerUnavailable as BrokerUnavailable,
        ConfigurationError as ConfigurationError,
        DriverFenced as DriverFenced,
        InvalidTransition as InvalidTransition,
        MetricMissing as MetricMissing,
        MqtuneError as MqtuneError,
        NameTaken as NameTaken,
        SpaceError as SpaceError,
        TrialFailed as TrialFailed,
    )
    from mqtune.core.events import Event as Event, ExperimentCreated as ExperimentCreated
    from mqtune.core.experiment import Experiment as Experiment
    from mqtune.core.machine import replace_file as replace_file
    from mqtune.core.names import OF_OBJECTIVE as OF_OBJECTIVE, with_hints as with_hints
    from mqtune.core.objective import Mode as Mode, Objective as Objective, has_nan as has_nan
    from mqtune.core.registry import Description as Description
    from mqtune.core.text import (
        cell_value as cell_value,
        flatten as flatten,
        names_in_words as names_in_words,
        nested as nested,
    )
    from mqtune.core.trial import (
        CONTINUE as CONTINUE,
        ITERATION as ITERATION,
        PARAMETERS as PARAMETERS,
        TIME_TOTAL as TIME_TOTAL,
        Attempt as Attempt,
        AttemptEnd as AttemptEnd,
        CheckpointId as CheckpointId,
        Config as Config,
        Metrics as Metrics,
        Report as Report,
        Trial as Trial,
        TrialId as TrialId,
        is_number as is_number,
    )
    from mqtune.core.version import install_command as install_command
    from mqtune.driver.setup.settings import KnownTrainable as KnownTrainable
    from mqtune.driver.trials import DrivenTrial as DrivenTrial
    from mqtune.journal.server.connection import redact as redact
    from mqtune.results.experiments import RecordedReport as RecordedReport
    from mqtune.results.followed import Fold as Fold
    from mqtune.results.foreign import Foreign as Foreign, ForeignTrial as ForeignTrial
    from mqtune.results.frames import Row as Row
    from mqtune.results.results import json_text as json_text
    from mqtune.schedulers.background import BackgroundDecisions as BackgroundDecisions
    from mqtune.search.base import Later as Later, Suggestion as Suggestion, fingerprint as fingerprint
    from mqtune.search.kinds import (
        Choice as Choice,
        Domain as Domain,
        Entries as Entries,
        Interval as Interval,
        Multiples as Multiples,
        Normal as Normal,
        Ordinal as Ordinal,
        ReverseInterval as ReverseInterval,
    )
    from mqtune.search.model import (
        Kind as Kind,
        ModelSearcher as ModelSearcher,
        Parameter as Parameter,
        Record as Record,
        interval as interval,
        parameter as parameter,
        shares as shares,
    )
    from mqtune.search.space import space_of as space_of
    from mqtune.search.values import is_same as is_same
    from mqtune.trainable import reporting as reporting
    from mqtune.trainable.class_ import check_reusable as check_reusable
    from mqtune.trainable.rebuild import home_of as home_of
    from mqtune.trainable.spec import AnyTrainable as AnyTrainable, TrainableSpec as TrainableSpec, adapter as adapter

#: The exported names by module. A name is defined in its module, or is the module itself.
_NAMES: Final = {
    "backends.base": ("Backend",),
    "core.checks": ("checks",),
    "core.codec": ("Body", "decode_value", "encode_value"),
    "core.entry_points": ("importing",),
    "core.errors": (
        "BrokerUnavailable",
        "ConfigurationError",
        "DriverFenced",
        "InvalidTransition",
        "MetricMissing",
        "MqtuneError",
        "NameTaken",
        "SpaceError",
        "TrialFailed",
    ),
    "core.events": ("Event", "ExperimentCreated"),
    "core.experiment": ("Experiment",),
    "core.machine": ("replace_file",),
    "core.names": ("OF_OBJECTIVE", "with_hints"),
    "core.objective": ("has_nan", "Mode", "Objective"),
    "core.registry": ("Description",),
    "core.text": ("cell_value", "flatten", "names_in_words", "nested"),
    "core.trial": (
        "Attempt",
        "AttemptEnd",
        "CheckpointId",
        "Config",
        "CONTINUE",
        "is_number",
        "ITERATION",
        "Metrics",
        "PARAMETERS",
        "Report",
        "TIME_TOTAL",
        "Trial",
        "TrialId",
    ),
    "core.version": ("install_command",),
    "driver.setup.settings": ("KnownTrainable",),
    "driver.trials": ("DrivenTrial",),
    "journal.server.connection": ("redact",),
    "results.experiments": ("RecordedReport",),
    "results.followed": ("Fold",),
    "results.foreign": ("Foreign", "ForeignTrial"),
    "results.frames": ("Row",),
    "results.results": ("json_text",),
    "schedulers.background": ("BackgroundDecisions",),
    "search.base": ("fingerprint", "Later", "Suggestion"),
    "search.kinds": ("Choice", "Domain", "Entries", "Interval", "Multiples", "Normal", "Ordinal", "ReverseInterval"),
    "search.model": ("interval", "Kind", "ModelSearcher", "parameter", "Parameter", "Record", "shares"),
    "search.space": ("space_of",),
    "search.values": ("is_same",),
    "trainable.class_": ("check_reusable",),
    "trainable.rebuild": ("home_of",),
    "trainable.reporting": ("reporting",),
    "trainable.spec": ("adapter", "AnyTrainable", "TrainableSpec"),
}
__getattr__ = found_when_used(
    __name__, {name: f"mqtune.{module}" for module, names in _NAMES.items() for name in names}
)
