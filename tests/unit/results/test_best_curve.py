"""The best value so far, drawn in a notebook's cell."""

from __future__ import annotations

import math
from xml.etree import ElementTree as ET

from mqtune.results import BestCurve


def corners(curve: BestCurve, elapsed_s: float) -> list[tuple[float, float]]:
    (line,) = ET.fromstring(curve.svg(elapsed_s, "now")).iter("polyline")
    return [(float(x), float(y)) for x, y in (each.split(",") for each in line.attrib["points"].split())]


def test_a_line_steps_down_at_each_better_value_and_goes_on_to_the_moment() -> None:
    curve = BestCurve("loss")
    for at, value in ((1.0, 4.0), (2.0, 4.0), (5.0, math.nan), (6.0, 2.0)):
        curve.add(at, value)

    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners(curve, 10.0)

    assert (x0, x1, x2, x3) == (64.0, 384.0, 384.0, 640.0)
    assert y0 == y1 < y2 == y3


def test_a_long_run_keeps_few_steps_and_the_latest_value() -> None:
    curve = BestCurve("<b>loss</b>")

    for step in range(5_000):
        curve.add(float(step), 5_000.0 - step)

    assert len(corners(curve, 5_000.0)) <= 2 * 1_000 + 1
    assert "→ 1<" in curve.svg(5_000.0, "now")
    assert "<b>" not in curve.svg(5_000.0, "now")
