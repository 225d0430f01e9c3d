"""Output files of trials, zygotes and submitted scripts.

They are kept short, and their content is sent on request.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final

from mqtune.core.impairment import WHOLE_WORKER
from mqtune.core.machine import end_of_file, open_regular
from mqtune.core.timing import Timing
from mqtune.journal.base import Claim
from mqtune.journal.exchange.logs import LogChunk, made_mark, output_path, read_chunk
from mqtune.worker.host.impairments import ImpairmentCause, Impairments
from mqtune.worker.host.threads import every, guarded

logger = logging.getLogger(__name__)

_TRIED_BYTES: Final = 4_096
#: Longest wait for a running check at shutdown: a network file system may hang.
_CLOSE_S: Final = 5.0
#: How often the move of the last part begins again, because too much was written meanwhile. A writer that is faster
#: than the disk cache for half a gigabyte loses lines.
_MOVES: Final = 10
_KIND: Final = "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Size limits of an output file, and the number of remembered files."""

    #: Longer files are shortened. This is some million lines.
    max_bytes: int = 64 * 2**20
    #: The sizes of the two parts that are kept. The last part may double while it is moved, still within the maximum.
    first_bytes: int = 8 * 2**20
    last_bytes: int = 24 * 2**20
    #: Bytes moved in one step.
    moved_bytes: int = 2**20
    #: Number of remembered files of attempts: days of trials.
    remembered: int = 20_000


class Logs:
    """Keeps each output file within ``max_bytes``, without delaying the writing trial.

    The middle of a long file is cut out and replaced by a line with the number of bytes. Lines written while the last
    part is moved are kept; lines written in the instant of truncation may be lost. Trials must open their files with
    O_APPEND.

    Args:
        root: the worker's log folder.
        zygotes: files of its zygotes, which may write at any time.
        impairments: gets notified if the folder is not writable.
    """

    def __init__(
        self,
        root: Path,
        zygotes: Iterable[Path],
        impairments: Impairments,
        limits: LogLimits | None = None,
        timing: Timing = Timing(),
    ) -> None:
        self._try_s = timing.try_logs_s
        self._root = root
        self._limits = limits or LogLimits()
        self._impairments = impairments
        self._written = set(zygotes)
        #: Files of attempts on this worker, oldest first.
        self._begun: dict[Path, None] = {}
        #: Bytes cut out of each file so far.
        self._cut: dict[Path, int] = {}
        #: Files whose folder could not be created, with the error.
        self._missing: dict[Path, OSError] = {}
        self._shortening = threading.Lock()
        self._tried_at = -math.inf
        self._closing = threading.Event()
        self._thread = guarded("mqtune-logs", lambda: every(timing.look_at_logs_s, self.check_files, self._closing))

    def start(self) -> None:
        """Start checking the files."""
        self._thread.start()

    def close(self) -> None:
        """Stop checking."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def files(self, experiment: str, claim: Claim) -> tuple[Path, Path]:
        """Return the paths of an attempt's stdout and stderr."""
        attempt = self._root, experiment, claim.trial, claim.attempt
        return output_path(*attempt, "stdout"), output_path(*attempt, "stderr")

    def make(self, *paths: Path) -> list[Path]:
        """Create these files and their folder. Return the new files.

        Errors are ignored: ``begin`` retries.
        """
        made = []
        for path in paths:
            with contextlib.suppress(OSError):
                try:
                    _make(path)
                except FileNotFoundError:
                    # Created only if missing: each attempt to create an existing folder would access the disk.
                    path.parent.mkdir(parents=True, exist_ok=True)
                    _make(path)
                made.append(path)
        return made

    def unmake(self, paths: Iterable[Path]) -> None:
        """Delete empty files from ``make``, and their folders if these are empty."""
        for path in paths:
            with contextlib.suppress(OSError):
                # Another worker that shares the folder may have run the attempt meanwhile.
                if path.stat().st_size == 0:
                    path.unlink()
                path.parent.rmdir()
                path.parent.parent.rmdir()

    def begin(self, *paths: Path) -> None:
        """Create the folder of these files and watch them. On failure, the trial runs without them."""
        for folder in dict.fromkeys(path.parent for path in paths):
            try:
                if not folder.is_dir():
                    folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                logger.warning("the output of a trial to %s is not kept: %s", folder, error)
                self._try_to_write()
                self._missing.update((path, error) for path in paths if path.parent == folder)
        self._written.update(paths)
        self._begun.update(dict.fromkeys(paths))
        while len(self._begun) > self._limits.remembered:
            # Several attempts may begin at the same time.
            self._begun.pop(next(iter(self._begun)), None)

    @cached_property
    def mark(self) -> str:
        """An id of this folder, the same on all machines that share it; empty if it is not writable."""
        return made_mark(self._root)

    def has_begun(self, path: Path) -> bool:
        """Whether this file belongs to an attempt on this worker."""
        return path in self._begun

    def read(self, path: Path, offset: int) -> LogChunk:
        """Return a part of a file from an offset, even while it is being written.

        Raises:
            OSError: the file can't be read.
        """
        # Checked before the read: a file closed by then is read to its end.
        is_open = path in self._written
        with self._shortening:
            try:
                return read_chunk(path, offset, is_open=is_open)
            except FileNotFoundError:
                if not is_open:
                    raise
                # Nothing was printed yet.
                return LogChunk(b"", 0, 0, is_open)

    def end(self, path: Path, size: int) -> str:
        """Stop watching a file, and return its last *size* bytes as text.

        If output is missing, the text says so.
        """
        self._written.discard(path)
        with self._shortening:
            is_empty = self._shorten_if_long(path) == 0
            self._cut.pop(path, None)
        if (missing := self._missing.pop(path, None)) is not None:
            return f"(the output was not kept: {missing})\n"
        gap = f"(some output may be missing, {problem})\n" if (problem := self.problem) else ""
        return gap + ("" if is_empty else _tail(path, size))

    @property
    def problem(self) -> str:
        """Known reason why the folder is not writable. Empty if it is writable."""
        return "" if (cause := self._impairments.cause_of(WHOLE_WORKER, _KIND)) is None else cause.text

    def _try_to_write(self) -> None:
        """Check whether the folder is writable.

        Trials continue without their output, so nothing else would report this.
        """
        self._tried_at = time.monotonic()
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            # A file without a name needs no cleanup.
            with tempfile.TemporaryFile(dir=self._root) as file:
                file.write(bytes(_TRIED_BYTES))
            problem = ""
        except OSError as error:
            problem = f"as {self._root} can't be written: {error.strerror or error}"
        before = self._impairments.cause_of(WHOLE_WORKER, _KIND)
        if problem and problem != self.problem:
            self._impairments.put([WHOLE_WORKER], _KIND, ImpairmentCause(problem, "it can be written"))
        elif before is not None and not problem:
            self._impairments.lift(before)

    def check_files(self) -> None:
        """Shorten long files, and check from time to time that the folder is writable."""
        if time.monotonic() - self._tried_at >= self._try_s:
            self._try_to_write()
        for path in tuple(self._written):
            with self._shortening:
                self._shorten_if_long(path)

    def _shorten_if_long(self, path: Path) -> int | None:
        """Shorten a file if it is too long. Return its size before that; None if it is unknown."""
        try:
            status = os.lstat(path)
            size = status.st_size
            # Only a file with a single name is certainly the output. A trial may have put a link to another file there.
            if size > self._limits.max_bytes and stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                self._cut[path] = _shorten(path, self._cut.get(path, 0), self._limits)
        except FileNotFoundError:
            return 0
        except OSError as error:
            logger.warning("%s can't be shortened: %s", path, error)
            return None
        return size


