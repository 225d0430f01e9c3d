"""Words for people: what can be as large as a user likes takes no more room than can be read."""

from __future__ import annotations

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.core.text import in_words, name_in_words, names_in_words, nested


def test_values_stand_on_one_line_with_numbers_in_short() -> None:
    assert in_words({"lr": 0.123456789, "width": 64, "name": "a b", "layers": [1, 2]}) == (
        "lr=0.12346 width=64 name=a b layers=[1, 2]"
    )
    assert in_words({}) == ""


def test_of_many_values_or_of_long_ones_the_beginning_is_shown() -> None:
    many = in_words({f"m{number}": number for number in range(100_000)})
    long = in_words({"a": list(range(10**6)), "text": "x" * 10**6, "b": 1})

    assert many.startswith("m0=0 m1=1")
    assert long.startswith("a=[0, 1, 2")
    assert {len(many), len(long)} == {1_000}


def test_names_are_quoted_and_of_many_the_number_of_the_others_is_said() -> None:
    assert names_in_words(["loss", "epoch"]) == "'loss', 'epoch'"
    assert names_in_words({}) == ""
    assert names_in_words([str(number) for number in range(5_000)]).endswith("'18', '19' and 4,980 more")
    assert len(name_in_words("n" * 10_000)) == 100


def test_a_name_below_a_value_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"net\.width: net has a value already"):
        nested({"net": 1, "net.width": 64})
