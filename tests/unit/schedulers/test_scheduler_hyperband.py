"""HyperBand: the rounds of its brackets."""

from __future__ import annotations

from typing import Any

import pytest

from mqtune import HyperBand

# Brackets


def rounds(max_t: float, factor: float, **arguments: Any) -> list[list[tuple[float, float]]]:
    found = HyperBand(max_t, reduction_factor=factor, **arguments).brackets
    return [[tuple(round_) for round_ in bracket] for bracket in found]


def test_the_brackets_are_those_of_the_papers_example() -> None:
    assert rounds(81, 3) == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]


@pytest.mark.parametrize(
    ("max_t", "factor", "first"),
    [
        (729, 3, [(729, 1), (243, 3), (81, 9), (27, 27), (9, 81), (3, 243), (1, 729)]),
        (243, 3, [(243, 1), (81, 3), (27, 9), (9, 27), (3, 81), (1, 243)]),
        (1000, 10, [(1000, 1), (100, 10), (10, 100), (1, 1000)]),
        (728, 3, [(243, 728 / 243), (81, 728 / 81), (27, 728 / 27), (9, 728 / 9), (3, 728 / 3), (1, 728)]),
        (1, 3, [(1, 1)]),
        (10, 2.5, [(7, 1.6), (2, 4), (1, 10)]),
    ],
)
def test_the_bracket_with_the_most_trials_is_there_however_logarithms_round(
    max_t: float, factor: float, first: list[tuple[float, float]]
) -> None:
    assert rounds(max_t, factor)[0] == first


def test_with_fewer_brackets_those_that_stop_most_are_left() -> None:
    assert rounds(27, 3, brackets=1) == [[(27, 1), (9, 3), (3, 9), (1, 27)]]
    assert rounds(27, 3, brackets=2) == rounds(27, 3)[:2]
    assert rounds(27, 3, brackets=4) == rounds(27, 3)


def test_a_grace_period_is_the_unit_of_time() -> None:
    assert rounds(0.9, 3, grace_period=0.1) == [[(9, 0.1), (3, 0.3), (1, 0.9)], [(5, 0.3), (1, 0.9)], [(3, 0.9)]]
    assert rounds(5, 3, grace_period=5) == [[(1, 5)]]
