"""Arguments are checked in one home, and come out as plain numbers of Python's."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mqtune.core import checks
from mqtune.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: checks.number("A", "x", "1"), "A: x='1' is not a finite number"),
        (lambda: checks.number("A", "x", math.nan), "A: x=nan is not a finite number"),
        (lambda: checks.number("A", "x", -1, least=0), "A: x=-1 must not be below 0"),
        (lambda: checks.positive("A", "x", 0), "A: x=0 must be above 0"),
        (lambda: checks.whole_number("A", "n", 1.0), "A: n=1.0 is not a whole number"),
        (lambda: checks.whole_number("A", "n", 1, 2), "A: n=1 is not a whole number of at least 2"),
        (lambda: checks.flag("", "on", 1), "on=1 is neither True nor False"),
        (lambda: checks.name("A", "key", "", "a key"), "A: key='' is not a name; give a key"),
        (lambda: checks.one_of("", "mode", "up", ("min", "max")), "mode='up' is neither 'min' nor 'max'"),
        (lambda: checks.one_of("", "mode", "up", ("a", "b", "")), "mode='up' is none of 'a', 'b', ''"),
        (lambda: checks.optional_count("n", 0, 1), "n=0 is not a whole number of at least 1"),
        (lambda: checks.optional_seconds("t_s", math.inf), "t_s=inf is not a finite number"),
    ],
)
def test_an_argument_that_is_refused_is_named_with_its_value(check: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        check()
    assert str(error.value) == message


@pytest.mark.parametrize("value", [np.int64(3), np.uint8(3), 3])
def test_whole_numbers_come_out_as_int(value: Any) -> None:
    for plain in (checks.number("A", "x", value), checks.whole_number("A", "x", value, 3)):
        assert type(plain) is int
        assert plain == 3


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), Fraction(1, 2), 0.5])
def test_other_numbers_come_out_as_float(value: Any) -> None:
    for plain in (checks.number("A", "x", value, least=0.5), checks.optional_seconds("t_s", value)):
        assert type(plain) is float
        assert plain == 0.5
    assert checks.optional_count("n", None, 1) is checks.optional_seconds("t_s", None) is None
