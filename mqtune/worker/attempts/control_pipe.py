"""The worker's end of a trial's control pipe, for orders to stop, pause, save or continue."""

from __future__ import annotations

import contextlib
import os
import reprlib
import threading
from typing import Final

from mqtune.trainable.process.protocol import ANSWER, CLEARED, MAX_ANSWER_CHARS, PAUSE, RECORD, SAVE, STOP, StopOrder

#: Maximum digits of a 64-bit number.
_COUNT_DIGITS: Final = 20


class ControlPipe:
    """The worker's end of a trial's control pipe. Thread-safe.

    Records sent before the trial's process exists wait in the pipe. If a trial never reads, its worker does not block:
    records are dropped once the pipe is full.
    """

    def __init__(self) -> None:
        self.read_end, self._write = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(self._write, False)
        self._lock = threading.Lock()
        self._sent = {SAVE: 0, CLEARED: 0}
        self._closed = False

    def tell(self, order: StopOrder) -> None:
        """Order the trial to end. It reads the pipe when it gets the stop signal."""
        with self._lock:
            self._put(STOP if order == "stop" else PAUSE, 0)

    def request_save(self, number: int) -> None:
        """Request a checkpoint. Do nothing if this or a later request was sent."""
        self._put_if_higher(SAVE, number)

    def release(self, sequence: int, answer: str = "") -> None:
        """Let a trial that waits after report *sequence* continue, and give it the driver's answer.

        Do nothing if it may continue after this or a later report already.

        Raises:
            ValueError: the answer is longer than any that a driver sends.
        """
        if len(answer) > MAX_ANSWER_CHARS:
            raise ValueError(f"an answer of {len(answer):,} characters")
        data = answer.encode()
        pieces = (int.from_bytes(data[at : at + 8].ljust(8, b"\0"), "little") for at in range(0, len(data), 8))
        self._put_if_higher(CLEARED, sequence, b"".join(RECORD.pack(ANSWER, piece) for piece in pieces))

    def _put_if_higher(self, kind: bytes, number: int, before: bytes = b"") -> None:
        with self._lock:
            if number > self._sent[kind]:
                self._sent[kind] = number
                self._put(kind, number, before)

    def _put(self, kind: bytes, number: int, before: bytes = b"") -> None:
        if not self._closed:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._write, before + RECORD.pack(kind, number))

    def close(self) -> None:
        """Close both ends."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._write)
                os.close(self.read_end)


def parse_count(text: str) -> int:
    """Parse a number in an answer of the journal. The pipe carries 64 bits.

    Raises:
        ValueError: *text* is not such a number.
    """
    # Python refuses to convert long texts, and to format large numbers.
    if len(text) > _COUNT_DIGITS or (number := int(text)) not in range(2**64):
        raise ValueError(f"{reprlib.repr(text)} is not a whole number from 0 to 2**64 - 1")
    return number
