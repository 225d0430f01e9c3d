"""An SVG picture of a run's best value over time, for notebooks."""

from __future__ import annotations

import math
from html import escape
from typing import Final

#: The picture's size and margin, in pixels.
_WIDTH: Final = 640
_HEIGHT: Final = 120
_MARGIN: Final = 14
#: The most kept steps. The picture's width has fewer pixels.
_MOST_STEPS: Final = 1_000
_SVG: Final = (
    '<svg viewBox="0 0 {width} {height}" style="max-width:{width}px;width:100%;font:11px monospace" role="img">'
    '<g fill="currentColor"><text x="0" y="11">{title}</text><text x="{width}" y="{bottom}" '
    'text-anchor="end">{end}</text></g>'
    '<polyline points="{points}" fill="none" stroke="#2a9d5c" stroke-width="2"/></svg>'
)


class BestCurve:
    """The best value of a metric over time, in bounded memory."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        #: Pairs of elapsed seconds and the best value from then on.
        self._steps: list[tuple[float, float]] = []

    def add(self, elapsed_s: float, value: float) -> None:
        """Record the best value at a time, in seconds. Ignore NaN and infinities."""
        if not math.isfinite(value) or (self._steps and self._steps[-1][1] == value):
            return
        if len(self._steps) >= _MOST_STEPS:
            self._steps = self._steps[::2]
        self._steps.append((elapsed_s, value))

    def svg(self, elapsed_s: float, end_label: str) -> str:
        """Return the picture as an SVG element, or an empty text if there are no values.

        Args:
            elapsed_s: the end of the time axis, in seconds.
            end_label: the label of that end.
        """
        if not self._steps:
            return ""
        values = [value for _, value in self._steps]
        low, high = min(values), max(values)
        title = f"{self._metric}: {values[0]:.4g} → {values[-1]:.4g}"
        return _SVG.format(
            width=_WIDTH,
            height=_HEIGHT,
            bottom=_HEIGHT - 2,
            title=escape(title),
            end=escape(end_label),
            points=" ".join(self._points(elapsed_s, low, (high - low) or 1.0)),
        )

    def _points(self, elapsed_s: float, low: float, span: float) -> list[str]:
        corners: list[tuple[float, float]] = []
        for at, value in self._steps:
            corners += [(at, corners[-1][1])] if corners else []
            corners.append((at, value))
        corners.append((elapsed_s, corners[-1][1]))
        plot_height = _HEIGHT - 3 * _MARGIN
        x_scale = _WIDTH / max(elapsed_s, corners[-1][0], 1e-9)
        return [
            f"{x * x_scale:.1f},{2 * _MARGIN + plot_height - (y - low) / span * plot_height:.1f}" for x, y in corners
        ]
