"""A file with every failed attempt of an experiment."""

from __future__ import annotations

import contextlib
import logging
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqtune.core.callback import Callback
from mqtune.core.status import TrialStatus
from mqtune.core.trial import Attempt, AttemptEnd, Trial

if TYPE_CHECKING:
    from mqtune.core.experiment import Experiment

__all__ = ["ERROR_FILE", "ErrorLog"]

logger = logging.getLogger(__name__)

ERROR_FILE: Final = "errors.txt"
_INDENT: Final = "    "


class ErrorLog(Callback):
    """Appends each failed attempt to ``errors.txt`` in a folder, with its time (UTC), worker, error and traceback.

    An attempt has failed when its user code did, when its worker was lost or could not start it, or when it ended well but
    without what a trial must report. What is in the file stays as it is. A resumed driver adds the failures that no driver
    saw, and none twice. If the file can't be written, that is logged once, and tried again at the next failure.

    Args:
        folder: the experiment's.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ERROR_FILE
        #: First lines of the entries that the file has, and of those that it should have.
        self._noted: set[str] = set()
        #: Whether the file ends within an entry.
        self._is_cut = False
        self._has_complained = False

    def on_start(self, experiment: Experiment) -> None:
        self._read()
        missed = [
            (attempt.ended_at or 0.0, trial, attempt)
            for trial in list(experiment.trials.values())
            for attempt in list(trial.attempts)
            if _has_failed(trial, attempt)
        ]
        for _, trial, attempt in sorted(missed, key=lambda each: each[0]):
            self._add(trial, attempt)

    def on_attempt_end(self, trial: Trial, attempt: Attempt) -> None:
        if _has_failed(trial, attempt):
            self._add(trial, attempt)

    def _read(self) -> None:
        line = "\n"
        with contextlib.suppress(FileNotFoundError), self._path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.strip() and not line.startswith(_INDENT):
                    self._noted.add(line.rstrip("\n"))
        # A crash, or a full disk, may have left half an entry.
        self._is_cut = line != "\n"

    def _add(self, trial: Trial, attempt: Attempt) -> None:
        head = _head(trial, attempt)
        if head in self._noted:
            return
        self._noted.add(head)
        body = attempt.error or (trial.reason if attempt.number == len(trial.attempts) else "") or attempt.stderr_tail
        # Lines that Python alone takes for such, as after a form feed, would look like first lines.
        lines = [head, *(_INDENT + line for line in body.splitlines() if line.strip()), "", ""]
        entry = "\n".join(lines).encode()
        try:
            self._append(entry)
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                logger.warning(
                    "%s can't be written: %s; the journal has all failures, and the next is tried again",
                    self._path,
                    error,
                )

    def _append(self, entry: bytes) -> None:
        """Add an entry behind all others, in one write if the disk has room for it.

        Raises:
            OSError: it has none; a part of the entry may be in the file.
        """
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            rest = b"\n\n" + entry if self._is_cut else entry
            self._is_cut = True
            while rest:
                rest = rest[os.write(file, rest) :]
            self._is_cut = False
        finally:
            with contextlib.suppress(OSError):
                os.close(file)


def _has_failed(trial: Trial, attempt: Attempt) -> bool:
    """Whether an attempt failed; *trial* is as the attempt's end, or what is known of it since, has left it."""
    if attempt.end in (AttemptEnd.FAILED, AttemptEnd.LOST) or attempt.could_not_start:
        return True
    if attempt.end is None or attempt.number != len(trial.attempts):
        return False
    # It returned, or was told to complete, and had not reported what counts; it may be run again.
    wants_retry = trial.status is TrialStatus.STAGED and attempt.end is AttemptEnd.COMPLETED
    return trial.status is TrialStatus.FAILED or wants_retry


def _head(trial: Trial, attempt: Attempt) -> str:
    at = datetime.fromtimestamp(attempt.ended_at or 0.0, UTC).isoformat(timespec="milliseconds")
    parts = [f"{at} trial {trial.id} attempt {attempt.number}"]
    parts.append(f"on {attempt.worker}" if attempt.worker else "on no worker")
    if attempt.error_type:
        parts.append(attempt.error_type)
    elif attempt.end is AttemptEnd.LOST:
        parts.append("its worker was lost")
    if attempt.signal is not None:
        parts.append(f"signal {attempt.signal}")
    elif attempt.exit_code:
        parts.append(f"exit code {attempt.exit_code}")
    return ", ".join(parts).replace("\n", " ")
