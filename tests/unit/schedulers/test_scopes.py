"""Scopes: the value that a trial is ranked by, in results and in schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from book import Book
from hypothesis import given, strategies as st

import mqtune
from mqtune import Results
from mqtune.core.errors import ConfigurationError, MetricMissing
from mqtune.core.scope import ScopedValue

NAN, INF = math.nan, math.inf

EVERY_SCOPE = pytest.mark.parametrize("scope", ["all", "last", "avg", "last-1-avg", "last-3-avg"])


def ranked_by(scope: str, values: Sequence[float], best: Callable[..., float] = min) -> float:
    """The rule as the docstring states it."""
    numbers = [value for value in values if not math.isnan(value)]
    match scope.split("-"):
        case ["all"]:
            return best(numbers, default=NAN)
        case ["avg"]:
            return sum(numbers) / len(numbers) if numbers else NAN
        case ["last"]:
            return values[-1]
        case [_, count, _]:
            counted = values[-int(count) :]
            return sum(counted) / len(counted)
    raise AssertionError(scope)


@EVERY_SCOPE
@given(values=st.lists(st.sampled_from([0.5, 1, 2.0, -3.0, NAN, INF, -INF]), min_size=1, max_size=8))
def test_after_each_report_a_trial_is_ranked_by_what_the_scope_says(scope: str, values: list[float]) -> None:
    for mode, best in (("min", min), ("max", max)):
        scoped = ScopedValue(scope, mode)
        ranked = [scoped.add(value) for value in values]

        expected = [ranked_by(scope, values[: number + 1], best) for number in range(len(values))]
        assert ranked == pytest.approx(expected, nan_ok=True)


def test_a_nan_among_the_last_values_counts_and_late_reports_do_not(tmp_path: Path) -> None:
    book = Book(tmp_path / "diverged")
    book.run("0001", 1.0, NAN)
    book.run("0002", NAN, 5.0, 7.0)
    book.stage("0003")
    book.report("0003", {"loss": 8.0})
    book.decide("0003")
    book.report("0003", {"loss": 0.0})
    book.end("0003")
    results = Results.load(book.save())

    assert results.best_trial("last-2-avg").id == "0002"
    with pytest.raises(MetricMissing, match="have not reported"):
        Results.load(Book(tmp_path / "empty").save()).best_trial("last-2-avg")


@pytest.mark.parametrize("scope", ["last-0-avg", "last--avg", "last-5", "mean", 5])
def test_what_is_no_scope_is_refused_by_results_and_schedulers(tmp_path: Path, scope: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"scope={scope!r} is none of 'all', .* 'last-N-avg'"):
        Results.load(Book(tmp_path / "some").save()).best_trial(scope)
    with pytest.raises(ConfigurationError, match=f"ASHA: scope={scope!r} is none of"):
        mqtune.ASHA(9, scope=scope)
