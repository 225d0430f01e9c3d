"""Trainables and the processes that run them. Nothing here imports celery, redis or numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.core.lazy import facade_of

if TYPE_CHECKING:
    from mqtune.trainable.bundle import (
        ACCEPTS_TAG as ACCEPTS_TAG,
        KEY_VARIABLE as KEY_VARIABLE,
        MOST_BYTES as MOST_BYTES,
        MOST_FILES as MOST_FILES,
        Bundle as Bundle,
        CodeKeys as CodeKeys,
        File as File,
        changed_in as changed_in,
        is_digest as is_digest,
        is_path as is_path,
        is_signed as is_signed,
        signature as signature,
        unpack as unpack,
    )
    from mqtune.trainable.cells import Cell as Cell, cell_of as cell_of
    from mqtune.trainable.class_ import Steps as Steps, Trainable as Trainable, export_model as export_model
    from mqtune.trainable.experiment_code import (
        fingerprints as fingerprints,
        read_code as read_code,
        resolve as resolve,
    )
    from mqtune.trainable.frozen_code import (
        FrozenCode as FrozenCode,
        are_current as are_current,
        fingerprint as fingerprint,
        loaded_files as loaded_files,
        unfrozen as unfrozen,
    )
    from mqtune.trainable.process.channel import Channel as Channel
    from mqtune.trainable.process.children import NOTE as NOTE
    from mqtune.trainable.process.descendants import (
        children_of as children_of,
        die_with_parent as die_with_parent,
        has_descendants as has_descendants,
        signal_group as signal_group,
    )
    from mqtune.trainable.process.environment import describe_environment as describe_environment
    from mqtune.trainable.process.exits import release_frames as release_frames
    from mqtune.trainable.process.late_imports import (
        EVERY_PACKAGE as EVERY_PACKAGE,
        USUAL as USUAL,
        Batch as Batch,
        EnvironmentReads as EnvironmentReads,
        ImportWatch as ImportWatch,
        check_batches as check_batches,
    )
    from mqtune.trainable.process.life import Executed as Executed, Life as Life
    from mqtune.trainable.process.output import flush as flush, flush_native as flush_native
    from mqtune.trainable.process.program import Program as Program
    from mqtune.trainable.process.protocol import (
        CLEARED as CLEARED,
        FRAME as FRAME,
        FRAME_CHECKPOINT as FRAME_CHECKPOINT,
        FRAME_END as FRAME_END,
        FRAME_REPORT as FRAME_REPORT,
        FRAME_SAVED as FRAME_SAVED,
        MAX_ANSWER_CHARS as MAX_ANSWER_CHARS,
        PAUSE as PAUSE,
        RECORD as RECORD,
        SAVE as SAVE,
        STOP as STOP,
        STOP_SIGNAL as STOP_SIGNAL,
        UNBUFFERED as UNBUFFERED,
        Message as Message,
        StartMessage as StartMessage,
        TrainableEnd as TrainableEnd,
    )
    from mqtune.trainable.process.runner import run_attempt as run_attempt
    from mqtune.trainable.process.session import Session as Session, StopTrial as StopTrial, file_of as file_of
    from mqtune.trainable.process.zygote import Child as Child, Zygote as Zygote, command as command
    from mqtune.trainable.script import MetricLines as MetricLines, WatchedFolder as WatchedFolder
    from mqtune.trainable.script_arguments import (
        ArgumentTemplate as ArgumentTemplate,
        OutputPatterns as OutputPatterns,
        reader_of as reader_of,
    )
    from mqtune.trainable.spec import TrainableSpec as TrainableSpec
    from mqtune.trainable.values import CannotTravel as CannotTravel, stored as stored

#: The names that other folders and tests may use, by the module that defines them.
_NAMES = {
    "bundle": (
        "ACCEPTS_TAG",
        "Bundle",
        "CodeKeys",
        "File",
        "KEY_VARIABLE",
        "MOST_BYTES",
        "MOST_FILES",
        "changed_in",
        "is_digest",
        "is_path",
        "is_signed",
        "signature",
        "unpack",
    ),
    "cells": ("Cell", "cell_of"),
    "class_": ("Steps", "Trainable", "export_model"),
    "experiment_code": ("fingerprints", "read_code", "resolve"),
    "frozen_code": ("FrozenCode", "are_current", "fingerprint", "loaded_files", "unfrozen"),
    "process.channel": ("Channel",),
    "process.children": ("NOTE",),
    "process.descendants": ("children_of", "die_with_parent", "has_descendants", "signal_group"),
    "process.environment": ("describe_environment",),
    "process.exits": ("release_frames",),
    "process.late_imports": (
        "Batch",
        "EVERY_PACKAGE",
        "EnvironmentReads",
        "ImportWatch",
        "USUAL",
        "check_batches",
    ),
    "process.life": ("Executed", "Life"),
    "process.output": ("flush", "flush_native"),
    "process.program": ("Program",),
    "process.protocol": (
        "CLEARED",
        "TrainableEnd",
        "FRAME",
        "FRAME_CHECKPOINT",
        "FRAME_END",
        "FRAME_REPORT",
        "FRAME_SAVED",
        "MAX_ANSWER_CHARS",
        "Message",
        "PAUSE",
        "RECORD",
        "SAVE",
        "STOP",
        "STOP_SIGNAL",
        "StartMessage",
        "UNBUFFERED",
    ),
    "process.runner": ("run_attempt",),
    "process.session": ("Session", "StopTrial", "file_of"),
    "process.zygote": ("Child", "Zygote", "command"),
    "script": ("MetricLines", "WatchedFolder"),
    "script_arguments": ("ArgumentTemplate", "OutputPatterns", "reader_of"),
    "spec": ("TrainableSpec",),
    "values": ("CannotTravel", "stored"),
}
__getattr__ = facade_of(__name__, _NAMES)
