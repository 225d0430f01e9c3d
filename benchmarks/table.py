"""The table: medians of the runs, their range, and how each system stands to mqtune."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.systems import SYSTEMS
from benchmarks.work import WORKLOADS, Figure

__all__ = ["chance", "render"]

#: The variant of mqtune that the others are set against, where it has several: its default comes first.
REFERENCE: Final = "mqtune"

#: Below this probability chance is not what makes mqtune worse than the best of the others: there are twelve tasks, and
#: the best of several systems has had luck.
BEYOND_CHANCE: Final = 0.01

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
                        "" if reference is None or samples is reference else _ratio(samples, reference),
                        _bars(values, workload.name, name, variant) if system == REFERENCE else "",
                    ]


def _reference(values: Values, workload: str, figure: str) -> Sequence[float] | None:
    """Return the values of mqtune's first variant, or None."""
    for variant in SYSTEMS[REFERENCE].variants.get(workload, ()):
        if samples := values.get((workload, figure, REFERENCE, variant.name)):
            return samples
    return None


def _spread(samples: Sequence[float], unit: str) -> str:
    text = f"{_number(statistics.median(samples))} {unit}".rstrip()
    return f"{text} ({_number(min(samples))}–{_number(max(samples))})" if len(samples) > 1 else text


def _ratio(samples: Sequence[float], reference: Sequence[float]) -> str:
    median = statistics.median(reference)
    return f"{_number(statistics.median(samples) / median)}×" if median else ""


def _best_of_others(values: Values, workload: str, name: str, figure: Figure) -> tuple[str, Sequence[float]] | None:
    """Return the other system that is best by its median, and its samples; None where that is no question."""
    others = [
        (f"{SYSTEMS[system].title} ({variant})", samples)
        for (of_workload, of_figure, system, variant), samples in values.items()
        if (of_workload, of_figure) == (workload, name) and system != REFERENCE
    ]
    if not figure.against_best or not others:
        return None
    return min(others, key=lambda other: statistics.median(other[1]))


def chance(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return how probable it is that chance alone makes our values as much higher as they are.

    By the one-sided test of Mann and Whitney, "On a test of whether one of two random variables is stochastically larger
    than the other", 1947, in the normal approximation with ties.
    """
    above = sum((a > b) + (a == b) / 2 for a in ours for b in theirs)
    n, m, both = len(ours), len(theirs), [*ours, *theirs]
    ties = sum(count**3 - count for count in Counter(both).values())
    variance = n * m / 12 * (n + m + 1 - ties / (len(both) * (len(both) - 1)))
    if not variance:
        return 1.0
    return 1 - statistics.NormalDist().cdf((above - n * m / 2 - 0.5) / math.sqrt(variance))


def _bars(values: Values, workload: str, name: str, variant: str) -> str:
    """Return what a variant of mqtune must reach, and whether it does."""
    figure, samples = WORKLOADS[workload].figures[name], values[workload, name, REFERENCE, variant]
    if best_other := _best_of_others(values, workload, name, figure):
        who, theirs = best_other
        p = chance(samples, theirs)
        return f"no worse than {who}: {_verdict(met=p >= BEYOND_CHANCE)}, p={p:.2g}"
    sign, ours = "≥" if figure.higher_is_better else "≤", statistics.median(samples)
    found = []
    if (bar := figure.bar_of(variant)) is not None:
        found.append(f"{sign} {_number(bar)}: {_verdict(met=figure.reaches(ours, bar))}")
    for over in (figure.over or {}).get(variant, ()):
        if others := values.get((workload, name, over.system, over.variant)):
            ratio = ours / statistics.median(others)
            found.append(
                f"{sign} {_number(over.bar)} × {SYSTEMS[over.system].title} ({over.variant}): "
                f"{_verdict(met=figure.reaches(ratio, over.bar))}, {_number(ratio)}"
            )
    return "; ".join(found)


def _verdict(*, met: bool) -> str:
    return "met" if met else "MISSED"


def _number(value: float) -> str:
    """Return *value* with three significant digits, or whole from 100 on."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
