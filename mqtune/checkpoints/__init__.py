"""Checkpoints: complete states of trials, the stores that hold them, and which of them are kept."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mqtune.checkpoints.checkpoint import Checkpoint
    from mqtune.checkpoints.dicts import MAX_DICT_BYTES, decode_dict, encode_dict
    from mqtune.checkpoints.opening import experiment_url, open_store
    from mqtune.checkpoints.references import References
    from mqtune.checkpoints.retention import Retention
    from mqtune.checkpoints.store import CheckpointStore

__all__ = [
    "MAX_DICT_BYTES",
    "Checkpoint",
    "CheckpointStore",
    "References",
    "Retention",
    "decode_dict",
    "encode_dict",
    "experiment_url",
    "open_store",
]

# Most trials need none of it, and none should wait for the stores: names are found when used.
_HOMES: Final[dict[str, str]] = {
    "Checkpoint": "checkpoint",
    **dict.fromkeys(("MAX_DICT_BYTES", "decode_dict", "encode_dict"), "dicts"),
    **dict.fromkeys(("experiment_url", "open_store"), "opening"),
    "References": "references",
    "Retention": "retention",
    "CheckpointStore": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mqtune.checkpoints' has no attribute {name!r}")
    value = getattr(import_module(f"mqtune.checkpoints.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
