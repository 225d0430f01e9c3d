"""Encoding of values as msgpack, never as pickles, and of batches of reports."""

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

#: The version in every message. Readers raise an error for an unknown one.
VERSION: Final = 1
#: The maximum size of a packed report: ten thousand metrics, or some long texts. A driver remembers the last and the
#: best report of each trial, so a thousand trials with such reports fill a gigabyte or two.
MAX_REPORT_BYTES: Final = 2**20
#: The heads of 512 nested lists. To check a report's depth, it is decoded inside them. msgpack decodes 1,024 levels, so
#: a report may have about 512. That is enough room for the lists of the journal around it, and for Python's limit of
#: 1,000 levels when a driver writes it as JSON.
_DEPTH_PREFIX: Final = b"\x91" * 512
#: The kind of the event that carries a batch of reports.
REPORTS: Final = "reports"
if TYPE_CHECKING:
    Body = dict[str, Any]
    Number = float
else:
    # Decoded values are checked by these types.
    #: The fields of a message or a config.
    Body = dict
    #: A float or an int. Decoding does not turn an int into a float.
    Number = int | float
#: The readable part of a segment: trial, attempt, first sequence number, reports, and the number of missing reports.
_Segment = tuple[Any, Any, Any, list[Any], int]
#: The number of fields of a segment.
_SEGMENT: Final = 4


def encode_value(value: object) -> bytes:
    """Encode *value* as msgpack. NumPy scalars become numbers.

    Raises:
        TypeError: msgpack can't encode the value.
    """
    return _packed(value, as_number)


def encode_metric(value: object) -> bytes:
    """Encode the value of a metric as ``pack_metrics`` does.

    Raises:
        TypeError: the value can't be sent.
    """
    return _packed(value, _plain_metric)


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
        # msgpack raises this for a list or dict as the key of a dict.
        raise ValueError(str(error)) from None


def is_version(version: object, known: int) -> bool:
    """Whether a message's version is *known*. True and 1.0 don't count as version 1."""
    return type(version) is int and version == known


def check_depth(data: bytes) -> None:
    """Check that an encoded value is not nested too deeply for an entry of the journal.

    Raises:
        ValueError: lists and dicts in it are nested too deeply, or *data* is cut short.
    """
    if len(data) <= len(_DEPTH_PREFIX):
        return
    unpacker = msgpack.Unpacker(max_buffer_size=0)
    unpacker.feed(_DEPTH_PREFIX + data)
    try:
        unpacker.skip()
    except msgpack.UnpackException as error:
        raise ValueError(str(error) or "it is nested too deeply, or cut short") from None


def as_number(value: Any) -> Any:
    """Return a NumPy scalar, or an array or tensor without dimensions, as a plain value.

    Raises:
        TypeError: *value* is neither.
    """
    # Importing NumPy to ask for a type would cost 70 ms.
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a number, string, list or dict")


def _plain_metric(value: Any) -> Any:
    """Return an array without dimensions as a number, and an array with one dimension as a list.

    Missing values become NaN.
    """
    # TensorFlow's tensors have no tolist(). Importing NumPy to ask for a type would cost 70 ms.
    array = value if hasattr(value, "tolist") or not hasattr(value, "__array__") else value.__array__()
    dimensions = getattr(array, "ndim", None)
    if dimensions not in (0, 1) or not hasattr(array, "tolist"):
        if dimensions is None:
            raise TypeError(f"{type(value).__name__} is not a number, string, list, dict or array")
        shape = "×".join(map(str, array.shape))
        raise TypeError(
            f"this {type(value).__name__} of {shape} has {dimensions} dimensions; an array may have at most one"
        )
    plain = array.tolist()
    # The item() of a masked value is 0.0, which would be a very good loss.
    if dimensions == 1:
        return [math.nan if number is None else number for number in plain] if hasattr(array, "mask") else plain
    if plain is None:
        return math.nan
    # The tolist() of NumPy's longest floats is not a float.
    is_float = getattr(getattr(array, "dtype", None), "kind", "") == "f"
    return float(plain) if is_float else plain


_NESTED: Final = (dict, list, tuple)
#: The types of names and of flat values, for a fast check of most reports.
_NAMES: Final = frozenset({str})
_FLAT: Final = frozenset({float, int, bool, str, type(None)})


def report_packer() -> msgpack.Packer:
    """Return a packer that makes ``pack_metrics`` faster. Only one thread at a time may use it."""
    return msgpack.Packer(default=_plain_metric, buf_size=2**12)


