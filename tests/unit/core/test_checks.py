"""Checked arguments are plain numbers of Python's, and signatures are read without types."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mqtune.core import checks
from mqtune.core.calls import signature_of


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


@pytest.mark.skipif(sys.version_info < (3, 14), reason="before PEP 649 the definition itself fails")
def test_an_annotation_that_only_a_type_checker_can_read_is_no_hindrance():
    names: dict[str, object] = {}
    exec(compile("def train(config: Absent, *, reporter=None): ...", "train.py", "exec", dont_inherit=True), names)

    assert list(signature_of(names["train"]).parameters) == ["config", "reporter"]  # type: ignore[arg-type]
