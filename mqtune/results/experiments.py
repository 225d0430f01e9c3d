"""Find the folders of experiments on this machine, and read their journals."""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from mqtune.core.entries import events_in_order
from mqtune.core.errors import ConfigurationError, ImpossibleEvent, MessageVersionError, MqtuneError
from mqtune.core.events import Event, ExperimentCreated, Reports, decode_event
from mqtune.core.experiment import LOST_BUDGET, Experiment
from mqtune.core.keys import ExperimentKeys
from mqtune.core.machine import mqtune_home
from mqtune.core.objective import metric_of
from mqtune.core.text import names_in_words
from mqtune.core.trial import CheckpointId, Metrics, Report, TrialId, TrialStatus
from mqtune.journal.base import Entry
from mqtune.journal.files.copy import JOURNAL_FILE, is_written

if TYPE_CHECKING:
    from mqtune.services.submissions.board import SubmissionState

_SUGGESTIONS: Final = 5
_MINUTE_S: Final = 60
_RUNNING: Final = "running"
_FINISHED: Final = "finished"
_FAILED: Final = "failed"


def saved_experiments() -> list[Path]:
    """Return the folders of the experiments in mqtune's home, the last changed first."""
    changed = {path.parent: path.stat().st_mtime for path in mqtune_home().glob(f"*/{JOURNAL_FILE}")}
    return sorted(changed, key=lambda folder: (changed[folder], folder.name), reverse=True)


def find_experiment(experiment: str | Path) -> Path:
    """Return the folder of an experiment, given its name or the folder.

    Raises:
        ConfigurationError: the experiment does not exist. The message suggests similar names.
    """
    for folder in (mqtune_home() / experiment, Path(experiment)):
        if (folder / JOURNAL_FILE).is_file():
            return folder
    similar = _similar_names(str(experiment), [folder.name for folder in saved_experiments()])
    hint = f"do you mean {' or '.join(similar)}?" if similar else "mqtune list shows all experiments"
    raise ConfigurationError(f"there is no experiment {str(experiment)!r} in {mqtune_home()}; {hint}")


def _similar_names(name: str, names: list[str]) -> list[str]:
    """Return up to five of *names* whose beginning is similar to *name*.

    Default names end in a number, which the user may have left out.
    """
    starts = {known: known[: len(name)] for known in names}
    close = difflib.get_close_matches(name, set(starts.values()))
    return [known for known in names if starts[known] in close][:_SUGGESTIONS]


class RecordedReport(NamedTuple):
    """A report in the journal.

    It is *late* if it came after the decision to stop or pause its attempt. The scheduler does not see late reports.
    """

    trial: TrialId
    attempt: int
    sequence: int
    timestamp: float
    metrics: Metrics
    checkpoint: CheckpointId
    late: bool


class Readable(Protocol):
    """A journal, or a copy of one, whose entries can be read repeatedly."""

    def read(self) -> Iterator[Entry]:
        """Yield all entries so far, in order."""


def saved_events(copy: Readable) -> Iterator[Event | Report]:
    """Yield a journal's events and reports in the order in which the driver processed them.

    Memory use does not grow with the number of reports. Entries that a driver appends meanwhile are left out.

    Raises:
        FileNotFoundError: the journal's copy does not exist.
        MessageVersionError: a later version of mqtune wrote it.
        CopyIncomplete: some entries could not be written to it.
    """
    # events_in_order iterates over it twice, and uses nothing else of a list.
    return events_in_order(cast("list[tuple[str, bytes]]", Snapshot(copy)))


def with_entry(error: ImpossibleEvent, experiment: str, entries: Iterable[tuple[str, bytes]]) -> ImpossibleEvent:
    """Return an event's error with the id of its journal entry, and the remedy, in the text.

    *entries* are those of the journal. If none of them has the event, the error is returned as it is.
    """
    named = ""
    # An error while reading the journal again must not hide the first error.
    with contextlib.suppress(MqtuneError, OSError):
        for id_, data in entries:
            event = decode_event(data, id_)
            if event == error.event or (isinstance(event, Reports) and error.event in [*event]):
                # Of equal events the first could be applied, so the last one is named.
                named = id_
    if not named:
        return error
    key = ExperimentKeys(experiment).journal
    return ImpossibleEvent(
        f"{error}. It is entry {named} of the journal. Any account that may append to the journal can have written it. "
        f"Delete the entry (XDEL {key!r} {named}, with an account that may do so), delete journal.msgpack in the "
        f"experiment's folder, and resume the experiment",
        error.event,
    )


def first_events(copy: Readable) -> Iterator[Event]:
    """Yield a journal's events in the order of its entries, which are read one by one.

    Raises:
        as ``saved_events``.
    """
    for entry in copy.read():
        if (event := decode_event(entry.data, entry.id)) is not None:
            yield event


