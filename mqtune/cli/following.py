"""Follow an experiment by its journal, from any machine."""

from __future__ import annotations

import contextlib
import time
from typing import Final

from mqtune.cli.describe import described_trial
from mqtune.cli.output import output, say
from mqtune.cli.place import Place, live_broker
from mqtune.core.events import Event, ExperimentCreated, Reports
from mqtune.core.timing import Timing
from mqtune.core.trial import Report, Trial, TrialId, TrialStatus
from mqtune.results.display import REDRAW_S, ProgressDisplay
from mqtune.results.experiments import duration
from mqtune.results.followed import Fold, Followed, source_of
from mqtune.results.results import json_text

_WAIT_S: Final = 1.0


def follow(place: Place, *, as_json: bool) -> None:
    """Show an experiment's live table, or print changed trials as JSON, until it has ended.

    Without a terminal, a line is printed every ten seconds in place of the table.

    Raises:
        BrokerUnavailable: the experiment's server does not answer, or has ended with its driver.
        CopyIncomplete: the copy on this machine lacks entries.
        ConfigurationError: the experiment has not begun.
    """
    source = source_of(place.name, place.folder, live_broker(place))
    with contextlib.closing(Followed(source, place.name, _Statuses)) as followed:
        _print_changes(followed) if as_json else _show(followed)


class _Statuses(Fold):
    """The state of an experiment, and the trials whose status has changed."""

    def __init__(self, created: ExperimentCreated) -> None:
        super().__init__(created)
        self._changed: dict[TrialId, Trial] = {}

    def take(self, event: Event | Report) -> None:
        id_ = TrialId("" if isinstance(event, Report | Reports) else getattr(event, "trial", ""))
        before = self._status(id_)
        super().take(event)
        if self._status(id_) is not before:
            self._changed[id_] = self.experiment.trials[id_]

    def _status(self, id_: TrialId) -> TrialStatus | None:
        trial = self.experiment.trials.get(id_)
        return None if trial is None else trial.status

    def changes(self) -> list[Trial]:
        """Return the trials whose status has changed since the last call."""
        changed, self._changed = self._changed, {}
        return [*changed.values()]


def _print_changes(followed: Followed[_Statuses]) -> None:
    is_new = True
    while is_new or not followed.has_ended:
        for trial in followed.fold.changes():
            say(json_text(described_trial(trial)))
        is_new = followed.fold_new(0 if followed.has_ended else _WAIT_S)


def _show(followed: Followed[_Statuses]) -> None:
    fold, changed_at = followed.fold, time.monotonic()
    # The first drawing includes all changes so far.
    fold.changes()
    times = iter([fold.experiment.created_at])
    display = ProgressDisplay(console=output(), clock=lambda: next(times, None) or fold.ended_at or time.time())
    display.on_start(fold.experiment)
    while not followed.has_ended:
        if followed.fold_new(REDRAW_S):
            changed_at = time.monotonic()
            _draw(fold.changes(), display)
        quiet_s = time.monotonic() - changed_at
        display.on_step(f"no news from the experiment for {duration(quiet_s)}" if quiet_s > Timing().lock_s else "")
    display.on_end()


def _draw(changed: list[Trial], display: ProgressDisplay) -> None:
    for trial in changed:
        if trial.status.is_terminal:
            display.on_trial_end(trial)
        else:
            display.on_queue(trial)
