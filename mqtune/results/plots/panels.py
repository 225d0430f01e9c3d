"""Parts of pictures: panels with axes, and series of points, lines and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from mqtune.core.text import printable

Marker = Literal["", "circle", "x", "triangle-down", "square", "diamond", "star"]

#: The colours of Okabe and Ito (2008), distinguishable with colour blindness, without the palest.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"
TEXT, GRID = "#222222", "#E5E5E5"

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


@dataclass(frozen=True, slots=True)
class Look:
    """The look of a series. Without a width it has no line, without a marker no points."""

    color: str
    width: float = 0
    marker: Marker = ""
    size: float = 6
    is_dashed: bool = False
    opacity: float = 1.0
    #: Whether it has a bar from 0 to each x, at y.
    is_bar: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one kind. Series with the same name share one legend entry.

    Unnamed series are not in the legend. A NaN breaks a line. ``labels`` name each point, for instance by its trial.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: Look
    labels: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """The content between two axes. *texts* are placed at their x and y."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    texts: Sequence[tuple[float, float, str]] = ()


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
    most_columns: int = ROW_PANELS
    scales: Sequence[Scale] = ()

    @property
    def columns(self) -> int:
        return min(len(self.panels), self.most_columns)

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
