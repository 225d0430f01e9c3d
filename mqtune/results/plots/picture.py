"""Pictures as data that both Matplotlib and Plotly can draw."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from mqtune.core import checks
from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import replace_file
from mqtune.core.version import install_command
from mqtune.results.frames import Library, Row, frame_of
from mqtune.results.plots import by_plotly
from mqtune.results.plots.panels import Sheet

DrawnBy = Literal["matplotlib", "plotly"]

_DRAWN_BY: Final[Mapping[str, DrawnBy]] = {
    ".png": "matplotlib",
    ".svg": "matplotlib",
    ".pdf": "matplotlib",
    ".html": "plotly",
}


@dataclass(frozen=True, slots=True, repr=False)
class Picture(Sheet):
    """A picture of an experiment. Notebooks draw it.

    Matplotlib and Plotly draw the same data, colours and marks. The picture does not change while the experiment
    continues.
    """

    def __repr__(self) -> str:
        return f"<Picture {self.title!r}: {self.note}>"

    def dataframe(self, *, library: Library = "pandas") -> Any:
        """Return the points as a data frame of pandas or polars: panel, series, x, y and label.

        Raises:
            ConfigurationError: *library* is invalid.
            MqtuneError: the library is not installed.
        """
        return frame_of(self.rows(), library)

    def rows(self) -> Iterator[Row]:
        """Yield the points: panel, series, x, y and label."""
        for panel in self.panels:
            for series in panel.series:
                labels = series.labels or [""] * len(series.x)
                for x, y, label in zip(series.x, series.y, labels, strict=True):
                    if not math.isnan(y):
                        yield {"panel": panel.title, "series": series.name, "x": x, "y": y, "label": label}

    def figure(self, library: DrawnBy = "matplotlib") -> Any:
        """Return the picture as a figure of Matplotlib or Plotly, to change it or show it elsewhere.

        Raises:
            ConfigurationError: *library* is invalid, or not installed.
        """
        checks.one_of("figure", "library", library, ("matplotlib", "plotly"))
        require(library)
        return import_module(f"mqtune.results.plots.by_{library}").figure_of(self)

    def save(self, path: str | Path) -> None:
        """Write a file in one step: .png, .svg or .pdf by Matplotlib, .html by Plotly.

        An .html file is self-contained.

        Raises:
            ConfigurationError: the name has another ending, or the library is not installed.
            OSError: the file can't be written.
        """
        library = drawn_by(path)
        require(library)
        content = import_module(f"mqtune.results.plots.by_{library}").content_of(self, Path(path).suffix[1:].lower())
        replace_file(Path(path), [content])

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        """Return a notebook's output: an interactive figure, and an image if it can't show that."""
        plotly = {**by_plotly.plain(self), "config": by_plotly.BUTTONS}
        bundle: dict[str, object] = {"text/plain": repr(self), "application/vnd.plotly.v1+json": plotly}
        if find_spec("matplotlib") is not None:
            bundle["image/png"] = import_module("mqtune.results.plots.by_matplotlib").content_of(self, "png")
        return bundle


def drawn_by(path: str | Path) -> DrawnBy:
    """Return the library that writes a file with this name.

    Raises:
        ConfigurationError: the name has another ending.
    """
    library = _DRAWN_BY.get(Path(path).suffix.lower())
    if library is None:
        raise ConfigurationError(
            f"{str(path)!r} is not the name of a picture; give one that ends in {', '.join(_DRAWN_BY)}"
        )
    return library


def require(*libraries: DrawnBy) -> None:
    """Raise ConfigurationError if none of these libraries is installed."""
    if not any(find_spec(library) for library in libraries):
        raise ConfigurationError(f"plots need {' or '.join(libraries)}: {install_command('plot')}")
