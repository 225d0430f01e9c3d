"""Draw pictures with Matplotlib, without its global state and in any thread."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from mqtune.core.codec import Body
from mqtune.results.plots.panels import GRID, TEXT, TINT, Axis, Panel, Series, Sheet, step_of

#: Pixels per inch, and a file's pixels per pixel of the picture.
_DPI: Final = 100
_SHARPNESS: Final = 1.5
#: The height around the panels, in pixels.
_AROUND: Final = 110
_MARKERS: Final = {
    "": "",
    "circle": "o",
    "x": "x",
    "triangle-up": "^",
    "square-open": "s",
    "diamond": "D",
    "diamond-open": "D",
    "star": "*",
    "best": "o",
    "caret-up": "^",
    "caret-down": "v",
}
_HOLLOW: Final = frozenset({"square-open", "diamond-open", "best", "caret-up", "caret-down"})


def figure_of(picture: Sheet) -> Figure:
    """Return a picture as a figure."""
    width, height = picture.size
    figure = Figure(figsize=(width / _DPI, (height + _AROUND) / _DPI), dpi=_DPI, layout="constrained")
    rows = math.ceil(len(picture.panels) / picture.columns)
    cells = list(figure.subplots(rows, picture.columns, squeeze=False).flat)
    for axes, panel in zip(cells, picture.panels, strict=False):
        _draw(axes, panel, size=10 if len(picture.panels) == 1 else 8)
    for axes in cells[len(picture.panels) :]:
        axes.set_axis_off()
    figure.suptitle(_escaped(f"{picture.title}\n{picture.note}"), x=0.02, ha="left", fontsize=10, color=TEXT)
    handles = _handles(picture)
    if len(handles) > 1:
        figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return figure


def content_of(picture: Sheet, format: str) -> bytes:  # noqa: A002 - as in Matplotlib
    """Return a picture as a file's content."""
    file = io.BytesIO()
    figure_of(picture).savefig(file, format=format, dpi=_DPI * _SHARPNESS, facecolor="white")
    return file.getvalue()


def _draw(axes: Axes, panel: Panel, *, size: int) -> None:
    for series in panel.series:
        _draw_series(axes, series)
    if panel.band is not None:
        axes.axvspan(*panel.band, color=TINT, zorder=0)
    for x, y, text in panel.texts:
        axes.annotate(
            _escaped(text),
            (x, y),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=size - 1,
            color=TEXT,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
            zorder=5,
        )
    title = " · ".join(filter(None, (panel.title, panel.note)))
    axes.set_title(_escaped(title), fontsize=size + 1, color=TEXT)
    axes.grid(color=GRID, axis="both" if panel.x.has_grid else "y")
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=size - 1, colors=TEXT)
    axes.spines[["top", "right"]].set_visible(False)
    for name, axis in (("x", panel.x), ("y", panel.y)):
        _set_axis(axes, name, axis, [value for series in panel.series for value in getattr(series, name)], size)


def _set_axis(axes: Axes, name: str, axis: Axis, values: Sequence[float], size: int) -> None:
    getattr(axes, f"set_{name}label")(_escaped(axis.label), fontsize=size, color=TEXT)
    if axis.is_log:
        getattr(axes, f"set_{name}scale")("log")
    elif not axis.ticks and step_of(values) is not None:
        getattr(axes, f"{name}axis").set_major_locator(MaxNLocator(integer=True))
    if axis.ends is not None:
        getattr(axes, f"set_{name}lim")(*axis.ends)
    if axis.ticks:
        places, names = zip(*axis.ticks, strict=True)
        shown = getattr(axes, f"{name}axis")
        shown.set_major_locator(FixedLocator(places))
        shown.set_minor_locator(NullLocator())
        getattr(axes, f"set_{name}ticklabels")(list(map(_escaped, names)))
        if name == "x" and sum(map(len, names)) > size * 5:
            axes.tick_params(axis="x", labelrotation=30)


def _draw_series(axes: Axes, series: Series) -> None:
    look = series.look
    if look.is_bar:
        axes.barh(series.y, series.x, color=look.color, height=0.7)
        return
    axes.plot(series.x, series.y, **_style(series))


def _style(series: Series) -> Body:
    look = series.look
    return {
        "color": look.color,
        "linewidth": look.width,
        "linestyle": ("--" if look.is_dashed else "-") if look.width else "",
        "marker": _MARKERS[look.marker],
        "markersize": look.size,
        "markeredgewidth": look.edge or 1,
        "markerfacecolor": "white" if look.marker in _HOLLOW else look.color,
        "alpha": look.opacity,
        "solid_capstyle": "butt",
    }


def _handles(picture: Sheet) -> dict[str, Line2D]:
    named = [series for panel in picture.panels for series in panel.series if series.name]
    # The first series of a name gives the legend's look.
    return {
        series.name: Line2D([], [], label=_escaped(series.name), **{**_style(series), "alpha": 1})
        for series in reversed(named)
    }


def _escaped(text: str) -> str:
    """Return a text in which Matplotlib finds no formulas: dollar signs are escaped."""
    return text.replace("$", r"\$")
