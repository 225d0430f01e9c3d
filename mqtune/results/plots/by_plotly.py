"""Draw pictures with Plotly: as plain values for plotly.js, a figure, or a page of its own."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from mqtune.results.frames import Row
from mqtune.results.plots.panels import GRID, SURFACE, TEXT, TINT, Axis, Panel, Series, Sheet, step_of

#: Pixels around the panels, and the gap between two panels as a share of the size.
_TOP, _BOTTOM = 70, 110
_GAP: Final = 0.09
#: If values span at least this ratio, logarithmic ticks are powers of ten only.
_TENS: Final = 100
#: With values below this one, the ticks of a logarithmic axis are powers such as 1e-6.
_LEAST_PLAIN: Final = 1e-4
#: Plotly's symbols for marks. The names of other marks are the same in Plotly.
_SYMBOLS: Final = {
    "": "circle",
    "x": "x-thin-open",
    "best": "circle-dot",
    "caret-up": "triangle-up-open",
    "caret-down": "triangle-down-open",
}
#: The version of Plotly's basic bundle, which has the kinds that pictures need: points, lines and bars.
BUNDLE: Final = "4.1.1"
#: The buttons on a picture, without the default one that sends data to Plotly's cloud.
BUTTONS: Final = {
    "displaylogo": False,
    "modeBarButtons": [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
}


def plain(picture: Sheet) -> Row:
    """Return a picture as a figure's data and layout, in JSON values. Plotly is not needed."""
    width, height = picture.size
    layout: Row = {
        "title": {"text": f"{_text(picture.title)}<br><sup>{_text(picture.note)}</sup>", "x": 0.02},
        "width": width,
        "height": height + _TOP + _BOTTOM,
        "margin": {"t": _TOP, "b": _BOTTOM, "l": 70, "r": 20},
        "font": {"color": TEXT, "size": 12 if len(picture.panels) == 1 else 10},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "hovermode": "closest",
        "legend": {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom"},
    }
    data: list[Row] = []
    annotations: list[Row] = []
    shapes: list[Row] = []
    named: set[str] = set()
    for number, panel in enumerate(picture.panels):
        suffix = str(number + 1) if number else ""
        left, right, bottom, top = _extent(picture, number)
        xaxis, yaxis = _axes(panel)
        layout[f"xaxis{suffix}"] = {**xaxis, "domain": [left, right], "anchor": f"y{suffix}"}
        layout[f"yaxis{suffix}"] = {**yaxis, "domain": [bottom, top], "anchor": f"x{suffix}"}
        annotations += [*_title(panel, (left + right) / 2, top), *_annotations(panel, suffix)]
        shapes += _bands(panel, suffix)
        for series in panel.series:
            is_new = bool(series.name) and series.name not in named
            named.add(series.name)
            data.append({**_trace(series), "xaxis": f"x{suffix}", "yaxis": f"y{suffix}", "showlegend": is_new})
    layout |= {"annotations": annotations, "shapes": shapes, "showlegend": len(named - {""}) > 1}
    return {"data": data, "layout": layout}


def panels_of(picture: Sheet) -> list[Row]:
    """Return each panel as a figure of its own, in JSON values, with its title, note and key."""
    figures: list[Row] = []
    for panel in picture.panels:
        xaxis, yaxis = _axes(panel)
        layout = {
            "xaxis": xaxis,
            "yaxis": yaxis,
            "annotations": [*_annotations(panel, "")],
            "shapes": [*_bands(panel, "")],
        }
        data = [{**_trace(series), "count": series.count} for series in panel.series]
        figures.append({"title": panel.title, "key": panel.key, "note": panel.note, "data": data, "layout": layout})
    return figures


def figure_of(picture: Sheet) -> Any:
    """Return a picture as a ``plotly.graph_objects.Figure``."""
    return import_module("plotly.graph_objects").Figure(plain(picture))


def content_of(picture: Sheet, _: str) -> bytes:
    """Return a picture as a self-contained HTML page, with plotly.js."""
    figure = plain(picture)
    # A text in the picture could close the script element.
    parts = (
        json.dumps(part, allow_nan=False).replace("<", "\\u003c")
        for part in (figure["data"], figure["layout"], BUTTONS)
    )
    code = f'Plotly.newPlot("picture", {", ".join(parts)})'
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(picture.title)}</title>'
    script_text = script().read_text(encoding="utf-8")
    return f'{head}<div id="picture"></div><script>{script_text}</script><script>{code}</script></html>'.encode()


def script() -> Path:
    """Return the path of plotly.js."""
    return Path(__file__).with_name(f"plotly-basic-{BUNDLE}.min.js")


