"""The conditions of ``--where`` and of the page's filter: everything counts, or is an error that points at its place."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Final

import click
import pytest
from book import Book
from hypothesis import given, strategies as st

from mqtune import Results
from mqtune.cli import And, Comparison, Condition, Not, Or, condition_of, filter_of, selected
from mqtune.core.errors import ConfigurationError
from mqtune.core.experiment import Experiment
from mqtune.core.trial import Trial, TrialId


@pytest.fixture
def experiment(mqtune_home: Path) -> Experiment:
    """Three trials with a loss and one without."""
    book = Book(mqtune_home / "mine")
    book.run("0001", 0.5, config={"lr": 0.1, "kind": "adam", "net": {"width": 8}})
    book.run("0002", math.nan, config={"lr": 0.2, "kind": "sgd", "net": {"width": 16}})
    book.run("0003", 0.3, 0.4, config={"lr": 1, "kind": "8", "net": {"width": 32}, "sizes": [64, 32]})
    book.stage("0004", {"lr": 2})
    book.save()
    return Results.load("mine").experiment


def matches(experiment: Experiment, condition: Condition | None) -> str:
    """The last digits of the trials that fulfil a condition."""
    return "".join(trial.id.lstrip("0") for trial in selected(experiment.trials.values(), condition))


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("lr<0.2", "1"),
        ("lr >= 1", "34"),
        ("net.width>8", "23"),
        ("config.net.width=32", "3"),
        ("kind=adam", "1"),
        ("kind=8", "3"),
        ("kind<9", ""),
        ("sizes=[64, 32]", "3"),
        ("loss=0.3", "3"),
        ("last.loss=0.4", "3"),
        ("status=running", "4"),
        ("reports>1", "3"),
        ("worker=w1@host", "1234"),
        ("kind!=sgd AND lr>0.5", "3"),
        ("kind=sgd OR lr>1", "24"),
        ("lr<0.2 or lr>0.1 and lr<1", "12"),
        ("(lr<0.2 or lr>0.1) And lr<1", "12"),
        ("(lr<0.2 or lr>=1) and kind=8", "3"),
        ("Not lr<1", "34"),
        ("not not lr<1", "12"),
        ("not (lr<0.2 or lr>1)", "23"),
        # A trial without the value fulfils neither a comparison nor its opposite.
        ("kind!=sgd", "13"),
        ("not kind=sgd", "13"),
        ("not (kind=sgd and lr<0.5)", "134"),
    ],
)
def test_a_condition_selects_trials(experiment: Experiment, where: str, found: str) -> None:
    assert matches(experiment, condition_of([where])) == found


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", 0, "expected a condition such as 'lr<0.1', found the end"),
        ("lr", 2, "expected <, <=, >, >=, = or != after 'lr', found the end"),
        ("lr<", 3, "expected a value after '<', found the end"),
        ("<1", 0, "expected a condition such as 'lr<0.1', found '<'"),
        ("lr<1 and", 8, "expected a condition"),
        ("and", 0, "expected a condition such as 'lr<0.1', found 'and'"),
        ("lr>>0.3", 3, "expected a value after '>', found '>'"),
        ("lr=<1", 3, "expected a value after '=', found '<'"),
        ("lr=or kind=adam", 3, "expected a value after '=', found 'or'"),
        ("0.1<lr<0.3", 6, "expected 'and', 'or' or the end, found '<'"),
        ("lr>0,3", 4, "',' has no meaning here; put it in quotes if it belongs to a text"),
        ("kind!=sgd, lr>0.5", 9, "',' has no meaning here"),
        ("kind!=sgd lr>0.5", 10, "expected 'and', 'or' or the end, found 'lr'"),
        ("kind!=sgd & lr>0.5", 10, "'&' has no meaning here"),
        ("kind!=adam*", 10, "'*' has no meaning here"),
        ("lr<__import__('os')", 13, "expected 'and', 'or' or the end, found '('"),
        ("lr in [1]", 3, "expected <, <=, >, >=, = or != after 'lr', found 'in'"),
        ("(lr<1", 5, "expected 'and', 'or' or ')', found the end"),
        ("lr<1)", 4, "expected 'and', 'or' or the end, found ')'"),
        ("kind='sgd", 5, "this quote is not closed"),
        ('kind="a\\b\\x"', 5, "a backslash in double quotes is written twice"),
        ("sizes=[64", 6, "this is not a JSON list or object"),
        ("(" * 51 + "lr<1" + ")" * 51, 50, "this is nested too deeply"),
    ],
)
def test_text_that_is_not_understood_is_an_error_that_points_at_it(text: str, place: int, reason: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        condition_of([text])

    said, shown, mark = raised.value.message.split("\n")
    assert said.startswith(f"not a condition: {reason}")
    assert (shown, mark) == (f"  {text}", f"  {' ' * place}^")


def test_a_name_that_no_trial_has_is_refused(experiment: Experiment) -> None:
    with pytest.raises(ConfigurationError, match="no trial has 'accuracy'; trials have 'loss'"):
        matches(experiment, condition_of(["lr<1 or not accuracy<1"]))


@pytest.mark.parametrize("where", ["lr>0.1.2", "loss>=low", "lr<1 or lr>'2'"])
def test_numbers_are_not_compared_with_a_text(experiment: Experiment, where: str) -> None:
    with pytest.raises(ConfigurationError, match=r"compares numbers with a text; give a number, such as 'l"):
        matches(experiment, condition_of([where]))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("adam", "1"),
        ("SGD or running", "24"),
        ("w1@host and not completed", "4"),
        ("lr<1 and (adam or sgd)", "12"),
        ("width=8 and adam", "1"),
        ("'net.width=8'", "1"),
        ("no such words", ""),
    ],
)
def test_the_page_also_searches_for_texts(experiment: Experiment, text: str, found: str) -> None:
    for trial in experiment.trials.values():
        trial.config.setdefault("width", trial.config.get("net", {}).get("width", 0))
    assert matches(experiment, filter_of(text)) == found


def test_words_of_a_text_search_are_one_text(experiment: Experiment) -> None:
    experiment.trials[TrialId("0002")].reason = "CUDA: out of memory"

    assert matches(experiment, filter_of("out of memory")) == "2"
    with pytest.raises(click.UsageError, match="expected 'and', 'or' or the end, found 'lr'"):
        filter_of("out of memory lr<1")


#: A trial's values, and names that it lacks.
VALUES: Final = {"a": 1, "b.c": 2.5, "opt": "sgd", "not": "x y", "naïve name": -3}
LACKING: Final = ["lacking", "or"]
_SPACES: Final = st.sampled_from(["", " ", "  ", "\t"])


def _spelt(name: str, style: int) -> str:
    plain = name.isidentifier() or name == "b.c"
    if plain and name not in ("not", "or") and style == 0:
        return name
    return f"'{name}'" if style == 1 else json.dumps(name)


@st.composite
def comparisons(draw: st.DrawFn) -> tuple[str, Condition]:
    """A comparison's text, and the comparison itself."""
    name = draw(st.sampled_from([*VALUES, *LACKING]))
    value = draw(st.sampled_from([1, 2.5, -3, "sgd", "x y", "a and b", "(or)", "&&", "it's"]))
    signs = ["=", "==", "!="] if isinstance(value, str) else ["=", "==", "!=", "<", "<=", ">", ">="]
    sign = draw(st.sampled_from(signs))
    gap = draw(_SPACES)
    style = 2 if value == "it's" else draw(st.sampled_from([1, 2]))
    shown = _spelt(value, style) if isinstance(value, str) else str(value)
    return f"{_spelt(name, draw(st.sampled_from([0, 1, 2])))}{gap}{sign}{gap}{shown}", Comparison(name, sign, value)


