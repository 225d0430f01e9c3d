"""Encoding of values as msgpack, never as pickles, and the bytes of reports, which are joined without being decoded."""

from __future__ import annotations

import contextlib
import math
import reprlib
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgpack

from mqtune.core.errors import ReportInvalid, ReportTooLarge
from mqtune.core.text import name_in_words

#: The version in every message; a reader that doesn't know it raises an error.
VERSION: Final = 1
#: The most bytes that one report may have, packed: ten thousand metrics, or some long texts. A driver remembers the
#: last and the best report of each trial, and a thousand trials with as much as this fill a gigabyte or two.
MAX_REPORT_BYTES: Final = 2**20
#: Stands before a report when it is tried whether it can be unpacked, which msgpack does 1,024 levels deep. A driver
#: must be able to read whatever a trial could send, within the lists that the journal puts around it, and to write it
#: as JSON, for which Python has 1,000 levels and needs some for itself: half of them are left to a report. Each takes a
#: byte at least.
_AROUND: Final = b"\x91" * 512
#: The kind of the event that carries a batch of reports.
REPORTS: Final = "reports"
if TYPE_CHECKING:
    Body = dict[str, Any]
    Number = float
else:
    # These are also what decoded values are checked by.
    #: The fields of a message or a config.
    Body = dict
    #: A float, or an int, which stays one.
    Number = int | float
#: What could be read of a segment: trial, attempt, first sequence number, reports, and how many more it should have.
_Segment = tuple[Any, Any, Any, list[Any], int]
#: How many fields a segment has.
_SEGMENT: Final = 4


def encode_value(value: object) -> bytes:
    """Encode *value* as msgpack; NumPy scalars become numbers.

    Raises:
        TypeError: msgpack can't carry it.
    """
    return _packed(value, as_number)


def encode_metric(value: object) -> bytes:
    """Encode the value of a metric as ``pack_metrics`` does.

    Raises:
        TypeError: it can't be sent.
    """
    return _packed(value, _metric)


def _packed(value: object, default: Callable[[Any], object]) -> bytes:
    try:
        packed: bytes = msgpack.packb(value, default=default)
    except (ValueError, OverflowError) as error:
        raise TypeError(str(error)) from None
    return packed


def decode_value(data: bytes) -> Any:
    """Decode msgpack.

    Raises:
        ValueError: the bytes are not one complete msgpack value.
    """
    try:
        return msgpack.unpackb(data, strict_map_key=False)
    except TypeError as error:
        # A list or dict as the key of a dict.
        raise ValueError(str(error)) from None


def is_version(found: object, known: int) -> bool:
    """Whether a message's version is *known*. True and 1.0 are not version 1, although they equal 1."""
    return type(found) is int and found == known


def check_depth(data: bytes) -> None:
    """Check that a value is not nested too deeply to be decoded within a journal's entry.

    Raises:
        ValueError: lists and dicts in it are nested too deeply, or it is cut short.
    """
    if len(data) <= len(_AROUND):
        return
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(_AROUND + data)
    try:
        unpacker.skip()
    except msgpack.UnpackException as error:
        raise ValueError(str(error) or "it is nested too deeply, or cut short") from None


def as_number(value: Any) -> Any:
    """Return a NumPy scalar, or an array or tensor without dimensions, as a plain value.

    Raises:
        TypeError: it is something else.
    """
    # Importing NumPy to ask for a type would cost 70 ms.
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a number, string, list or dict")


def _metric(value: Any) -> Any:
    """Return an array, tensor or series as a number if it has no dimension, or as a list if it has one.

    Missing values are NaN.
    """
    # TensorFlow's tensors have no tolist(). Importing NumPy to ask for a type would cost 70 ms.
    array = value if hasattr(value, "tolist") or not hasattr(value, "__array__") else value.__array__()
    dimensions = getattr(array, "ndim", None)
    if dimensions not in (0, 1) or not hasattr(array, "tolist"):
        if dimensions is None:
            raise TypeError(f"{type(value).__name__} is not a number, string, list, dict or array")
        shape = "×".join(map(str, array.shape))
        raise TypeError(
            f"this {type(value).__name__} of {shape} has {dimensions} dimensions, and an array may have one"
        )
    plain = array.tolist()
    # The item() of a masked value is 0.0, which is a very good loss.
    if dimensions == 1:
        return [math.nan if number is None else number for number in plain] if hasattr(array, "mask") else plain
    if plain is None:
        return math.nan
    # NumPy's longest floats stay what they are.
    is_float = getattr(getattr(array, "dtype", None), "kind", "") == "f"
    return float(plain) if is_float else plain


_NESTED: Final = (dict, list, tuple)
#: The types of names, and of values that hold no others; a report may be one of a flood, and most have only these.
_NAMES: Final = frozenset({str})
_FLAT: Final = frozenset({float, int, bool, str, type(None)})


def report_packer() -> msgpack.Packer:
    """Return a packer that makes ``pack_metrics`` faster; only one thread at a time may use it."""
    return msgpack.Packer(default=_metric, buf_size=2**12)


