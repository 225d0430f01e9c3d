"""Change tags and notes of an experiment that exists only in a folder, without a server."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from mqtune.core.codec import Body
from mqtune.core.errors import NameTaken
from mqtune.core.events import DriverStarted, Requested
from mqtune.core.experiment import LABEL
from mqtune.core.machine import ARCHIVED, SERVER_FOLDER, SIMULATION, describe_process
from mqtune.core.trial import TrialId
from mqtune.journal.base import Entry
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile
from mqtune.results.experiments import first_events
from mqtune.results.results import Results


def is_in_folder_alone(folder: Path) -> bool:
    """Return whether no server has this experiment: it is archived, imported or simulated."""
    drivers = (
        event.driver for event in first_events(JournalFile(folder / JOURNAL_FILE)) if isinstance(event, DriverStarted)
    )
    if (folder / SERVER_FOLDER).is_dir():
        return False
    return (folder / ARCHIVED).is_file() or all(driver == SIMULATION for driver in drivers)


def label(folder: Path, trial: str, given: Body) -> Results:
    """Change the labels of an experiment in a folder, or of one trial. Return the results.

    The change is appended to the folder's journal, so it stays if the experiment is resumed.

    Args:
        trial: the trial's id, or empty for the experiment.
        given: the arguments of ``TrialHandle.label``.

    Raises:
        ConfigurationError: the labels are invalid, or too many.
        NameTaken: another process writes to the folder.
        OSError: the folder can't be written.
    """
    experiment = Results.load(folder).experiment
    (experiment.trials[TrialId(trial)] if trial else experiment).labels.after(given)
    copy, last = JournalFile(folder / JOURNAL_FILE), ""
    for entry in copy.go_on():
        last = entry.id
    if not last:
        raise NameTaken(
            f"another process writes to the folder of experiment {experiment.name!r}; "
            "try again when its driver has ended"
        )
    request = Requested(
        id=secrets.token_hex(16), action=LABEL, trial=trial, arguments=given, by=describe_process(), at=time.time()
    )
    try:
        copy.append([Entry(_next_id(last), request.encode())])
    finally:
        copy.close()
    results = Results.load(folder)
    results.save()
    return results


def _next_id(last: str) -> str:
    """Return an id for an entry after the entry *last*, as Redis would give it."""
    before_ms, _, number = last.partition("-")
    now_ms = int(time.time() * 1000)
    return f"{now_ms}-0" if now_ms > int(before_ms) else f"{before_ms}-{int(number) + 1}"