def _make(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))


def _shorten(path: Path, before: int, limits: LogLimits) -> int:
    """Cut the middle out of a file.

    Return the total number of bytes cut out, including *before* from earlier cuts.
    """
    first_bytes, last_bytes = limits.first_bytes, limits.last_bytes
    file = open_regular(path, os.O_RDWR)
    try:
        for _ in range(_MOVES):
            size = os.fstat(file).st_size
            cut = before + size - first_bytes - last_bytes
            to = first_bytes + os.pwrite(file, _mark(cut), first_bytes)
            come_from = size - last_bytes
            until = come_from + 2 * last_bytes
            while come_from < until and (data := os.pread(file, min(limits.moved_bytes, until - come_from), come_from)):
                come_from += len(data)
                while data:
                    moved = os.pwrite(file, data, to)
                    to, data = to + moved, data[moved:]
            if come_from < until:
                break
            # The file has grown by more than may be kept. Its last part is elsewhere now, and truncating would lose it.
        os.ftruncate(file, to)
        return cut
    finally:
        os.close(file)


def _mark(cut: int) -> bytes:
    return (
        f"\n… mqtune: {cut // 2**20:,} MiB of output were here; a file keeps its first and its last part …\n".encode()
    )


def _tail(path: Path, size: int) -> str:
    try:
        return end_of_file(path, size)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"(the output can't be read: {error})\n"


def open_log(path: Path) -> BinaryIO:
    """Open a file for appending. If that fails, return a file that drops the output."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        logger.warning("output to %s is not kept: %s", path, error)
        return open(os.devnull, "ab")
