"""What a worker tells its trial: each thing once, and never at the worker's own cost."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterator

import pytest

from mqtune.trainable import CLEARED, MAX_ANSWER_CHARS, RECORD, SAVE
from mqtune.worker import ControlPipe


@pytest.fixture
def control() -> Iterator[ControlPipe]:
    with contextlib.closing(ControlPipe()) as control:
        yield control


def told(control: ControlPipe) -> list[tuple[bytes, int]]:
    return list(RECORD.iter_unpack(os.read(control.read_end, 2**20)))


def test_a_wish_or_a_clearance_that_comes_again_is_passed_on_once(control: ControlPipe) -> None:
    for number in (1, 1, 2, 1, 2):
        control.request_save(number)
        control.release(number)

    assert told(control) == [(SAVE, 1), (CLEARED, 1), (SAVE, 2), (CLEARED, 2)]


def test_an_answer_arrives_whole_before_what_it_clears(control: ControlPipe) -> None:
    control.release(1, "longer than a record")
    control.release(1, "again")
    control.release(2)

    *pieces, end, other = told(control)
    assert (end, other) == ((CLEARED, 1), (CLEARED, 2))
    assert b"".join(piece.to_bytes(8, "little") for _, piece in pieces) == b"longer than a record\0\0\0\0"
    with pytest.raises(ValueError, match="characters"):
        control.release(3, "x" * (MAX_ANSWER_CHARS + 1))
    control.release(3, "x" * MAX_ANSWER_CHARS)
    assert len(told(control)) * RECORD.size <= select.PIPE_BUF
