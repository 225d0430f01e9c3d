"""Parts of pictures: panels with axes, and series of points, lines and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from mqtune.core.text import printable

Marker = Literal[
    "", "circle", "x", "triangle-up", "square-open", "diamond", "diamond-open", "star", "best", "caret-up", "caret-down"
]  # fmt: skip

#: The live page's colours in light mode. Any two states differ with colour blindness, and have a contrast of 3 to white.
TEXT, SOFT, GRID, TINT, SURFACE = "#1a1f26", "#57606d", "#e1e5ea", "#e8f0fc", "#ffffff"
COMPLETED, RUNNING, STOPPED, PAUSED = "#2367c6", "#08775f", "#7f8895", "#9c4a8c"
WARN, FAILED = "#8f5a00", "#c42b3a"
#: The same colours by the names of the page's tokens.
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

#: Sizes in pixels, alone and as one of several, and the most per row.
PANEL: Final = (820, 460)
SMALL_PANEL: Final = (400, 300)
ROW_PANELS: Final = 3
_FEW_WHOLE: Final = 10
#: In characters.
_LABEL_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis, with its label and unit. *ticks* are named places in place of numbers."""

    label: str
    is_log: bool = False
    ticks: Sequence[tuple[float, str]] = ()
    #: The default is the data's range and a margin.
    ends: tuple[float, float] | None = None
    #: Whether a line crosses the panel at each tick. Vertical axes always have them.
    has_grid: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a series. Without a width it has no line, without a marker no points."""

    color: str
    width: float = 0
    marker: Marker = ""
    size: float = 6
    #: The width of a hollow mark's line.
    edge: float = 0
    is_dashed: bool = False
    opacity: float = 1.0
    #: Whether it has a bar from 0 to each x, at y.
    is_bar: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind. Series with the same name share one legend entry.

    Unnamed series are not in the legend. A NaN breaks a line. ``labels`` name each point, for instance by its trial.
    ``count`` is the number of trials of this kind, of which some may not be drawn.
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

    *texts* are placed at their x and y, *band* is a tinted range of x, *key* is the parameter or metric of the panel, and *note* a remark on it.
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
    """A time of the scheduler for comparisons, and the number of trials that reached it.

    Infinity stands for each trial's best value.
    """

    time: float
    count: int


@dataclass(frozen=True, slots=True)
class Levels:
    """All levels of a metric, their unit, such as "epoch", and the level of this picture."""

    unit: str
    every: Sequence[Level]
    shown: Level


@dataclass(frozen=True, slots=True)
class BestShare:
    """A parameter's share of the differences between trials. It is None while it is unknown.

    *best* is the range of the best fifth of the trials in words, and *is_at_edge* whether that touches an end of the
    parameter's range.
    """

    name: str
    share: float | None
    best: str
    is_at_edge: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis of parallel coordinates. Its heights, 0 to 1, are a parameter's range or names."""

    name: str
    low: float
    high: float
    is_log: bool
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Sheet:
    """The panels of a picture, and their layout."""

    title: str
    #: Its basis, and the left out parts.
    note: str
    panels: Sequence[Panel]
    #: In pixels, for many rows.
    height: int | None = None
    scales: Sequence[Scale] = ()
    levels: Levels | None = None
    shares: Sequence[BestShare] = ()
    #: The parts of the note that a legend with counts lacks.
    remarks: Sequence[str] = ()

    @property
    def columns(self) -> int:
        return min(len(self.panels), ROW_PANELS)

    @property
    def size(self) -> tuple[int, int]:
        """Its width and height in pixels, without title and legend."""
        width, height = PANEL if len(self.panels) == 1 else SMALL_PANEL
        rows = math.ceil(len(self.panels) / self.columns)
        return max(PANEL[0], width * self.columns), (self.height or height) * rows


def step_of(values: Sequence[float]) -> int | None:
    """Return 1 if ticks need it: all values are whole, and few whole numbers span them."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or max(finite) - min(finite) > _FEW_WHOLE:
        return None
    return 1 if all(value == int(value) for value in finite) else None


def label(text: str) -> str:
    """Return a user's text as a label: on one line, and cut if it is long."""
    line = printable(text).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= _LABEL_CHARS else f"{line[: _LABEL_CHARS - 1]}…"