def pack_metrics(
    timestamp: float, metrics: Mapping[str, object], checkpoint: str = "", packer: msgpack.Packer | None = None
) -> bytes:
    """Encode one report as ``[timestamp, metrics]``, or ``[timestamp, metrics, checkpoint]``.

    NaN and infinity are allowed. An array without dimensions becomes a number, an array with one a list.

    Raises:
        ReportInvalid: *metrics* is not a dict with string keys, or msgpack can't carry a value. The message names the
            key.
        ReportTooLarge: the report has more than ``MAX_REPORT_BYTES``. The message names the largest value.
    """
    try:
        if not _NAMES.issuperset(map(type, metrics)) and not all(isinstance(name, str) for name in metrics):
            raise TypeError
        report = (timestamp, metrics, checkpoint) if checkpoint else (timestamp, metrics)
        packed: bytes = msgpack.packb(report, default=_plain_metric) if packer is None else packer.pack(report)
        values = metrics.values()
        if not _FLAT.issuperset(map(type, values)) and any(
            isinstance(value, _NESTED) or getattr(value, "ndim", 0) for value in values
        ):
            # Some keys of nested dicts, such as tuples, can be packed but never unpacked.
            decode_value(packed if len(packed) < len(_DEPTH_PREFIX) else _DEPTH_PREFIX + packed)
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise ReportInvalid(_describe_invalid(metrics)) from None
    if len(packed) > MAX_REPORT_BYTES:
        raise ReportTooLarge(_describe_too_large(metrics, len(packed)))
    return packed


def _describe_too_large(metrics: Mapping[str, object], size: int) -> str:
    sizes = {key: len(encode_metric({key: value})) for key, value in metrics.items()}
    largest = max(sizes, key=lambda key: sizes[key])
    return (
        f"report: these {len(metrics):,} metrics have {size:,} bytes and the limit is {MAX_REPORT_BYTES:,}; the "
        f"largest is {name_in_words(largest)} with {sizes[largest]:,}: report numbers, and write large values into "
        "the files of a checkpoint, or to disk"
    )


def _describe_invalid(metrics: object) -> str:
    if not isinstance(metrics, dict):
        return f"report: metrics must be a dict such as {{'loss': 0.1}}, not {type(metrics).__name__}"
    for key, value in metrics.items():
        if not isinstance(key, str):
            return f"report: the key {name_in_words(key)} is {type(key).__name__}; metric names are strings"
        try:
            decode_value(_DEPTH_PREFIX + encode_metric([{key: value}]))
        except (TypeError, ValueError) as error:
            why = str(error) or "it is nested too deeply"
            shown = " ".join(reprlib.repr(value).split())
            return (
                f"report: the metric {name_in_words(key)} can't be sent: {shown} ({why}); report numbers, strings, "
                "lists or dicts, x.tolist() of an array, and put large values into a checkpoint"
            )
    return "report: the metrics can't be sent"


def segment_bytes(trial: str, attempt: int, first_sequence: int, reports: list[bytes]) -> bytes:
    """Join consecutive packed reports of one attempt into a segment of a ``reports`` event."""
    head = msgpack.packb([trial, attempt, first_sequence])
    # 0x93 is a list of three, 0x94 a list of four: the fourth is the following list (0xdd: 32-bit length).
    return b"".join((b"\x94", head[1:], b"\xdd", struct.pack(">I", len(reports)), *reports))


class ReportEncoder:
    """Encodes the reports of one attempt, each as a segment of its own.

    Only one thread may use it.

    Args:
        packer: a packer by ``report_packer``, which several encoders may share.
    """

    def __init__(self, trial: str, attempt: int, packer: msgpack.Packer) -> None:
        self._head = b"\x94" + packer.pack(trial) + packer.pack(attempt)
        self._packer = packer

    def segment(self, sequence: int, timestamp: float, metrics: Mapping[str, object], checkpoint: str) -> bytes:
        """Encode one report as a segment of a ``reports`` event.

        Raise the errors of ``pack_metrics``.
        """
        packer = self._packer
        packed = pack_metrics(timestamp, metrics, checkpoint, packer)
        return b"".join((self._head, packer.pack(sequence), _ONE, packed))


#: The head of a list of one element, in the long form that ``segment_bytes`` uses.
_ONE: Final = b"\xdd\x00\x00\x00\x01"


#: The bytes before the list of segments in a ``reports`` event. The report script appends the list.
REPORTS_PREFIX: Final = b"\x93" + encode_value(VERSION) + encode_value(REPORTS)


def readable_segments(event: bytes) -> tuple[list[_Segment], int]:
    """Decode as much as possible of a malformed ``reports`` event.

    The data after the first byte that is not msgpack is lost, because the start of the next report is unknown.

    Returns:
        the readable segments, and the number of missing ones.
    """
    # This bounds the length of lists, whose memory is allocated before they are read.
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=len(event))
    unpacker.feed(event[len(REPORTS_PREFIX) :])
    readable: list[_Segment] = []
    segments = 0
    # TypeError: a list or dict as the key of a dict.
    with contextlib.suppress(ValueError, TypeError, msgpack.UnpackException):
        segments = unpacker.read_array_header()
        while len(readable) < segments and unpacker.read_array_header() == _SEGMENT:
            trial, attempt, first = (unpacker.unpack() for _ in range(_SEGMENT - 1))
            count = unpacker.read_array_header()
            reports: list[object] = []
            try:
                while len(reports) < count:
                    reports.append(unpacker.unpack())
            finally:
                readable.append((trial, attempt, first, reports, count - len(reports)))
    return readable, segments - len(readable)