def _axes(panel: Panel) -> tuple[Row, Row]:
    xs, ys = ([value for series in panel.series for value in getattr(series, axis)] for axis in ("x", "y"))
    return {**_axis(panel.x, xs), "showgrid": panel.x.has_grid}, _axis(panel.y, ys)


def _bands(panel: Panel, suffix: str) -> Iterator[Row]:
    if panel.band is not None:
        low, high = panel.band
        ends = {"x0": low, "x1": high, "y0": 0, "y1": 1, "xref": f"x{suffix}", "yref": f"y{suffix} domain"}
        yield {"type": "rect", **ends, "fillcolor": TINT, "line": {"width": 0}, "layer": "below"}


def _extent(picture: Sheet, number: int) -> tuple[float, float, float, float]:
    """Return a panel's left, right, bottom and top, as shares of the picture's size."""
    rows, columns = math.ceil(len(picture.panels) / picture.columns), picture.columns
    row, column = divmod(number, columns)
    beside, below = 2 * _GAP / max(2, columns), 2 * _GAP / max(2, rows)
    wide, high = (1 + beside) / columns - beside, (1 + below) / rows - below
    left, top = column * (wide + beside), 1 - row * (high + below)
    return left, left + wide, max(0.0, top - high + (below / 2 if rows > 1 else 0)), top


def _axis(axis: Axis, values: Sequence[float]) -> Row:
    described: Row = {"title": {"text": _text(axis.label)}, "gridcolor": GRID, "zeroline": False}
    if axis.is_log:
        described |= {"type": "log", **_log_ticks(values)}
    if axis.ends is not None:
        described["range"] = [math.log10(end) if axis.is_log else end for end in axis.ends]
    if not axis.is_log and not axis.ticks and (step := step_of(values)) is not None:
        described |= {"tick0": 0, "dtick": step}
    if axis.ticks:
        places, names = zip(*axis.ticks, strict=True)
        described |= {"tickmode": "array", "tickvals": list(places), "ticktext": list(map(_text, names))}
    return described


def _log_ticks(values: Sequence[float]) -> Row:
    """Return the ticks of a logarithmic axis: powers of ten, or also 2 and 5 of each."""
    positive = [value for value in values if math.isfinite(value) and value > 0]
    if not positive or max(positive) / min(positive) < _TENS:
        return {"dtick": "D2", "tickformat": "~g"}
    # Plotly writes the powers of ten below 0.01 and above 100 as 1e-3 and 1e+3.
    is_small = min(positive) < _LEAST_PLAIN
    return {"dtick": 1, **({"exponentformat": "e"} if is_small else {"tickformat": "~g"})}


def _title(panel: Panel, middle: float, top: float) -> Iterator[Row]:
    if text := " · ".join(filter(None, (panel.title, panel.note))):
        yield {
            "text": f"<b>{_text(text)}</b>",
            "xref": "paper",
            "yref": "paper",
            "x": middle,
            "y": top,
            "yanchor": "bottom",
            "showarrow": False,
        }


def _annotations(panel: Panel, suffix: str) -> Iterator[Row]:
    for x, y, text in panel.texts:
        at = {
            "x": math.log10(x) if panel.x.is_log else x,
            "y": math.log10(y) if panel.y.is_log else y,
        }
        yield {
            "text": _text(text),
            "xref": f"x{suffix}",
            "yref": f"y{suffix}",
            "xanchor": "left",
            "xshift": 5,
            "bgcolor": SURFACE,
            "showarrow": False,
            **at,
        }


def _trace(series: Series) -> Row:
    look = series.look
    trace = {
        "name": _text(series.name),
        "legendgroup": _text(series.name),
        "x": _numbers(series.x),
        "y": _numbers(series.y),
        "opacity": look.opacity,
        "text": list(map(_text, series.labels)),
    }
    if look.is_bar:
        return {**trace, "type": "bar", "orientation": "h", "textposition": "none", "marker": {"color": look.color}}
    mode = "+".join(["lines"] * bool(look.width) + ["markers"] * bool(look.marker))
    dash = "dash" if look.is_dashed else "solid"
    return {
        **trace,
        "type": "scatter",
        "mode": mode,
        "line": {"color": look.color, "width": look.width, "dash": dash},
        "marker": {
            "color": SURFACE if look.marker == "best" else look.color,
            "size": look.size,
            "symbol": _SYMBOLS.get(look.marker, look.marker),
            "line": {"color": look.color, "width": look.edge},
        },
        "connectgaps": False,
    }


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _text(text: str) -> str:
    """Return a text with Plotly's markup escaped. Line breaks stay line breaks."""
    return html.escape(text, quote=False).replace("\n", "<br>")
