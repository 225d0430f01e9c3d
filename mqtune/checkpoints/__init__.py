"""Checkpoints: complete states of trials, and the stores that hold them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mqtune.checkpoints.checkpoint import Checkpoint
    from mqtune.checkpoints.dicts import MAX_DICT_BYTES, decode_dict, encode_dict
    from mqtune.checkpoints.registry import experiment_url, open_store, stores_below
    from mqtune.checkpoints.store import CheckpointStore

__all__ = [
    "MAX_DICT_BYTES",
    "Checkpoint",
    "CheckpointStore",
    "decode_dict",
    "encode_dict",
    "experiment_url",
    "open_store",
    "stores_below",
]

# Most trials need none of it, and none should wait for the stores: names are found when used.
_HOMES: Final[dict[str, str]] = {
    "Checkpoint": "checkpoint",
    **dict.fromkeys(("MAX_DICT_BYTES", "decode_dict", "encode_dict"), "dicts"),
    **dict.fromkeys(("experiment_url", "open_store", "stores_below"), "registry"),
    "CheckpointStore": "store",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mqtune.checkpoints' has no attribute {name!r}")
    value = getattr(import_module(f"mqtune.checkpoints.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