def pack_metrics(
    timestamp: float, metrics: Mapping[str, object], checkpoint: str = "", packer: msgpack.Packer | None = None
) -> bytes:
    """Encode one report as msgpack: ``[timestamp, metrics]``, or ``[timestamp, metrics, checkpoint]``.

    NaN and infinity are allowed. An array without a dimension becomes a number, an array with one a list.

    Raises:
        ReportInvalid: *metrics* is not a dict with string keys, or msgpack can't carry a value of it; the message names
            the key.
        ReportTooLarge: it has more than ``MAX_REPORT_BYTES``; the message names the largest value.
    """
    try:
        if not _NAMES.issuperset(map(type, metrics)) and not all(isinstance(name, str) for name in metrics):
            raise TypeError
        report = (timestamp, metrics, checkpoint) if checkpoint else (timestamp, metrics)
        packed: bytes = msgpack.packb(report, default=_metric) if packer is None else packer.pack(report)
        values = metrics.values()
        if not _FLAT.issuperset(map(type, values)) and any(
            isinstance(value, _NESTED) or getattr(value, "ndim", 0) for value in values
        ):
            # Some keys of nested dicts, such as tuples, can be packed and never unpacked.
            decode_value(packed if len(packed) < len(_AROUND) else _AROUND + packed)
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise ReportInvalid(_what_is_wrong(metrics)) from None
    if len(packed) > MAX_REPORT_BYTES:
        raise ReportTooLarge(_what_is_large(metrics, len(packed)))
    return packed


def _what_is_large(metrics: Mapping[str, object], size: int) -> str:
    sizes = {key: len(encode_metric({key: value})) for key, value in metrics.items()}
    largest = max(sizes, key=lambda key: sizes[key])
    return (
        f"report: these {len(metrics):,} metrics have {size:,} bytes and the most is {MAX_REPORT_BYTES:,}; the largest "
        f"is {name_in_words(largest)} with {sizes[largest]:,}: report numbers, and write what is large into the files "
        f"of a "
        "checkpoint, or to disk"
    )


def _what_is_wrong(metrics: object) -> str:
    if not isinstance(metrics, dict):
        return f"report: metrics must be a dict such as {{'loss': 0.1}}, not {type(metrics).__name__}"
    for key, value in metrics.items():
        if not isinstance(key, str):
            return f"report: the key {name_in_words(key)} is {type(key).__name__}; metric names are strings"
        try:
            decode_value(_AROUND + encode_metric([{key: value}]))
        except (TypeError, ValueError) as error:
            why = str(error) or "it is nested too deeply"
            shown = " ".join(reprlib.repr(value).split())
            return (
                f"report: the metric {name_in_words(key)} can't be sent: {shown} ({why}); report numbers, strings, "
                f"lists "
                "or dicts, x.tolist() of an array, and put what is large into a checkpoint"
            )
    return "report: the metrics can't be sent"


def segment_bytes(trial: str, attempt: int, first_sequence: int, reports: list[bytes]) -> bytes:
    """Return one attempt's consecutive packed reports as a segment of a ``reports`` event."""
    head = msgpack.packb([trial, attempt, first_sequence])
    # 0x93 is a list of three; 0x94 makes it a list of four, whose fourth is the list (0xdd: 32-bit length) that
    # follows.
    return b"".join((b"\x94", head[1:], b"\xdd", struct.pack(">I", len(reports)), *reports))


class ReportEncoder:
    """Encodes the reports of one attempt that come one by one, each as ``segment_bytes`` would.

    Only one thread may use it.

    Args:
        trial: the attempt's trial.
        attempt: its number.
        packer: one of ``report_packer``, which several encoders may share.
    """

    def __init__(self, trial: str, attempt: int, packer: msgpack.Packer) -> None:
        self._head = b"\x94" + packer.pack(trial) + packer.pack(attempt)
        self._packer = packer

    def segment(self, sequence: int, timestamp: float, metrics: Mapping[str, object], checkpoint: str) -> bytes:
        """Return a segment of one report.

        Raises:
            as ``pack_metrics``.
        """
        packer = self._packer
        packed = pack_metrics(timestamp, metrics, checkpoint, packer)
        return b"".join((self._head, packer.pack(sequence), _ONE, packed))


#: The head of a list of one, as ``segment_bytes`` writes it.
_ONE: Final = b"\xdd\x00\x00\x00\x01"


#: What stands before the list of segments in a ``reports`` event; the report script appends the list.
REPORTS_PREFIX: Final = b"\x93" + encode_value(VERSION) + encode_value(REPORTS)


def readable_segments(event: bytes) -> tuple[list[_Segment], int]:
    """Decode as much as possible of a malformed ``reports`` event.

    Everything after the first byte that is not msgpack is lost, because the start of the next report is unknown.

    Returns:
        of each segment trial, attempt, first sequence number, the reports, and how many more it should have; and how
        many more segments there should be.
    """
    # Lists can't be longer than that, and memory for them is taken before they are read.
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(event))
    unpacker.feed(event[len(REPORTS_PREFIX) :])
    found: list[_Segment] = []
    segments = 0
    # TypeError: a list or dict as the key of a dict.
    with contextlib.suppress(ValueError, TypeError, msgpack.UnpackException):
        segments = unpacker.read_array_header()
        while len(found) < segments and unpacker.read_array_header() == _SEGMENT:
            trial, attempt, first = (unpacker.unpack() for _ in range(_SEGMENT - 1))
            count = unpacker.read_array_header()
            reports: list[object] = []
            try:
                while len(reports) < count:
                    reports.append(unpacker.unpack())
            finally:
                found.append((trial, attempt, first, reports, count - len(reports)))
    return found, segments - len(found)
