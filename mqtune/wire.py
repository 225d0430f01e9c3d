"""How values travel: msgpack, and never a pickle; and the bytes of reports, which are joined without being read."""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgpack

__all__ = [
    "REPORTS",
    "REPORTS_PREFIX",
    "VERSION",
    "decode_value",
    "encode_value",
    "pack_metrics",
    "segment_bytes",
]

#: Stands in every message; a reader that doesn't know it says so.
VERSION: Final = 1
#: The kind of the event that carries a batch of reports.
REPORTS: Final = "reports"


def encode_value(value: Any) -> bytes:
    """Return *value* as msgpack; NumPy scalars become numbers.

    Raises:
        TypeError: msgpack can't carry it.
    """
    try:
        packed: bytes = msgpack.packb(value, default=_number)
    except (ValueError, OverflowError) as error:
        raise TypeError(str(error)) from None
    return packed


def decode_value(data: bytes) -> Any:
    """Return the value that *data* carries.

    Raises:
        ValueError: the bytes are not one complete msgpack value.
    """
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except TypeError as error:
        # A list or dict as the key of a dict.
        raise ValueError(str(error)) from None


def _number(value: Any) -> Any:
    # NumPy scalars, 0-d arrays and 0-d tensors all have item() and no dimension; importing NumPy to ask would cost 70 ms.
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a number, string, list or dict")


def pack_metrics(timestamp: float, metrics: Mapping[str, Any], checkpoint: str = "") -> bytes:
    """Return one report's ``[timestamp, metrics]`` as msgpack; NaN and infinity are values like any other.

    With a checkpoint's id, that is the third of the list.

    Raises:
        TypeError: *metrics* is not a dict with string keys, or msgpack can't carry a value of it; the message names the key.
    """
    try:
        nested = False
        for key, value in metrics.items():
            if type(key) is not str and not isinstance(key, str):
                raise TypeError
            nested = nested or isinstance(value, dict | list | tuple)
        report = (timestamp, metrics, checkpoint) if checkpoint else (timestamp, metrics)
        packed: bytes = msgpack.packb(report, default=_number)
        if nested:
            # Some keys of nested dicts, such as tuples, can be packed and never unpacked.
            decode_value(packed)
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise TypeError(_what_is_wrong(metrics)) from None
    return packed


def _what_is_wrong(metrics: object) -> str:
    if not isinstance(metrics, dict):
        return f"report: metrics must be a dict such as {{'loss': 0.1}}, not {type(metrics).__name__}"
    for key, value in metrics.items():
        if not isinstance(key, str):
            return f"report: the key {key!r} is {type(key).__name__}; metric names are strings"
        try:
            decode_value(encode_value({key: value}))
        except (TypeError, ValueError) as error:
            shown = reprlib.repr(value)
            return (
                f"report: the metric {key!r} can't be sent: {shown} ({error}); report numbers, strings, lists or dicts"
            )
    return "report: the metrics can't be sent"


def segment_bytes(trial: str, attempt: int, first_sequence: int, reports: list[bytes]) -> bytes:
    """Return one attempt's consecutive packed reports as a segment of a ``reports`` event."""
    head = msgpack.packb([trial, attempt, first_sequence])
    # 0x93 is a list of three; 0x94 makes it a list of four, whose fourth is the list (0xdd: 32-bit length) that follows.
    return b"".join((b"\x94", head[1:], b"\xdd", struct.pack(">I", len(reports)), *reports))


#: What stands before the list of segments in a ``reports`` event; the report script appends the list.
REPORTS_PREFIX: Final = b"\x93" + encode_value(VERSION) + encode_value(REPORTS)
