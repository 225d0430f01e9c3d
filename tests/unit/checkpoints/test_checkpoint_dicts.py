from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mqtune import Checkpoint
from mqtune.checkpoints import MAX_DICT_BYTES, decode_dict, encode_dict
from mqtune.core.codec import encode_value
from mqtune.core.errors import CheckpointBroken, CheckpointVersionError, ConfigurationError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=100),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 100), inner, max_size=4),
    max_leaves=12,
)
COUNTERS = st.dictionaries(st.text(), st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(), max_size=4)


@given(st.dictionaries(st.text(), VALUES, max_size=5), COUNTERS)
def test_a_dict_comes_back_as_it_was(data: dict[str, Any], counters: dict[str, Any]) -> None:
    assert decode_dict(encode_dict(data, counters)) == (data, counters)


@given(st.binary(max_size=200), st.data())
def test_a_changed_byte_is_found(content: bytes, choice: st.DataObject) -> None:
    data = encode_dict({"weights": content, "epoch": 3}, {"n": 1})
    place = choice.draw(st.integers(0, len(data) - 1))
    changed = bytes([data[place] ^ choice.draw(st.integers(1, 255))])

    with pytest.raises((CheckpointBroken, CheckpointVersionError)):
        decode_dict(data[:place] + changed + data[place + 1 :])


def test_a_later_version_is_said_to_be_that() -> None:
    with pytest.raises(CheckpointVersionError, match=r"version 2.*upgrade"):
        decode_dict(encode_value([2, 0, b""]))


def test_the_largest_dict_is_taken_and_of_a_larger_one_the_largest_value_is_named() -> None:
    room = MAX_DICT_BYTES - len(encode_value([{"weights": b""}, {}])) - 3

    assert len(decode_dict(encode_dict({"weights": b"w" * room}, {}))[0]["weights"]) == room
    with pytest.raises(ConfigurationError, match=r"1,000,\d{3} bytes .* 1,000,000; .* 'weights' .*folder"):
        encode_dict({"weights": b"w" * room, "bias": b"b" * 100}, {})
    with pytest.raises(ConfigurationError):
        encode_dict({"weights": b"w" * (room + 1)}, {})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"epoch": 1, "weights": np.zeros(3)}, "'weights', ndarray.*tolist"),
        ({"state": {"weights": np.zeros(3)}}, "'state', dict.*ndarray.*tolist"),
        ({"model": object()}, "'model', object.*folder"),
        ({"seen": {1, 2}}, "'seen', set"),
        ({"big": 2**64}, "'big', int"),
        ({"odd": {(1, 2): 3}}, "'odd', dict"),
        ({(1, 2): 3}, r"\(1, 2\) is tuple"),
        ({1.5: 3, object(): 4}, "object"),
        ([1, 2], "not list"),
        (None, "not NoneType"),
    ],
)
def test_what_can_not_be_saved_in_a_dict_is_named(data: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        encode_dict(data, {})
    with pytest.raises(ConfigurationError, match="counter 'epochs'"):
        encode_dict({}, {"epochs": [1, 2]})


def test_a_dict_that_is_too_deep_or_holds_itself_is_refused() -> None:
    data: dict[str, Any] = {"epoch": 1}
    data["self"] = data

    with pytest.raises(ConfigurationError, match="can't be saved"):
        encode_dict(data, {})
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"deeper": deep}
    with pytest.raises(ConfigurationError, match="can't be saved"):
        encode_dict(deep, {})


def test_a_checkpoint_is_a_folder_or_a_dict(tmp_path: Path) -> None:
    folder, data = Checkpoint.from_directory(str(tmp_path)), Checkpoint.from_dict({"epoch": 1})
    with folder.as_directory() as lent:
        assert lent == tmp_path
    assert tmp_path.is_dir()
    with pytest.raises(ConfigurationError, match=r"is a dict and has no folder: use its \.data"):
        data.as_directory().__enter__()

    assert (folder.path, folder.is_dict, folder.id, folder.counters) == (tmp_path, False, "", {})
    assert (data.data, data.is_dict) == ({"epoch": 1}, True)
    with pytest.raises(ConfigurationError, match=r"use its \.path"):
        _ = folder.data
    with pytest.raises(ConfigurationError, match=r"use its \.data"):
        _ = data.path
    assert repr(Checkpoint(id="p-1-1-1", path=tmp_path)) == f"<Checkpoint p-1-1-1: path='{tmp_path}'>"
    assert repr(data) == "<Checkpoint (unsaved): 1 keys>"


def test_a_checkpoint_of_nothing_is_refused(tmp_path: Any) -> None:
    for make in (
        Checkpoint,
        lambda: Checkpoint(path=tmp_path, data={}),
        lambda: Checkpoint.from_directory(tmp_path / "missing"),
        lambda: Checkpoint.from_dict([1]),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError):
            make()
