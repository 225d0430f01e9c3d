"""Experiments that were saved on this machine: finding them, and reading what happened."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, cast

from mqtune.core.errors import ConfigurationError
from mqtune.core.events import Event, ExperimentCreated, events_in_order
from mqtune.core.experiment import Experiment
from mqtune.core.machine import SERVER_FOLDER, mqtune_home
from mqtune.core.trial import Report
from mqtune.journal.base import Entry
from mqtune.journal.copy import JOURNAL_FILE

__all__ = [
    "Readable",
    "begun",
    "duration",
    "empty_experiment",
    "find_experiment",
    "saved_events",
    "saved_experiments",
    "standing",
    "standing_of",
]

#: How many names an error suggests: as many as are read.
_SUGGESTIONS: Final = 5
_MINUTE_S: Final = 60


def saved_experiments() -> list[Path]:
    """Return the folders of the experiments in mqtune's home, that with the newest event first."""
    changed = {path.parent: path.stat().st_mtime for path in mqtune_home().glob(f"*/{JOURNAL_FILE}")}
    return sorted(changed, key=lambda folder: (changed[folder], folder.name), reverse=True)


def find_experiment(experiment: str | Path) -> Path:
    """Return the folder of an experiment, given its name or the folder itself.

    Raises:
        ConfigurationError: there is none; the message has near names.
    """
    for folder in (mqtune_home() / experiment, Path(experiment)):
        if (folder / JOURNAL_FILE).is_file():
            return folder
    near = _near(str(experiment), [folder.name for folder in saved_experiments()])
    hint = f"do you mean {' or '.join(near)}?" if near else "mqtune list shows those there are"
    raise ConfigurationError(f"there is no experiment {str(experiment)!r} in {mqtune_home()}; {hint}")


def _near(name: str, names: list[str]) -> list[str]:
    """Return the names that *name* may mean; one that was not given by a person ends with a time, which nobody types."""
    starts = {known: known[: len(name)] for known in names}
    close = difflib.get_close_matches(name, set(starts.values()))
    return [known for known in names if starts[known] in close][:_SUGGESTIONS]


class Readable(Protocol):
    """What yields the same entries each time that it is read, and perhaps more behind them."""

    def read(self) -> Iterator[Entry]:
        """Yield the entries."""


def saved_events(copy: Readable) -> Iterator[Event | Report]:
    """Yield a saved journal's events, and single reports, in the order in which the driver took them.

    Memory stays flat in the number of reports. A driver may go on writing meanwhile; what it adds is left out.

    Raises:
        FileNotFoundError: there is no such file.
        MessageVersionError: a later version of mqtune wrote it.
        CopyIncomplete: it lacks what could not be written to it.
    """
    # It is iterated twice, which is all that is asked of a list here.
    return events_in_order(cast("list[tuple[str, bytes]]", _Entries(copy)))


def begun(events: Iterator[Event | Report], folder: Path) -> ExperimentCreated:
    """Return the event that a saved journal begins with.

    Raises:
        ConfigurationError: there is none yet.
    """
    created = next(events, None)
    if not isinstance(created, ExperimentCreated):
        raise ConfigurationError(
            f"{folder / JOURNAL_FILE} holds no experiment yet; look again when its driver has begun"
        )
    return created


def empty_experiment(created: ExperimentCreated) -> Experiment:
    """Return the fold that the rest of a journal goes into."""
    settings = {name: created.definition[name] for name in ("metric", "mode", "max_failures")}
    accepts = created.definition.get("accept_no_report", False)
    experiment = Experiment(created.name, **settings, accept_no_report=accepts)
    experiment.apply(created)
    return experiment


class _Entries:
    """The entries that a file has at the first iteration; each later one yields the same."""

    def __init__(self, copy: Readable) -> None:
        self._copy = copy
        self._count: int | None = None

    def __iter__(self) -> Iterator[Entry]:
        if self._count is not None:
            yield from islice(self._copy.read(), self._count)
            return
        count = 0
        for entry in self._copy.read():
            count += 1
            yield entry
        self._count = count


def standing(folder: Path, outcome: str) -> str:
    """Return how a saved experiment stands, in a few words: its outcome, or what can be told from here without one."""
    age_s = time.time() - (folder / JOURNAL_FILE).stat().st_mtime
    return standing_of(outcome, is_driven=(folder / SERVER_FOLDER / "url").exists(), age_s=age_s)


def standing_of(outcome: str, *, is_driven: bool, age_s: float) -> str:
    """Return the same of one of which is known whether somebody drives it, and how old its newest event is."""
    if outcome or is_driven:
        return outcome or "running"
    return f"not ended, last event {duration(max(0.0, age_s))} ago"


def duration(seconds: float) -> str:
    """Return a duration as people say it."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    minutes, rest_s = divmod(round(seconds), _MINUTE_S)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest_s:02d} s"
