"""Pictures as data, which Matplotlib and Plotly draw alike: panels with axes, and series of points, lines and bars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from mqtune.core import checks
from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import replace_file
from mqtune.core.text import printable
from mqtune.results.frames import Library, Row, frame_of

Marker = Literal["", "circle", "x", "triangle-down", "square", "diamond", "star"]
DrawnBy = Literal["matplotlib", "plotly"]

#: The colours of Okabe and Ito (2008), which people who see fewer colours can tell apart, without the palest.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C"
#: Of text, and of the lines behind what is drawn.
TEXT, GRID = "#222222", "#E5E5E5"

#: The size of a panel in pixels, alone and as one of several, and the most of them in a row.
PANEL: Final = (820, 460)
SMALL_PANEL: Final = (400, 300)
ROW_PANELS: Final = 3
#: The longest label that is drawn, in characters.
_LABEL_CHARS: Final = 60

_INSTALL: Final = "pip install 'mqtune[plot]'"
_DRAWN_BY: Final[Mapping[str, DrawnBy]] = {
    ".png": "matplotlib",
    ".svg": "matplotlib",
    ".pdf": "matplotlib",
    ".html": "plotly",
}


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


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """A picture of an experiment, which a notebook draws as it is.

    Made once, and drawn by either library with the same data, colours and marks. It stays as it is while the experiment goes on.
    """

    title: str
    #: What it rests on, and what was left out.
    note: str
    panels: Sequence[Panel]
    #: The height of a panel in pixels, where it has many rows.
    height: int | None = None
    #: The most panels beside each other.
    most_columns: int = ROW_PANELS

    def __repr__(self) -> str:
        return f"<Picture {self.title!r}: {self.note}>"

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

    def dataframe(self, *, library: Library = "pandas") -> Any:
        """Return what is drawn as a data frame of pandas or polars: panel, series, x, y and label of each point.

        Raises:
            ConfigurationError: there is no such library.
            MqtuneError: it is not installed.
        """
        return frame_of(self.rows(), library)

    def rows(self) -> Iterator[Row]:
        """Yield what is drawn: panel, series, x, y and label of each point."""
        for panel in self.panels:
            for each in panel.series:
                labels = each.labels or [""] * len(each.x)
                for x, y, label in zip(each.x, each.y, labels, strict=True):
                    if not math.isnan(y):
                        yield {"panel": panel.title, "series": each.name, "x": x, "y": y, "label": label}

    def figure(self, library: DrawnBy = "matplotlib") -> Any:
        """Return a figure of Matplotlib or Plotly, to be changed or shown elsewhere.

        Raises:
            ConfigurationError: there is no such library, or it is not installed.
        """
        checks.one_of("figure", "library", library, ("matplotlib", "plotly"))
        require(library)
        return import_module(f"mqtune.results.plots.by_{library}").figure_of(self)

    def save(self, path: str | Path) -> None:
        """Write it to a file in one step: .png, .svg or .pdf by Matplotlib, .html by Plotly, which needs nothing from elsewhere.

        Raises:
            ConfigurationError: the name has another ending, or the library is not installed.
            OSError: the file can't be written.
        """
        library = drawn_by(path)
        require(library)
        content = import_module(f"mqtune.results.plots.by_{library}").content_of(self, Path(path).suffix[1:].lower())
        replace_file(Path(path), [content])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        """Return what notebooks show: interactive where they know Plotly's figures, and an image where not."""
        by_plotly = import_module("mqtune.results.plots.by_plotly")
        plotly = {**by_plotly.plain(self), "config": by_plotly.BUTTONS}
        bundle: dict[str, object] = {"text/plain": repr(self), "application/vnd.plotly.v1+json": plotly}
        if find_spec("matplotlib") is not None:
            bundle["image/png"] = import_module("mqtune.results.plots.by_matplotlib").content_of(self, "png")
        return bundle


def drawn_by(path: str | Path) -> DrawnBy:
    """Return the library that writes a picture of this name.

    Raises:
        ConfigurationError: none does.
    """
    found = _DRAWN_BY.get(Path(path).suffix.lower())
    if found is None:
        raise ConfigurationError(
            f"{str(path)!r} is not the name of a picture; give one that ends in {', '.join(_DRAWN_BY)}"
        )
    return found


def require(*libraries: DrawnBy) -> None:
    """Raise ConfigurationError if none of these libraries is installed."""
    if not any(find_spec(each) for each in libraries):
        raise ConfigurationError(f"plots need {' or '.join(libraries)}: {_INSTALL}")


def label(text: str) -> str:
    """Return a text of others as a label: on one line, and a long one cut."""
    line = printable(text).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= _LABEL_CHARS else f"{line[: _LABEL_CHARS - 1]}…"