def created_event(events: Iterator[Event | Report], folder: Path) -> ExperimentCreated:
    """Return the first of a journal's events. *folder* is named in the error.

    Raises:
        ConfigurationError: the journal is still empty.
    """
    created = next(events, None)
    if not isinstance(created, ExperimentCreated):
        raise ConfigurationError(
            f"{folder / JOURNAL_FILE} holds no experiment yet; try again when its driver has started, or free space if "
            "the disk is full"
        )
    return created


def empty_experiment(created: ExperimentCreated) -> Experiment:
    """Return an experiment's state after its first event, to apply the other events to.

    Raises:
        MessageVersionError: the experiment's definition can't be read.
    """
    try:
        settings = {name: created.definition[name] for name in ("mode", "max_failures")}
        # Fails here if the scheduler is missing, which budgets and pictures need.
        created.definition["scheduler"].get("time_attr")
        later = {"max_lost": LOST_BUDGET, "accept_no_report": False}
        settings |= {name: created.definition.get(name, default) for name, default in later.items()}
        experiment = Experiment(created.name, metric=metric_of(created.definition), **settings)
    except (LookupError, TypeError, AttributeError) as error:
        raise MessageVersionError(
            f"experiment {created.name!r} has a definition that can't be read: {type(error).__name__}: {error}"
        ) from None
    experiment.apply(created)
    return experiment


class Snapshot:
    """The first entries of a journal, or of a copy of one, which may grow meanwhile.

    Attributes:
        count: the number of entries. If it is None, the first read yields all and sets it, so later reads yield the
            same entries.
    """

    def __init__(self, copy: Readable, count: int | None = None) -> None:
        self._copy = copy
        self.count = count

    def read(self) -> Iterator[Entry]:
        if self.count is not None:
            yield from islice(self._copy.read(), self.count)
            return
        count = 0
        for entry in self._copy.read():
            count += 1
            yield entry
        self.count = count

    __iter__ = read


def state_of_folder(folder: Path, outcome: str) -> str:
    """Return the state of an experiment on this machine, such as "finished" or "running".

    *outcome* is its outcome, or empty if it has not ended.
    """
    copy = folder / JOURNAL_FILE
    return state_in_words(outcome, is_driven=is_written(copy), age_s=time.time() - copy.stat().st_mtime)


def state_in_words(outcome: str, *, is_driven: bool, age_s: float, script: SubmissionState | None = None) -> str:
    """Return the state of an experiment in a few words.

    Args:
        outcome: its outcome, or empty if it has not ended.
        is_driven: whether it has a driver.
        age_s: seconds since its newest event.
        script: its submitted script, if that has not ended.
    """
    if outcome or is_driven:
        return outcome or _RUNNING
    return f"driver away for {duration(max(0.0, age_s))}" if script is None else script_in_words(script)


def script_in_words(state: SubmissionState) -> str:
    """Return the state of a submitted script in words, such as "its script has ended"."""
    refused = f"; {names_in_words(state.refused_by)} may not run it: {state.refusal}" if state.refused_by else ""
    if state.state == "waiting":
        return f"its script waits for a driver slot{refused}"
    if not state.has_ended:
        if not state.is_kept:
            return f"its script ran on {state.worker}, which was lost, and waits for a driver slot{refused}"
        again = f", its run {state.run}" if state.run > 1 else ""
        return f"its script has run on {state.worker} for {duration(max(0.0, time.time() - state.began))}{again}"
    if state.how == "done":
        return "its script has ended"
    if state.how == "stopped":
        return f"its script was stopped{f': {state.reason}' if state.reason else ''}"
    last = state.output.strip().rpartition("\n")[2]
    return f"its script has failed: {state.reason}{f': {last}' if last else ''}"


def with_failures(state: str, counts: Mapping[str, int]) -> str:
    """Return *state*, or "failed" instead of "finished" if every trial failed.

    *state* is a result of ``state_in_words``, and *counts* has the number of trials by status.
    """
    is_hopeless = 0 < sum(counts.values()) == counts.get(TrialStatus.FAILED.value)
    return _FAILED if state == _FINISHED and is_hopeless else state


def with_waiting(state: str, counts: Mapping[str, int]) -> str:
    """Return *state*, "failed", or "waiting for a slot" if trials are queued and none runs.

    It is "failed" as in ``with_failures``, which has the same arguments.
    """
    state = with_failures(state, counts)
    waits = counts.get(TrialStatus.QUEUED.value) and not counts.get(TrialStatus.RUNNING.value)
    return "waiting for a slot" if state == _RUNNING and waits else state


def duration(seconds: float) -> str:
    """Return a duration for people, such as ``3 min 05 s``."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    minutes, rest_s = divmod(round(seconds), _MINUTE_S)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest_s:02d} s"
