"""Large files: threads hash them in parts, and flush them to disk, while the thread that copies them goes on."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, Self, TypeVar

from mqtune.checkpoints.files import write_all

if TYPE_CHECKING:
    # Few trials save so much, and the others should not wait for the import.
    from concurrent.futures import Future, ThreadPoolExecutor

#: The bytes of a part, for files that are larger than that. A core hashes one in 10 to 30 ms: so long is the copy of a file done
#: before its hash is, and so little work is not worth threads.
PART_BYTES: Final = 2**24
#: From how many bytes in all on threads are worth their start and the import, which take some milliseconds.
_LARGE_BYTES: Final = 2**24
#: Without instructions for SHA-256 a core hashes 0.5 GB/s: so many keep up with a copy. One of them may be flushing.
_THREADS: Final = 4
#: How many tasks the copy may be ahead of the threads, so that what they read back is still in memory.
_MOST_WAITING: Final = 8
#: Read at once: it stays in a core's cache until it is written or hashed, which saves a tenth of the time of a copy and more.
_CHUNK_BYTES: Final = 2**18

R = TypeVar("R")
#: Returns the size of a file in bytes and its hash, once that is known.
Hashed = Callable[[], tuple[int, str]]
Translating = Callable[[], AbstractContextManager[object]]


class PartHasher:
    """Hashes files, in parts and in threads if they have many bytes in all, and in the thread that calls it if not.

    The hash of a file in parts is the SHA-256 of the SHA-256 of each part, in hex. A block with one ends when its threads
    have ended. An error in a thread is raised by one of the later calls, by what the call has returned, or at the end.

    Args:
        total: how many bytes all files have.
    """

    def __init__(self, total: int) -> None:
        self._is_large = total >= _LARGE_BYTES
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[Callable[[], object]] = deque()
        self._flushing: Future[None] | None = None

    def __enter__(self) -> Self:
        if self._is_large:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

            self._pool = ThreadPoolExecutor(_THREADS, "mqtune-files")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            # What waits is little, and closes its files.
            self._pool.shutdown()
        if kind is None:
            # Nobody asks for what a flush has come to.
            self._make_room(0)

    def run(self, function: Callable[[], R]) -> Callable[[], R]:
        """Call *function* in a thread, and return the function that waits for its result and returns that."""
        if self._pool is None:
            result = function()
            return lambda: result
        self._make_room(_MOST_WAITING - 1)
        future = self._pool.submit(function)
        self._waiting.append(future.result)
        return future.result

    def _make_room(self, most: int) -> None:
        """Wait until no more than *most* tasks wait, and raise what one of the others has raised."""
        while len(self._waiting) > most:
            self._waiting.popleft()()

    def copy(
        self,
        read: Callable[[memoryview], int],
        descriptor: int,
        part_bytes: int,
        translating: Translating,
        *,
        flush: bool,
    ) -> Hashed:
        """Copy to the end; the hash is that of what lies in the copy then, which is read back while more is copied.

        Args:
            read: fills a buffer and returns how far; 0 at the end.
            descriptor: the file to write, which can be read too.
            part_bytes: how many bytes a part has.
            translating: translates the errors of writing and of reading back.
            flush: have the disk begin to write before the end; its errors are not translated.
        """
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, part_bytes)))
        parts: list[Callable[[], bytes]] = []
        size = begin = 0
        while count := read(buffer[: begin + part_bytes - size]):
            with translating():
                write_all(descriptor, buffer[:count])
            size += count
            if size == begin + part_bytes:
                parts.append(self._hash(descriptor, begin, size, translating))
                begin = size
                if flush:
                    self._begin_to_flush(descriptor)
        if size > begin:
            parts.append(self._hash(descriptor, begin, size, translating))
        if flush:
            self._run_with(descriptor, os.fsync, nullcontext)
        return lambda: (size, _joined([part() for part in parts]))

    def hash(self, descriptor: int, part_bytes: int, translating: Translating, *, flush: bool) -> Hashed:
        """Hash a file that is there already, and with *flush* have the disk write it meanwhile."""
        with translating():
            size = os.fstat(descriptor).st_size
        if flush:
            self._run_with(descriptor, os.fsync, nullcontext)
        begins = range(0, size, part_bytes)

        def every(first: int) -> Callable[[int], list[bytes]]:
            return lambda own: [_digest(own, begin, min(begin + part_bytes, size)) for begin in begins[first::_THREADS]]

        # Not a task for each part: they have descriptors of their own, and the caller need not wait for any of them.
        tasks = [self._run_with(descriptor, every(first), translating) for first in range(_THREADS)]

        def joined() -> str:
            found = [task() for task in tasks]
            return _joined([found[number % _THREADS][number // _THREADS] for number in range(len(begins))])

        return lambda: (size, joined())

    def _hash(self, descriptor: int, begin: int, end: int, translating: Translating) -> Callable[[], bytes]:
        return self._run_with(descriptor, lambda own: _digest(own, begin, end), translating)

    def _run_with(self, descriptor: int, function: Callable[[int], R], translating: Translating) -> Callable[[], R]:
        # Before the task has its descriptor, since this may raise an earlier one's error.
        self._make_room(_MOST_WAITING - 1)
        return self.run(_with_own(descriptor, function, translating))

    def _begin_to_flush(self, descriptor: int) -> None:
        """Have a thread flush what a file has by now, unless one is at it."""
        if self._pool is None or (self._flushing is not None and not self._flushing.done()):
            return
        if self._flushing is not None:
            # The system reports an error of the disk once, so that the last flush may not find it.
            self._flushing.result()
        self._flushing = self._pool.submit(_with_own(descriptor, os.fsync, nullcontext))
        self._waiting.append(self._flushing.result)


def _with_own(descriptor: int, function: Callable[[int], R], translating: Translating) -> Callable[[], R]:
    """Return a task with a descriptor of its own, which it closes: the caller closes his own when he has copied all."""
    with translating():
        own = os.dup(descriptor)

    def task() -> R:
        try:
            with translating():
                return function(own)
        finally:
            os.close(own)

    return task


def _digest(descriptor: int, begin: int, end: int) -> bytes:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, end - begin)))
    while count := os.preadv(descriptor, [buffer[: end - begin]], begin):
        digest.update(buffer[:count])
        begin += count
    return digest.digest()


def _joined(parts: list[bytes]) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()
