"""Domains in the words of a command, as `mqtune tune` reads them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import mqtune
from mqtune.cli.tune import DOMAINS, Words, domain_of
from mqtune.core.errors import SpaceError
from mqtune.search import Domain
from mqtune.trainable import ArgumentTemplate

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "tune.md").read_text()
#: The rows of the page's table: words of a command, and the arguments of the program.
ROWS = [
    pair
    for commands, arguments in re.findall(r"^\| (`.*~.*) \| (`.*) \|$", PAGE, re.MULTILINE)
    for pair in zip(re.findall(r"`([^`]*)`", commands), re.findall(r"`([^`]*)`", arguments), strict=True)
]


def arguments(words: Words, config: dict[str, Any]) -> list[str]:
    """The arguments of a program for a config."""
    return ArgumentTemplate(mqtune.Script(["./train", *words.items]).items).fill(config)


@pytest.mark.parametrize(("command", "expected"), ROWS)
def test_each_row_of_the_page_is_true(command: str, expected: str) -> None:
    assert len(ROWS) >= 7
    words = Words(shlex.split(command))
    (name,) = words.space

    assert arguments(words, {name: re.split(r"[ =]", expected)[-1]}) == shlex.split(expected)


def test_the_page_has_each_domain() -> None:
    section = PAGE.partition("The functions are those of")[2].partition("\n\nA value")[0]

    assert {found for found in re.findall(r"`(\w+)", section) if found in vars(mqtune) or hasattr(mqtune, found)} == {
        *DOMAINS
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("uniform(0, 1)", mqtune.uniform(0, 1)),
        ("loguniform(1e-5, 1e-1)", mqtune.loguniform(1e-5, 1e-1)),
        (" quniform ( -.5 , +1., q=0.25 ) ", mqtune.quniform(-0.5, 1.0, 0.25)),
        ("qloguniform(1, 100, 0.5)", mqtune.qloguniform(1, 100, 0.5)),
        ("randint(-3, 8)", mqtune.randint(-3, 8)),
        ("lograndint(1, 1024)", mqtune.lograndint(1, 1024)),
        ("qrandint(16, 128, 16)", mqtune.qrandint(16, 128, 16)),
        ("qlograndint(16, 128, 16)", mqtune.qlograndint(16, 128, 16)),
        ("normal(0, 1)", mqtune.normal(0, 1)),
        ("qrandn(0, 1, 0.5)", mqtune.qrandn(0, 1, 0.5)),
        ("reverseloguniform(0.9, 0.999)", mqtune.reverseloguniform(0.9, 0.999)),
        ("finrange(0, 1, 5)", mqtune.finrange(0, 1, 5)),
        ("logfinrange(8, 512, 7, cast_int=True)", mqtune.logfinrange(8, 512, 7, cast_int=True)),
        ("grid_search(a, b)", mqtune.grid_search(["a", "b"])),
        ("ordinal(16, 32)", mqtune.ordinal([16, 32])),
        ("choice(cnn, resnet-50, a/b.txt, two words)", mqtune.choice(["cnn", "resnet-50", "a/b.txt", "two words"])),
        ("choice([cnn, mlp])", mqtune.choice(["cnn", "mlp"])),
        ("choice([32, 16], [64])", mqtune.choice([[32, 16], [64]])),
        (
            """choice(true, False, null, None, 1, 1.5, 'a, b', "it's", {"a": [1]}, '')""",
            mqtune.choice([True, False, None, None, 1, 1.5, "a, b", "it's", {"a": [1]}, ""]),
        ),
        ("choice(a, b,)", mqtune.choice(["a", "b"])),
        (r"""choice('a\'b,c', it's, "\\")""", mqtune.choice(["a'b,c", "it's", "\\"])),
        # Nothing is evaluated.
        ("choice(__import__('os').getpid(), 2**10)", mqtune.choice(["__import__('os').getpid()", "2**10"])),
    ],
)
def test_a_text_is_the_domain_that_a_script_would_make(text: str, expected: Domain) -> None:
    found = domain_of(text)

    assert (found, repr(found)) == (expected, repr(expected))


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "~unifrm(0, 1)",
            r"--x '~unifrm\(0, 1\)': unifrm: there is no such domain; do you mean uniform\(low, high\)\?",
        ),
        ("~choices(a, b)", r"do you mean choice\(a, b, …\)\?"),
        ("~categorical(a, b)", r"do you mean choice\(a, b, …\)\?"),
        ("~fidelity(1, 81)", "give --max-t N"),
        ("~sample_from(f)", "needs a script"),
        ("~frobnicate(1)", "domains are 'uniform', 'loguniform'"),
        ("~uniform(1)", r"missing a required argument: 'high'; write uniform\(low, high\)"),
        ("~uniform(0, 1, 2)", r"too many positional arguments; write uniform\(low, high\)"),
        ("~uniform(0, 1, log=True)", r"do you mean loguniform\(low, high\)"),
        ("~loguniform(1, 1e-5)", "low=1.0 must be below high=1e-05"),
        ("~uniform(0, 1/3)", "high='1/3' is not a finite number"),
        ("~choice()", "is empty; give at least one value"),
        ("~choice(a,, b)", "nothing between two commas"),
        ("~choice('a)", '"\'" that is not closed'),
        ("~choice([a)", r"has a '\[' that is not closed"),
        ("~choice('a'b)", "has text after its quotes"),
        ('~choice({"a": b})', "is not a JSON object"),
        ("~choice(" + "9" * 5000 + ")", "a whole number has 5,000 digits"),
        ("~choice(" + "[" * 50 + "]" * 50 + ")", "levels of brackets"),
        ("~uniform", r"arguments of uniform are missing or incomplete; quote the whole word: '~uniform\(…\)'"),
        ("~uniform(0,", "quote the whole word"),
        ("~randint(1, 4)x~randint(1, 4)", "closes nothing"),
    ],
)
def test_a_mistake_in_a_domain_names_the_argument_and_the_way_out(word: str, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Words(["--x", word])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["~uniform(0, 1)"], r"has no name, as it is not the value of an option; give it one: 'width~uniform\(0, 1\)'"),
        (["--a=1", "~uniform(0, 1)"], "has no name"),
        (["--a", "~uniform(0, 1)", "~uniform(0, 1)"], "has no name"),
        (["--size=3x~randint(1, 2)"], "a domain must be the whole value of an argument"),
        (["--a", "~uniform(0, 1)", "--a=~uniform(0, 1)"], "the parameter 'a' already has a domain"),
    ],
)
def test_a_domain_needs_a_place_and_a_name_of_its_own(words: list[str], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Words(words)


def test_all_other_words_are_passed_on_as_they_are() -> None:
    plain = ["~/data", "~", "notes.txt~", "~anna/x", "a~1(b)", "{lr}", "--set={'a': 1}", "--", "x=y", "--lr", "*.csv"]
    words = Words([*plain, "--depth", "~randint(1, 3)"])

    assert [*words.space] == ["depth"]
    assert arguments(words, {"depth": 2}) == [*plain, "--depth", "2"]


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        (["--name", "~choice(a, b)"], "name_", ["--name", "v"]),
        (["value=~choice(a, b)"], "value_", ["value=v"]),
        (["db/engine=~choice(a, b)"], "db.engine", ["db/engine=v"]),
        (["++opt.lr=~uniform(0, 1)"], "opt.lr", ["++opt.lr=v"]),
        (["--model-dim", "~choice(a, b)"], "model-dim", ["--model-dim", "v"]),
    ],
)
def test_an_arguments_name_becomes_a_valid_parameter(words: list[str], name: str, expected: list[str]) -> None:
    found = Words(words)

    assert [*mqtune.Space(found.space).domains] == [name]
    assert arguments(found, {name: "v"}) == expected


def test_an_option_is_left_out_with_a_missing_value() -> None:
    words = Words(["--decay", "~choice(null, 0.1)", "--momentum=~choice(null, 0.9)", "x"])

    assert arguments(words, {"decay": None, "momentum": None}) == ["x"]
    assert arguments(words, {"decay": 0.1, "momentum": 0.9}) == ["--decay", "0.1", "--momentum=0.9", "x"]


@pytest.mark.parametrize(
    ("words", "is_noted"),
    [
        (["--shift", "~uniform(-1, 1)"], True),
        (["--shift", "~choice(1.0, -0.5)"], True),
        (["--shift=~uniform(-1, 1)"], False),
        (["--shift", "~uniform(0, 1)"], False),
        (["--shift", "~randint(-5, 5)"], False),
        (["-s", "~uniform(-1, 1)"], False),
    ],
)
def test_a_negative_number_that_argparse_takes_for_an_option_is_noted(words: list[str], is_noted: bool) -> None:
    notes = Words(words).notes

    assert bool(notes) is is_noted
    assert all("write '--shift=~" in note for note in notes)
