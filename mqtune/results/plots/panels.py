"""The parts of pictures: panels with axes, and series of points, lines and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from mqtune.core.text import printable

Marker = Literal[
    "", "circle", "x", "triangle-up", "square-open", "diamond", "diamond-open", "star", "best", "caret-up", "caret-down"
]  # fmt: skip

#: The live page's colours in light mode. People with colour blindness can tell any two states apart, and each has a
#: contrast of 3 to white.
TEXT, SOFT, GRID, TINT, SURFACE = "#1a1f26", "#57606d", "#e1e5ea", "#e8f0fc", "#ffffff"
COMPLETED, RUNNING, STOPPED, PAUSED = "#2367c6", "#08775f", "#7f8895", "#9c4a8c"
WARN, FAILED = "#8f5a00", "#c42b3a"
#: The same colours by the names that they have in the live page's style sheet.
PALETTE: Final = {
    "text": TEXT,
    "soft": SOFT,
    "line": GRID,
    "accent-weak": TINT,
    "surface": SURFACE,
    "completed": COMPLETED,
    "running": RUNNING,
    "stopped": STOPPED,
    "paused": PAUSED,
    "warn": WARN,
    "failed": FAILED,
}

#: The size of a single panel and of one of several, in pixels, and the most panels in a row.
PANEL: Final = (820, 460)
SMALL_PANEL: Final = (400, 300)
ROW_PANELS: Final = 3
#: If whole numbers span at most this, each gets a tick.
_FEW_WHOLE: Final = 10
#: The length of a label, in characters.
_LABEL_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis, whose label includes the unit. *ticks* are named positions instead of numbers."""

    label: str
    is_log: bool = False
    ticks: Sequence[tuple[float, str]] = ()
    #: The positions of both ends. The default is the data's range and a margin.
    ends: tuple[float, float] | None = None
    #: Whether a line crosses the panel at each tick. Vertical axes always have them.
    has_grid: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a series. With a width of 0 it has no line, and without a marker no points."""

    color: str
    width: float = 0
    marker: Marker = ""
    size: float = 6
    #: The width of a hollow mark's line.
    edge: float = 0
    is_dashed: bool = False
    opacity: float = 1.0
    #: Whether each point is a horizontal bar at y, from 0 to x.
    is_bar: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind. Series with the same name share one legend entry.

    Unnamed series are not in the legend. NaN breaks a line. ``labels`` has a label for each point, such as its trial.
    ``count`` is the number of trials of this kind. Some of them may not be drawn.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: Look
    labels: Sequence[str] = ()
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """The content between two axes.

    Attributes:
        texts: x, y and a text each.
        band: a tinted range of x.
        key: the panel's parameter or metric.
        note: a remark, shown beside the title.
    """

    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    texts: Sequence[tuple[float, float, str]] = ()
    band: tuple[float, float] | None = None
    key: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """A time of the scheduler for comparing trials, and the number of trials that reached it.

    A time of infinity stands for each trial's best value.
    """

    time: float
    count: int


@dataclass(frozen=True, slots=True)
class Levels:
    """All levels at which a picture's trials can be compared, and the shown one.

    *unit* is the name of the scheduler's time, such as "epoch".
    """

    unit: str
    every: Sequence[Level]
    shown: Level


@dataclass(frozen=True, slots=True)
class BestShare:
    """A parameter's importance, and the values of the best trials.

    Attributes:
        share: the parameter's share of the variance between trials, or None if it was not computed.
        best: the range or categories of the best fifth of the trials in words, or empty for few trials.
        is_at_edge: whether that range touches an end of the parameter's range in the search space.
    """

    name: str
    share: float | None
    best: str
    is_at_edge: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis of parallel coordinates. Its heights from 0 to 1 stand for *low* to *high*."""

    name: str
    low: float
    high: float
    is_log: bool
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Sheet:
    """The panels of a picture, and their layout."""

    title: str
    #: The trials that the picture is based on, and the parts that it leaves out.
    note: str
    panels: Sequence[Panel]
    #: The height of a panel in pixels, if it depends on the number of rows.
    height: int | None = None
    scales: Sequence[Scale] = ()
    levels: Levels | None = None
    shares: Sequence[BestShare] = ()
    #: The parts of the note that a legend with counts does not say.
    remarks: Sequence[str] = ()

    @property
    def columns(self) -> int:
        return min(len(self.panels), ROW_PANELS)

    @property
    def size(self) -> tuple[int, int]:
        """The width and height in pixels, without title and legend."""
        width, height = PANEL if len(self.panels) == 1 else SMALL_PANEL
        rows = math.ceil(len(self.panels) / self.columns)
        return max(PANEL[0], width * self.columns), (self.height or height) * rows


def step_of(values: Sequence[float]) -> int | None:
    """Return 1 if all values are whole and span at most 10, as the step of ticks, else None."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or max(finite) - min(finite) > _FEW_WHOLE:
        return None
    return 1 if all(value == int(value) for value in finite) else None


def label(text: str) -> str:
    """Return a user's text as a label: on one line, and cut if it is too long."""
    line = printable(text).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= _LABEL_CHARS else f"{line[: _LABEL_CHARS - 1]}…"
