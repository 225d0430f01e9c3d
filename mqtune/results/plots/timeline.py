"""The parts of a timeline: rows for slots, and bars for attempts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mqtune.core.trial import Attempt, AttemptEnd, TrialId
from mqtune.results.plots.data import MOST_LINES, MOST_POINTS, joined, spread
from mqtune.results.plots.panels import COMPLETED, FAILED, PAUSED, RUNNING, SOFT, STOPPED, WARN, Look, Series

#: Colours by an attempt's end. None stands for running attempts.
_ENDS: Final[Mapping[AttemptEnd | None, str]] = {
    AttemptEnd.COMPLETED: COMPLETED,
    AttemptEnd.STOPPED: STOPPED,
    AttemptEnd.PAUSED: PAUSED,
    AttemptEnd.FAILED: FAILED,
    AttemptEnd.LOST: WARN,
    AttemptEnd.HANDED_BACK: SOFT,
    None: RUNNING,
}
#: The gap after each bar, as a share of the whole time.
_GAP: Final = 1 / 800
#: Seconds by which attempts on one slot may overlap: the next may begin before the last one's end is recorded.
_HANDOVER_S: Final = 0.1
_NUMBERS: Final = re.compile(r"([0-9]{1,18})")


class TimelineBar(NamedTuple):
    """A begun attempt, with times in seconds since the epoch. A running one ends at infinity."""

    trial: TrialId
    attempt: Attempt
    begin: float
    end: float


class TimelineRow(NamedTuple):
    """A row of a worker, numbered from 0. Attempts at the same time have different rows."""

    worker: str
    number: int


def slots(runs: Iterable[TimelineBar]) -> list[TimelineRow]:
    """Return each attempt's row: the first free one of its worker. *runs* are sorted by begin."""
    free: dict[str, list[float]] = {}
    rows = []
    for run in runs:
        ends = free.setdefault(run.attempt.worker, [])
        number = next((number for number, end in enumerate(ends) if end <= run.begin + _HANDOVER_S), len(ends))
        ends[number : number + 1] = [run.end]
        rows.append(TimelineRow(run.attempt.worker, number))
    return rows


def in_numbers(slot: TimelineRow) -> list[object]:
    """Return a sort key of rows, by which worker w9 comes before w10."""
    parts = enumerate(_NUMBERS.split(slot.worker))
    return [*((int(part) if place % 2 else part) for place, part in parts), slot.number]


def slot_names(rows: Mapping[TimelineRow, float]) -> list[str]:
    """Return the names of rows: the worker, with a number if the worker has several rows."""
    several = {slot.worker for slot in rows if slot.number}
    return [f"{slot.worker} · {slot.number + 1}" if slot.worker in several else slot.worker for slot in rows]


class Bar(NamedTuple):
    """A drawn attempt. Its times are in the picture's unit, and *ended* says how it ended."""

    trial: TrialId
    ended: AttemptEnd | None
    row: float
    begin: float
    end: float


def bars(drawn: Sequence[Bar]) -> Iterator[Series]:
    """Yield a series of bars for each kind of end. Failures and losses, often short, get marks."""
    span = max(bar.end for bar in drawn) - min(bar.begin for bar in drawn)
    # If there are many attempts, neighbours that are less than a hair apart become one bar.
    hair = span * 3 * len({bar.row for bar in drawn}) * len(_ENDS) / MOST_POINTS if 3 * len(drawn) > MOST_POINTS else 0
    for end, color in _ENDS.items():
        ended = [bar for bar in drawn if bar.ended is end]
        if ended:
            lines = list(_merged(ended, hair, gap=span * _GAP))
            yield joined(
                f"attempt {'running' if end is None else end.value.replace('_', ' ')}", Look(color, width=11), lines
            )
        if ended and end in (AttemptEnd.FAILED, AttemptEnd.LOST):
            marked = [ended[index] for index in spread(len(ended), MOST_LINES)]
            look, ids = Look(color, marker="triangle-up", size=8), [bar.trial for bar in marked]
            yield Series("", [bar.end for bar in marked], [bar.row for bar in marked], look, ids)


def _merged(bars: Sequence[Bar], hair: float, gap: float) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield lines with a *gap* after each. Bars of a row less than *hair* apart share a line."""
    groups: list[list[Bar]] = []
    last: dict[float, list[Bar]] = {}
    for bar in bars:
        if hair and bar.row in last and bar.begin - last[bar.row][-1].end < hair:
            last[bar.row].append(bar)
        else:
            last[bar.row] = [bar]
            groups.append(last[bar.row])
    for group in groups:
        begin, end = group[0].begin, group[-1].end
        name = group[0].trial if len(group) == 1 else f"{len(group)} attempts"
        # A shorter line would not be visible.
        yield name, [begin, max(begin + gap, end - gap)], [group[0].row] * 2
