"""Follows an experiment from its journal: the live table, in any process on any machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from mqtune.cli.describe import described_trial
from mqtune.cli.output import output, say
from mqtune.cli.place import Place, live_broker
from mqtune.core.errors import ConfigurationError, InvalidTransition
from mqtune.core.events import DriverStarted, ExperimentCreated, ExperimentEnded, Reports, TrialStaged, decode_event
from mqtune.core.experiment import Experiment
from mqtune.core.trial import Trial, TrialId, TrialStatus
from mqtune.journal.base import Entry
from mqtune.journal.copy import JOURNAL_FILE, JournalTail
from mqtune.journal.lock import LOCK_S
from mqtune.results.display import REDRAW_S, ProgressDisplay
from mqtune.results.experiments import duration, empty_experiment
from mqtune.results.results import json_text

#: The pause between two looks at a file, which can't be waited for.
_LOOK_S: Final = 1.0
_Read = Callable[[float], list[Entry]]


def follow(place: Place, *, as_json: bool) -> None:
    """Show the live table of an experiment until it has ended, or print each trial whose status changes as JSON.

    Where there is no terminal, the table is a line every ten seconds.

    Raises:
        BrokerUnavailable: its server does not answer, or has ended with its driver.
        ConfigurationError: it has not begun yet.
    """
    with _reader(place) as read:
        followed = _Followed(read, place.name)
        followed.print_changes() if as_json else followed.show()


@contextlib.contextmanager
def _reader(place: Place) -> Iterator[_Read]:
    """Yield what returns the next entries of a journal, after some seconds at most."""
    url = live_broker(place)
    if url is None:
        yield _FileTail((place.folder or Path()) / JOURNAL_FILE).read
        return
    from mqtune.journal.follow import Follower  # noqa: PLC0415 - only this needs redis

    with contextlib.closing(Follower(url, place.name)) as follower:
        yield follower.read


class _FileTail:
    """The entries of a file that another process writes."""

    def __init__(self, path: Path) -> None:
        self._copy = JournalTail(path)

    def read(self, timeout_s: float) -> list[Entry]:
        """Return the entries that have come; wait for some time if there are none."""
        found = list(self._copy.read())
        if not found and timeout_s:
            # Nothing says that a file has grown.
            time.sleep(_LOOK_S)
        return found


class _Followed:
    """An experiment as far as its journal has been read."""

    def __init__(self, read: _Read, name: str) -> None:
        self._read = read
        self.has_ended = False
        self._ended_at = 0.0
        first = read(0)
        created = decode_event(first[0].data) if first else None
        if not isinstance(created, ExperimentCreated):
            raise ConfigurationError(f"experiment {name!r} has not begun yet; look again when its driver has begun")
        self._experiment: Experiment = empty_experiment(created)
        self._entries = first[1:]
        self._heard_at = time.monotonic()

    def print_changes(self) -> None:
        """Print each trial whose status changes, until the experiment has ended."""
        while self._more(0 if self.has_ended else _LOOK_S) or not self.has_ended:
            for trial in self._changed():
                say(json_text(described_trial(trial)))

    def show(self) -> None:
        """Draw the table until the experiment has ended."""
        while self._more(0):
            # What is over already is not drawn row by row.
            self._changed()
        times = iter([self._experiment.created_at])
        display = ProgressDisplay(console=output(), clock=lambda: next(times, None) or self._ended_at or time.time())
        display.on_start(self._experiment)
        while not self.has_ended:
            if self._more(REDRAW_S):
                self._draw_changes(display)
            quiet_s = time.monotonic() - self._heard_at
            display.on_step(f"nothing has happened for {duration(quiet_s)}" if quiet_s > LOCK_S else "")
        display.on_end()

    def _draw_changes(self, display: ProgressDisplay) -> None:
        for trial in self._changed():
            if trial.status.is_terminal:
                display.on_trial_end(trial)
            else:
                display.on_stage(trial)

    def _more(self, timeout_s: float) -> bool:
        """Read on, for some seconds at most, and return whether there is something to take in."""
        if not self._entries:
            self._entries = self._read(timeout_s)
        return bool(self._entries)

    def _changed(self) -> list[Trial]:
        """Take in what was read, and return the trials whose status changed, each once."""
        entries, self._entries = self._entries, []
        self._heard_at = time.monotonic()
        changed = [trial for entry in entries if (trial := self._take(entry)) is not None]
        return [*{trial.id: trial for trial in changed}.values()]

    def _take(self, entry: Entry) -> Trial | None:
        event = decode_event(entry.data, entry.id)
        if event is None:
            return None
        self.has_ended = isinstance(event, ExperimentEnded) or (
            self.has_ended and not isinstance(event, TrialStaged | DriverStarted)
        )
        if isinstance(event, ExperimentEnded):
            self._ended_at = event.at
        elif not self.has_ended:
            self._ended_at = 0.0
        id_ = "" if isinstance(event, Reports) else getattr(event, "trial", "")
        before = self._status(id_)
        # A driver may have seen things in another order, by which results are read.
        with contextlib.suppress(InvalidTransition):
            self._experiment.apply(event)
        return self._experiment.trials[TrialId(id_)] if self._status(id_) is not before else None

    def _status(self, id_: str) -> TrialStatus | None:
        trial = self._experiment.trials.get(TrialId(id_))
        return None if trial is None else trial.status
