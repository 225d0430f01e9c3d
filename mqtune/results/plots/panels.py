"""What pictures are made of: panels with axes, and series of points, lines and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from mqtune.core.text import printable

Marker = Literal["", "circle", "x", "triangle-down", "square", "diamond", "star"]

#: The colours of Okabe and Ito (2008), which people who see fewer colours can tell apart, without the palest.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"
#: Of text, and of the lines behind what is drawn.
TEXT, GRID = "#222222", "#E5E5E5"

#: The size of a panel in pixels, alone and as one of several, and the most of them in a row.
PANEL: Final = (820, 460)
SMALL_PANEL: Final = (400, 300)
ROW_PANELS: Final = 3
#: Up to so many whole numbers each has its tick.
_FEW_WHOLE: Final = 10
#: The longest label that is drawn, in characters.
_LABEL_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: what it shows, with its unit; *ticks* name places on it in place of numbers."""

    label: str
    is_log: bool = False
    ticks: Sequence[tuple[float, str]] = ()
    #: Its ends; by default those of the data, and some room.
    ends: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """How a series looks; without a width it has no line, and without a marker no points."""

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
    """Points of one kind: series of one name are one entry of the legend, which one without a name has none in.

    A NaN parts a line. ``labels`` say what each point is, such as its trial.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    look: Look
    labels: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """What is drawn between two axes; *texts* stand at their x and y."""

    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    texts: Sequence[tuple[float, float, str]] = ()


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis of parallel coordinates, whose heights from 0 to 1 stand for a parameter's range, or for its names."""

    name: str
    low: float
    high: float
    is_log: bool
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class Sheet:
    """The panels of a picture, and where they stand."""

    title: str
    #: What it rests on, and what was left out.
    note: str
    panels: Sequence[Panel]
    #: The height of a panel in pixels, where it has many rows.
    height: int | None = None
    #: The most panels beside each other.
    most_columns: int = ROW_PANELS
    #: Of parallel coordinates, those of its axes.
    scales: Sequence[Scale] = ()

    @property
    def columns(self) -> int:
        """How many panels stand beside each other."""
        return min(len(self.panels), self.most_columns)

    @property
    def size(self) -> tuple[int, int]:
        """Its width and height in pixels, without title and legend."""
        width, height = PANEL if len(self.panels) == 1 else SMALL_PANEL
        rows = math.ceil(len(self.panels) / self.columns)
        return max(PANEL[0], width * self.columns), (self.height or height) * rows


def step_of(values: Sequence[float]) -> int | None:
    """Return 1 where ticks between these values would else stand at halves: all are whole, and few whole numbers span them."""
    there = [value for value in values if math.isfinite(value)]
    if not there or max(there) - min(there) > _FEW_WHOLE:
        return None
    return 1 if all(value == int(value) for value in there) else None


def label(text: str) -> str:
    """Return a text of others as a label: on one line, and a long one cut."""
    line = printable(text).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= _LABEL_CHARS else f"{line[: _LABEL_CHARS - 1]}…"
