"""Checkpoints: complete states of trials, and their stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqtune.core.lazy import found_when_used

if TYPE_CHECKING:
    from mqtune.checkpoints.checkpoint import Checkpoint
    from mqtune.checkpoints.dicts import MAX_DICT_BYTES, decode_dict, encode_dict
    from mqtune.checkpoints.registry import experiment_url, open_store, store_beside, stores_below
    from mqtune.checkpoints.store import CheckpointStore

__all__ = [
    "MAX_DICT_BYTES",
    "Checkpoint",
    "CheckpointStore",
    "decode_dict",
    "encode_dict",
    "experiment_url",
    "open_store",
    "store_beside",
    "stores_below",
]

# Imported on first use, because most trials need no store.
_HOMES: Final[dict[str, str]] = {
    "Checkpoint": "mqtune.checkpoints.checkpoint",
    **dict.fromkeys(("MAX_DICT_BYTES", "decode_dict", "encode_dict"), "mqtune.checkpoints.dicts"),
    **dict.fromkeys(("experiment_url", "open_store", "store_beside", "stores_below"), "mqtune.checkpoints.registry"),
    "CheckpointStore": "mqtune.checkpoints.store",
    # Internal names, for unit tests.
    **dict.fromkeys(("DirectoryStore",), "mqtune.checkpoints.directory"),
    **dict.fromkeys(("Tenant", "is_same_store"), "mqtune.checkpoints.store"),
}
__getattr__ = found_when_used(__name__, _HOMES)