def _combined(children: st.SearchStrategy[tuple[str, Condition]]) -> st.SearchStrategy[tuple[str, Condition]]:
    def negated(child: tuple[str, Condition], word: str, gap: str) -> tuple[str, Condition]:
        return f"{word} {gap}({child[0]})", Not(child[1])

    def joined(kind: type[And | Or], parts: list[tuple[str, Condition]], words: str, gap: str) -> tuple[str, Condition]:
        return f" {gap}{words} ".join(f"({gap}{text})" for text, _ in parts), kind(
            tuple(condition for _, condition in parts)
        )

    several = st.lists(children, min_size=2, max_size=3)
    return (
        st.builds(negated, children, st.sampled_from(["not", "NOT", "Not"]), _SPACES)
        | st.builds(joined, st.just(And), several, st.sampled_from(["and", "AND", "aNd", "&&"]), _SPACES)
        | st.builds(joined, st.just(Or), several, st.sampled_from(["or", "OR", "||"]), _SPACES)
    )


CONDITIONS: Final = st.recursive(comparisons(), _combined, max_leaves=8)


def _truth(condition: Condition) -> bool | None:
    """An oracle: whether the values above fulfil a condition, None where they can't tell."""
    if isinstance(condition, Comparison):
        return condition.holds(VALUES[condition.name]) if condition.name in VALUES else None
    if isinstance(condition, Not):
        inner = _truth(condition.operand)
        return None if inner is None else not inner
    assert isinstance(condition, And | Or)
    truths = [_truth(operand) for operand in condition.operands]
    if isinstance(condition, And):
        return False if False in truths else None if None in truths else True
    return True if True in truths else None if None in truths else False


@given(CONDITIONS)
def test_a_condition_is_read_as_it_was_written(written: tuple[str, Condition]) -> None:
    text, condition = written
    read = condition_of([text])
    assert read is not None
    config = {**VALUES, "b": {"c": VALUES["b.c"]}}
    trial = Trial(TrialId("0001"), config={name: value for name, value in config.items() if name != "b.c"})
    # Another trial has the names that this one lacks.
    other = Trial(TrialId("0002"), config={**trial.config, **dict.fromkeys(LACKING, "")})

    chosen = selected([trial, other], read)

    assert (trial in chosen) == (_truth(condition) is True)


@given(CONDITIONS, st.data(), st.sampled_from([",", ";", "&", "|", "<", "!", "*", "x", "(", ")", "~"]))
def test_no_part_of_a_condition_is_ignored(written: tuple[str, Condition], data: st.DataObject, sign: str) -> None:
    text, _ = written
    stray = f"{text} {sign}" if data.draw(st.booleans()) else f"{sign} {text}"

    with pytest.raises(click.UsageError, match="not a condition"):
        condition_of([stray])
