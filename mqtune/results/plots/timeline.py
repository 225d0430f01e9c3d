"""Parts of a timeline: attempts on slots, and their bars."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from mqtune.core.trial import Attempt, AttemptEnd, TrialId
from mqtune.results.plots.data import MOST_LINES, MOST_POINTS, joined, spread
from mqtune.results.plots.panels import COMPLETED, FAILED, PAUSED, RUNNING, SOFT, STOPPED, WARN, Look, Series

#: None stands for running attempts.
_ENDS: Final[Mapping[AttemptEnd | None, str]] = {
    AttemptEnd.COMPLETED: COMPLETED,
    AttemptEnd.STOPPED: STOPPED,
    AttemptEnd.PAUSED: PAUSED,
    AttemptEnd.FAILED: FAILED,
    AttemptEnd.LOST: WARN,
    AttemptEnd.HANDED_BACK: SOFT,
    None: RUNNING,
}
#: As a share of the whole time.
_GAP: Final = 1 / 800


#: A slot may begin its next trial before the last end has arrived.
_HANDOVER_S: Final = 0.1


_NUMBERS: Final = re.compile(r"([0-9]{1,18})")


class TimelineBar(NamedTuple):
    """A begun attempt, with its begin and end in seconds since the epoch."""

    trial: TrialId
    attempt: Attempt
    begin: float
    end: float


class TimelineRow(NamedTuple):
    """One of a worker's rows, as many as it had attempts at the same time."""

    worker: str
    number: int


def slots(runs: Iterable[TimelineBar]) -> list[TimelineRow]:
    """Return the first free slot of its worker for each attempt, in the order of their begins."""
    free: dict[str, list[float]] = {}
    rows = []
    for run in runs:
        ends = free.setdefault(run.attempt.worker, [])
        number = next((number for number, end in enumerate(ends) if end <= run.begin + _HANDOVER_S), len(ends))
        ends[number : number + 1] = [run.end]
        rows.append(TimelineRow(run.attempt.worker, number))
    return rows


def in_numbers(slot: TimelineRow) -> list[object]:
    """Return a sort key of slots by which w9 comes before w10."""
    parts = enumerate(_NUMBERS.split(slot.worker))
    return [*((int(part) if place % 2 else part) for place, part in parts), slot.number]


def slot_names(rows: Mapping[TimelineRow, float]) -> list[str]:
    """Return the names of slots: their workers, with a number if a worker has several."""
    several = {slot.worker for slot in rows if slot.number}
    return [f"{slot.worker} · {slot.number + 1}" if slot.worker in several else slot.worker for slot in rows]


class Bar(NamedTuple):
    """An attempt of a timeline, with begin and end in the picture's unit, and its end's kind."""

    trial: TrialId
    ended: AttemptEnd | None
    row: float
    begin: float
    end: float


def bars(drawn: Sequence[Bar]) -> Iterator[Series]:
    """Yield attempts by their end, with marks at failures and losses, which may be very short."""
    span = max(bar.end for bar in drawn) - min(bar.begin for bar in drawn)
    # Of many attempts, neighbours less than a hair apart become one.
    hair = span * 3 * len({bar.row for bar in drawn}) * len(_ENDS) / MOST_POINTS if 3 * len(drawn) > MOST_POINTS else 0
    for end, color in _ENDS.items():
        those = [bar for bar in drawn if bar.ended is end]
        if those:
            lines = list(_merged(those, hair, gap=span * _GAP))
            yield joined(
                f"attempt {'running' if end is None else end.value.replace('_', ' ')}", Look(color, width=11), lines
            )
        if those and end in (AttemptEnd.FAILED, AttemptEnd.LOST):
            marked = [those[place] for place in spread(len(those), MOST_LINES)]
            look, ids = Look(color, marker="triangle-up", size=8), [bar.trial for bar in marked]
            yield Series("", [bar.end for bar in marked], [bar.row for bar in marked], look, ids)


def _merged(bars: Sequence[Bar], hair: float, gap: float) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield lines with a *gap* after each. Those less than *hair* apart in a row become one."""
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
        yield name, [begin, max(begin, end - gap)], [group[0].row] * 2
