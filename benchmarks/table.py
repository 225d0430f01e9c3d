"""The table: medians of the runs, their range, and how each system stands to mqtune."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.systems import SYSTEMS
from benchmarks.work import WORKLOADS, Figure

__all__ = ["render"]

#: The variant of mqtune that the others are set against, where it has several: its default comes first.
REFERENCE: Final = "mqtune"

Values = dict[tuple[str, str, str, str], list[float]]


def render(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of the result lines, then a line for each measurement that gave no figure."""
    values: Values = {}
    for line in lines:
        if line["status"] == "ok":
            key = (line["workload"], line["figure"], line["system"], line["variant"])
            values.setdefault(key, []).append(line["value"])
    rows = [["work", "system", "median (min–max)", "runs", "to mqtune", "bar"], ["---"] * 6]
    rows += _rows(values)
    notes = {
        f"- {line['workload']}, {line['system']} ({line['variant']}): {line['status']}: {line['reason'].splitlines()[0]}"
        for line in lines
        if line["status"] != "ok"
    }
    text = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*text, "", *_other_load(lines), *sorted(notes)]).rstrip() + "\n"


def _other_load(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line that says how far the machine was ours, since the figures are only as good as that."""
    cores = [line["other_cores"] for line in lines if "other_cores" in line]
    if cores:
        all_cores = lines[0]["machine"]["cores"]
        yield (
            f"- other processes kept {statistics.median(cores):.2f} of {all_cores} cores busy "
            f"(median over the figures; at most {max(cores):.2f})"
        )


def _rows(values: Values) -> Iterator[list[str]]:
    for workload in WORKLOADS.values():
        for name, figure in workload.figures.items():
            if not figure.shown:
                continue
            reference = _reference(values, workload.name, name)
            for (of_workload, of_figure, system, variant), samples in values.items():
                if (of_workload, of_figure) == (workload.name, name):
                    yield [
                        figure.title,
                        f"{SYSTEMS[system].title} ({variant})",
                        _spread(samples, figure.unit),
                        str(len(samples)),
                        "" if reference is None or system == REFERENCE else _ratio(samples, reference),
                        _bar(figure, samples, variant) if system == REFERENCE else "",
                    ]


def _reference(values: Values, workload: str, figure: str) -> float | None:
    """Return the median of mqtune's first variant, or None."""
    for variant in SYSTEMS[REFERENCE].variants.get(workload, ()):
        if samples := values.get((workload, figure, REFERENCE, variant.name)):
            return statistics.median(samples)
    return None


def _spread(samples: Sequence[float], unit: str) -> str:
    text = f"{_number(statistics.median(samples))} {unit}".rstrip()
    return f"{text} ({_number(min(samples))}–{_number(max(samples))})" if len(samples) > 1 else text


def _ratio(samples: Sequence[float], reference: float) -> str:
    return f"{_number(statistics.median(samples) / reference)}×" if reference else ""


def _bar(figure: Figure, samples: Sequence[float], variant: str) -> str:
    bar = figure.bar_of(variant)
    if bar is None:
        return ""
    sign = "≥" if figure.higher_is_better else "≤"
    met = figure.meets(statistics.median(samples), variant)
    return f"{sign} {_number(bar)}: {'met' if met else 'MISSED'}"


def _number(value: float) -> str:
    """Return *value* with three significant digits, or whole from 100 on."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
