"""What users write about configs and trials on the command line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import pytest
from book import Book

from mqtune import Results
from mqtune.cli import chosen, config_of, find_trial, in_order
from mqtune.core.errors import ConfigurationError
from mqtune.core.experiment import Experiment


@pytest.fixture
def experiment(mqtune_home: Path) -> Experiment:
    """Three trials with a loss and one without."""
    book = Book(mqtune_home / "mine")
    book.run("0001", 0.5, config={"lr": 0.1, "kind": "adam", "net": {"width": 8}})
    book.run("0002", math.nan, config={"lr": 0.2, "kind": "sgd", "net": {"width": 16}})
    book.run("0003", 0.3, 0.4, config={"lr": 1, "kind": "8", "net": {"width": 32}})
    book.stage("0004", {"lr": 2})
    book.save()
    return Results.load("mine").experiment


@pytest.mark.parametrize(
    ("texts", "config"),
    [
        (["lr=0.1,width=64"], {"lr": 0.1, "width": 64}),
        (["net.width=8,net.depth=2"], {"net": {"width": 8, "depth": 2}}),
        (['a=[1,2],b={"c":1},d=x'], {"a": [1, 2], "b": {"c": 1}, "d": "x"}),
        (['a="x,y",b=True,c=None,d=false'], {"a": "x,y", "b": True, "c": None, "d": False}),
        (['{"net.width": 8}'], {"net.width": 8}),
        (["a=b=c"], {"a": "b=c"}),
        (["x=:),lr=0.1"], {"x": ":)", "lr": 0.1}),
        (["x=(1,2),lr=0.1"], {"x": "(1,2)", "lr": 0.1}),
        ([r'x="a\"b,c",lr=0.1'], {"x": 'a"b,c', "lr": 0.1}),
        ([], {}),
    ],
)
def test_assignments_become_a_config(texts: list[str], config: dict[str, Any]) -> None:
    assert config_of(texts) == config


@pytest.mark.parametrize("text", ["lr", "=1", "a=1,", "a=1,a.b=2", "{nothing", "x=:(,lr=0.1", 'x="a,lr=0.1'])
def test_what_is_no_assignment_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError):
        config_of([text])


def test_a_metric_that_is_maximized_is_sorted_with_its_highest_first(mqtune_home: Path) -> None:
    book = Book(mqtune_home / "up", mode="max")
    book.run("0001", 0.5)
    book.run("0002", 0.7)
    book.save()
    experiment = Results.load("up").experiment

    for name in ("loss", "best", "last.loss"):
        assert [trial.id for trial in in_order(experiment, experiment.trials.values(), name)] == ["0002", "0001"]


def test_trials_are_named_in_short(experiment: Experiment) -> None:
    for given, id_ in (("3", "0003"), ("0003", "0003"), ("03", "0003"), ("best", "0003")):
        assert find_trial(experiment, given) == id_
    with pytest.raises(ConfigurationError, match="trial '00' may be any of '0001', '0002', '0003', '0004'"):
        find_trial(experiment, "00")
    with pytest.raises(ConfigurationError, match="no trial '9'; it has 0001 to 0004"):
        find_trial(experiment, "9")


def test_a_name_is_the_very_one_or_the_only_beginning() -> None:
    assert chosen("experiment", "a", ["a", "ab"]) == "a"
    assert chosen("experiment", "ab", ["a", "abc", "abc"]) == "abc"
    assert chosen("experiment", "", ["a"]) is None
