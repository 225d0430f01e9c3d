"""Encoding of checkpoints that are small dicts. They are stored in Redis."""

from __future__ import annotations

import reprlib
import zlib
from collections.abc import Mapping
from typing import Final

from mqtune.checkpoints.checkpoint import Counters, State
from mqtune.core.codec import decode_value, encode_value, is_version
from mqtune.core.errors import CheckpointBroken, CheckpointVersionError, ConfigurationError

#: The limit of a dict checkpoint. Redis handles this size in milliseconds, and has memory for a thousand of them.
MAX_DICT_BYTES: Final = 1_000_000
_VERSION: Final = 1


def encode_dict(data: Mapping[str, object], counters: Mapping[str, object]) -> bytes:
    """Encode a dict checkpoint and its counters, in at most ``MAX_DICT_BYTES`` bytes.

    Numbers (NaN and infinity included), strings, bytes, None, lists and dicts are preserved. Tuples become lists, and
    NumPy scalars become numbers.

    Raises:
        ConfigurationError: a value can't be packed, or the dict is too large. The message names the key.
    """
    if not isinstance(data, dict):
        raise ConfigurationError(f"checkpoint: give a dict such as {{'epoch': 3}}, not {type(data).__name__}")
    plain = plain_counters(counters)
    try:
        body = encode_value([data, plain])
        # Some keys, such as tuples, can be packed but never unpacked.
        decode_value(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(_describe_invalid(data, error)) from None
    if len(body) > MAX_DICT_BYTES:
        sizes = {key: len(encode_value(value)) for key, value in data.items()}
        largest = max(sizes, key=lambda key: sizes[key])
        raise ConfigurationError(
            f"checkpoint: the dict has {len(body):,} bytes and the limit is {MAX_DICT_BYTES:,}; its largest value is "
            f"{largest!r} with {sizes[largest]:,}: write files into a folder and report that as the checkpoint"
        )
    return encode_value([_VERSION, zlib.crc32(body), body])


def decode_dict(data: bytes) -> tuple[State, Counters]:
    """Decode a dict checkpoint. Return the dict and the counters.

    Raises:
        CheckpointBroken: the bytes were changed.
        CheckpointVersionError: a later version of mqtune wrote them.
    """
    try:
        version, checksum, body = decode_value(data)
    except (TypeError, ValueError) as error:
        raise CheckpointBroken(
            f"a checkpoint in Redis has {len(data):,} bytes that can't be read: {str(error) or 'they are cut short'}"
        ) from None
    if not is_version(version, _VERSION):
        raise CheckpointVersionError(
            f"a checkpoint in Redis has version {reprlib.repr(version)}; this mqtune reads version {_VERSION}: upgrade "
            "it"
        )
    if type(body) is not bytes or type(checksum) is not int or zlib.crc32(body) != checksum:
        raise CheckpointBroken(f"a checkpoint in Redis has {len(data):,} bytes that don't match their checksum")
    try:
        restored, counters = decode_value(body)
        is_broken = type(restored) is not dict or type(counters) is not dict
    except (TypeError, ValueError):
        is_broken = True
    if is_broken:
        raise CheckpointBroken(f"a checkpoint in Redis has {len(data):,} bytes that are not a dict and its counters")
    return restored, counters


def plain_counters(counters: Mapping[str, object]) -> dict[str, int | float | str]:
    """Check counters, and return them with numbers instead of NumPy scalars.

    Raises:
        ConfigurationError: a name is not a string, or a value is neither a number nor a string.
    """
    plain: dict[str, int | float | str] = {}
    for name, value in counters.items():
        try:
            simple = decode_value(encode_value(value))
        except (TypeError, ValueError):
            simple = None
        if not isinstance(name, str) or not isinstance(simple, int | float | str):
            raise ConfigurationError(f"checkpoint: the counter {name!r} is {value!r}; counters are numbers or strings")
        plain[name] = simple
    return plain


def _describe_invalid(data: Mapping[str, object], error: Exception) -> str:
    wrong = "the dict"
    for key, value in data.items():
        try:
            decode_value(encode_value({key: None}))
        except (TypeError, ValueError):
            return f"checkpoint: the key {key!r} is {type(key).__name__}; keys are strings"
        try:
            decode_value(encode_value(value))
        except (TypeError, ValueError, RecursionError) as problem:
            wrong, error = f"the value of {key!r}, {type(value).__name__},", problem
            break
    return (
        f"checkpoint: {wrong} can't be saved ({error}); only numbers, strings, bytes, lists and dicts can. Turn small "
        "arrays into lists with .tolist(); write large arrays and models as files into a folder, and report that as "
        "the checkpoint"
    )
