"""The table: the median and the range of each figure's runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.systems import SYSTEMS
from benchmarks.work import WORKLOADS

__all__ = ["render"]


def render(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return a Markdown table of the results, then a line for each measurement without any."""
    rows = [["work", "system", "median (min–max)", "runs"], ["---"] * 4, *_rows(lines)]
    notes = {
        f"- {line['workload']}, {line['system']} ({line['variant']}): {line['status']}: "
        f"{line['reason'].splitlines()[0]}"
        for line in lines
        if line["status"] != "ok"
    }
    text = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*text, "", *_other_load(lines), *sorted(notes)]).rstrip() + "\n"


def _other_load(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line on the load of other processes, which makes figures worthless."""
    cores = [line["other_cores"] for line in lines if "other_cores" in line]
    if cores:
        all_cores = lines[0]["machine"]["cores"]
        yield (
            f"- other processes kept {statistics.median(cores):.2f} of {all_cores} cores busy "
            f"(median over the figures; at most {max(cores):.2f})"
        )


def _rows(lines: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for line in lines:
        if line["status"] == "ok":
            key = (line["workload"], line["figure"], line["system"], line["variant"])
            values.setdefault(key, []).append(line["value"])
    for workload in WORKLOADS.values():
        for name, figure in workload.figures.items():
            for (of_workload, of_figure, system, variant), samples in values.items():
                if (of_workload, of_figure) == (workload.name, name):
                    title = f"{SYSTEMS[system].title} ({variant})"
                    yield [figure.title, title, _spread(samples, figure.unit), str(len(samples))]


def _spread(samples: Sequence[float], unit: str) -> str:
    text = f"{_number(statistics.median(samples))} {unit}".rstrip()
    return f"{text} ({_number(min(samples))}–{_number(max(samples))})" if len(samples) > 1 else text


def _number(value: float) -> str:
    """Return *value* with three significant digits, or as a whole number from 100 on."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
