"""The worker's part of folders: decides where attempts run, and settles their new files."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from mqtune.core.trial import AttemptEnd
from mqtune.services.folders.working_folder import KEPT_LINKS, discard, settle
from mqtune.worker import ExperimentHere, ImportKey, Scratch, WorkerSettings
from mqtune.worker.ports import AttemptHere, WorkerHost, WorkerService

#: The folder in an experiment's folder with the places of running attempts, by worker. No trial can have this name.
WORK_FOLDER: Final = ".work"
#: The working directory of an attempt in its temporary folder, if it is never kept.
_WORK: Final = "work"


class Folders(WorkerService):
    """The working folders of a worker's attempts.

    Args:
        log_root: the worker's log folder.
        scratch: the temporary folders of its attempts.
    """

    def __init__(self, log_root: Path, scratch: Scratch) -> None:
        self._log_root = log_root.absolute()
        self._scratch = scratch
        #: The places with files that can't be moved.
        self._stuck: set[Path] = set()
        settle_behind(log_root, scratch)

    def prepare(self, experiment: ExperimentHere, key: ImportKey) -> ImportKey:
        """Have each process of trials make a working folder, if the experiment asks for that."""
        if experiment.definition.get("working_dir") != "trial":
            return key
        places = self._log_root / experiment.name / WORK_FOLDER / self._scratch.name
        parts = (*key.program.parts, ("mqtune.services.folders.part", str(places)))
        return replace(key, program=replace(key.program, parts=parts))

    def working_dir(self, run: AttemptHere) -> Path | None:
        """Return an attempt's own working directory, new for each claim; None without one."""
        if run.definition.get("working_dir") != "trial":
            return None
        experiment, claim = run.journal.experiment, run.claim
        if _keeps(run) == "never":
            return self._scratch.folder(experiment, claim) / _WORK
        # With the claim's mark: an earlier experiment of the same name may have left folders of the same attempts.
        return self._log_root / experiment / claim.trial / f"{claim.attempt}-{claim.mark}"

    def ending(self, run: AttemptHere, end: AttemptEnd) -> None:
        """Put the new files of an ended attempt into its working directory, or delete them."""
        working_dir = self.working_dir(run)
        if working_dir is not None and (place := _settle_or_discard(working_dir, _keeps(run), end)) is not None:
            self._stuck.add(place)

    def close(self) -> None:
        """Delete the places that no attempt has used."""
        for places in _places_of(self._log_root, self._scratch.name):
            unknown = {*places.iterdir()} - self._stuck
            if unknown - {places / KEPT_LINKS}:
                # An attempt whose process can't be killed has its place still.
                unknown -= {Path(os.readlink(link)).parent for link in _links_to(places)}
            for place in unknown:
                discard(place)
            with contextlib.suppress(OSError):
                places.rmdir()
                places.parent.rmdir()


def settle_behind(log_root: Path, scratch: Scratch) -> None:
    """Keep the new files of a killed worker's attempts, before *scratch* deletes its folder."""

    def settle_all(worker: str) -> None:
        for places in _places_of(log_root.absolute(), worker):
            for link in _links_to(places):
                # Attempts that were lost with their worker count as failed.
                _settle_or_discard(link, "failed", AttemptEnd.LOST)
            discard(places)

    scratch.on_discard.append(settle_all)


def _places_of(log_root: Path, worker: str) -> list[Path]:
    return [*log_root.glob(f"*/{WORK_FOLDER}/{glob.escape(worker)}")]


def _links_to(places: Path) -> Iterator[Path]:
    """Yield the working directories of attempts whose working folders are in *places*."""
    for link in places.parent.parent.glob("*/*"):
        if link.is_symlink() and places in Path(os.readlink(link)).parents:
            yield link


def _keeps(run: AttemptHere) -> str:
    return str(run.definition.get("keep_working_dir", "always"))


def _settle_or_discard(working_dir: Path, keep: str, end: AttemptEnd) -> Path | None:
    """Move an attempt's new files to its working directory, or delete them, as *keep* says.

    Return the place if they can't be moved, else None.

    An empty working directory is deleted.
    """
    if not working_dir.is_symlink():
        # Its process has not begun.
        return None
    working = Path(os.readlink(working_dir))
    if keep == "always" or (keep == "failed" and end in (AttemptEnd.FAILED, AttemptEnd.LOST)):
        settle(working.parent, working, working_dir)
    else:
        discard(working.parent)
    if working_dir.is_symlink():
        working_dir.unlink()
    return working.parent if working.parent.exists() else None


def for_worker(host: WorkerHost, settings: WorkerSettings) -> tuple[WorkerService]:
    """Return the service that gives attempts their own working folders."""
    return (Folders(settings.log_root, host.scratch),)
