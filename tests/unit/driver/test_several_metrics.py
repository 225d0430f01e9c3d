"""An experiment with several metrics: what counts for a trial, which trials no other beats, and who refuses such an experiment."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from book import Book
from click.testing import CliRunner
from optuna.study._multi_objective import _fast_non_domination_rank

import mqtune
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError, MetricMissing, MqtuneError
from mqtune.core.objective import Objective, pareto_front
from mqtune.core.trial import AttemptEnd, Config, Metrics, Point, TrialStatus
from mqtune.driver import DefinitionWriter, Plan, Settings
from mqtune.results.results import Results
from mqtune.schedulers.stopping.rule import StopRule

BOTH: dict[str, Any] = {"metric": ["loss", "speed"], "mode": ["min", "max"]}
SPACE = {"x": mqtune.uniform(0, 1)}


# What is optimised.


@pytest.mark.parametrize(
    ("metric", "mode", "metrics", "modes"),
    [
        ("loss", "min", ("loss",), ("min",)),
        (["loss"], ["max"], ("loss",), ("max",)),
        (("loss", "speed"), ["min", "max"], ("loss", "speed"), ("min", "max")),
        (["loss", "speed"], "max", ("loss", "speed"), ("max", "max")),
    ],
)
def test_metrics_and_modes_are_spelled_as_one_or_as_lists(
    metric: Any, mode: Any, metrics: tuple[str, ...], modes: tuple[str, ...]
) -> None:
    objective = Objective.of(metric, mode)
    assert (objective.metrics, objective.modes) == (metrics, modes)
    assert Objective.of(objective.metric, objective.mode) == objective


@pytest.mark.parametrize(
    ("metric", "mode", "says"),
    [
        (["loss", "speed"], ["min"], r"metric=\['loss', 'speed'\], mode=\['min'\]: give one mode for each metric"),
        ([], [], "give one mode for each metric, at least one"),
        (["loss", "loss"], "min", "a metric is there twice"),
        (["loss", ""], "min", "metric='' is not a name"),
        (["loss", "speed"], ["min", "most"], "mode='most' is neither 'min' nor 'max'"),
        (3, "min", "metric=3 is not a name"),
        (["loss", "speed"], None, "mode=None: give 'min' or 'max'"),
    ],
)
def test_what_can_not_be_optimised_is_refused_when_it_is_said(metric: Any, mode: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        mqtune.Tuner(train, SPACE, metric=metric, mode=mode, max_trials=1)


def train(config: Config) -> None:
    for step in range(1, 4):
        mqtune.report({"loss": (1 + config["x"]) / step, "speed": config["x"] * 10})


# The Pareto front.


class At(NamedTuple):
    point: Point


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_front_is_the_first_one_of_a_non_dominated_sort(size: int) -> None:
    import numpy as np

    rng = random.Random(size)
    for _ in range(100):
        points = [tuple(float(rng.randrange(6)) for _ in range(size)) for _ in range(rng.randrange(1, 25))]
        ranks = _fast_non_domination_rank(np.array(points))
        first = sorted(point for point, rank in zip(points, ranks, strict=True) if rank == 0)
        assert [each.point for each in pareto_front(map(At, points))] == first


# What counts.


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "mine", **BOTH)


def run(book: Book, trial: str, *metrics: Metrics, end: AttemptEnd | None = AttemptEnd.COMPLETED) -> None:
    book.stage(trial, {"x": int(trial)})
    book.report(trial, *metrics)
    if end is not None:
        book.end(trial, end)


def both(loss: float, speed: float) -> Metrics:
    return {"loss": loss, "speed": speed}


def front(results: Results) -> list[str]:
    return [str(each.id) for each in results.pareto_front]


def results_of(book: Book) -> Results:
    return Results.load(book.save())


def test_the_trials_that_no_other_beats_are_on_the_front(book: Book) -> None:
    run(book, "0001", both(1, 5))
    run(book, "0002", both(2, 4))
    run(book, "0003", both(3, 9))
    run(book, "0004", both(1, 5))
    run(book, "0005", both(0.5, 1), end=None)

    results = results_of(book)

    assert front(results) == ["0005", "0001", "0004", "0003"]
    first = results.pareto_front[0]
    assert (first.metrics, first.config, first.status) == (both(0.5, 1), {"x": 5}, TrialStatus.RUNNING)
    assert (first.values, repr(first)) == (both(0.5, 1), "<trial 0005 RUNNING: loss=0.5, speed=1, config={'x': 5}>")
    assert results.best_by("loss").id == "0005"
    assert (results.best_by("speed").id, results.best_by("speed").value) == ("0003", 9)
    assert "4 on the Pareto front" in repr(results)


def test_a_trial_counts_with_its_last_report_that_has_all_metrics(book: Book) -> None:
    run(book, "0001", both(1, 1), both(4, 2), {"loss": 0}, {"loss": None, "speed": 7}, both(float("nan"), 9), end=None)
    run(book, "0002", both(5, 1))

    results = results_of(book)

    assert [(each.id, each.metrics) for each in results.pareto_front] == [("0001", both(4, 2))]
    assert list(results.array("loss")) == [4, 5]


def test_what_is_given_up_takes_its_place_on_the_front_with_it(book: Book) -> None:
    run(book, "0001", both(1, 9), end=None)
    run(book, "0002", both(2, 8))
    run(book, "0003", both(3, 7))
    assert front(results_of(book)) == ["0001"]

    book.decide("0001", "abandon", "by hand")
    assert front(results_of(book)) == ["0002"]
    book.end("0001", AttemptEnd.STOPPED)
    assert front(results_of(book)) == ["0002"]


def test_no_one_trial_is_the_best_and_the_error_says_what_to_ask_for(book: Book) -> None:
    run(book, "0001", both(1, 5))
    results = results_of(book)

    with pytest.raises(
        ConfigurationError, match=r"'loss' and 'speed'.*results.pareto_front.*results.best_by\('loss'\)"
    ):
        _ = results.best
    with pytest.raises(ConfigurationError, match=r"best_by\('accuracy'\).*optimises 'loss' and 'speed'"):
        results.best_by("accuracy")
    with pytest.raises(ConfigurationError, match="no trial is the best by all"):
        results.get_checkpoint()
    with pytest.raises(ConfigurationError, match="no checkpoint is the best by all; give 'newest'"):
        results.get_checkpoint("0001", "best")
    results.raise_if_failed()


def test_one_metric_has_a_front_of_its_best_trial(tmp_path: Path) -> None:
    book = Book(tmp_path / "one")
    assert results_of(book).pareto_front == []
    book.run("0001", 2.0)
    book.run("0002", 1.0)

    results = results_of(book)

    assert front(results) == ["0002"]
    assert results.best_by("loss").value == results.best.value == 1.0


def test_a_trial_that_never_had_all_metrics_in_one_report_has_failed(book: Book) -> None:
    run(book, "0001", {"loss": 1}, {"speed": 2})

    results = results_of(book)

    assert results["0001"].status is TrialStatus.FAILED
    assert results["0001"].reason == (
        "none of its 2 reports has a number for 'loss' and 'speed' (the last has speed=2): call "
        "mqtune.report({'loss': …, 'speed': …}), or have a script print [tune-metric]: {\"loss\": …, \"speed\": …}"
    )
    with pytest.raises(MetricMissing, match="'loss' and 'speed'"):
        results.best_by("loss")
    with pytest.raises(mqtune.core.errors.TrialFailed):
        results.raise_if_failed()


# Where it is shown.


def test_the_front_is_saved_and_shown(mqtune_home: Path) -> None:
    book = Book(mqtune_home / "mine", **BOTH)
    run(book, "0001", both(2, 5))
    run(book, "0002", both(2.5, 4))
    run(book, "0003", both(3, 9))
    results = results_of(book)

    summary = results.summary()
    assert (summary["metric"], summary["mode"], summary["best"]) == (["loss", "speed"], ["min", "max"], None)
    assert summary["pareto_front"] == [
        {"trial": "0001", "status": "completed", "config": {"x": 1}, "metrics": both(2, 5)},
        {"trial": "0003", "status": "completed", "config": {"x": 3}, "metrics": both(3, 9)},
    ]
    rows = list(csv.DictReader(results.csv().splitlines()))
    assert [(row["trial"], row["on_front"], row["metrics.speed"]) for row in rows] == [
        ("0001", "True", "5"),
        ("0002", "False", "4"),
        ("0003", "True", "9"),
    ]
    assert "best" not in rows[0]

    shown = CliRunner().invoke(group, ["show", "mine"]).output
    assert "Pareto front: 2 trials, loss 2 to 3, speed 5 to 9" in shown
    table = [line.split() for line in shown.splitlines() if line.startswith(("trial", "0"))]
    assert table[0][:6] == ["trial", "status", "iteration", "loss", "speed", "front"]
    assert [(row[0], row[3], row[4], row[5] == "yes") for row in table[1:]] == [
        ("0001", "2", "5", True),
        ("0003", "3", "9", True),
        ("0002", "2.5", "4", False),
    ]
    one = CliRunner().invoke(group, ["show", "mine", "1"]).output
    assert "1 report · loss=2, speed=5" in one
    assert "Pareto front: 2" in CliRunner().invoke(group, ["list"]).output


# Who goes by several.


def plan(**given: Any) -> Plan:
    usual: dict[str, Any] = {
        "trainable": train,
        "space": SPACE,
        "backend": None,
        "max_trials": 1,
        "failures": mqtune.Failures(),
    }
    names = ("searcher", "scheduler", "stop", "resources", "name", "seed")
    others = {
        **dict.fromkeys(names),
        "checkpoints": mqtune.Checkpoints(),
        "process": mqtune.Process(),
        "run": mqtune.RunOptions(),
    }
    return Plan(Settings.of(**{**others, **usual, **BOTH, **given}))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"searcher": "random"},
        {"searcher": mqtune.PointsFirst([{"x": 0.5}])},
        {"scheduler": mqtune.FIFO()},
        {"stop": {"loss": 0.1, "epoch": 3}},
        {
            "stop": mqtune.schedulers.stopping.MaximumIteration(3)
            | mqtune.TimeLimit(3)
            | mqtune.schedulers.stopping.TrialsEnded(3)
            | mqtune.schedulers.stopping.ReportsReceived(9)
        },
        {"stop": mqtune.TrialPlateau("loss") & mqtune.schedulers.stopping.MaximumIteration(3)},
        {"stop": mqtune.ExperimentPlateau("speed")},
        {"stop": mqtune.ExperimentPlateau("accuracy", mode="max")},
        {"stop": lambda trial, report: False},
    ],
)
def test_what_names_its_metric_or_does_without_goes_with_several(given: dict[str, Any]) -> None:
    assert plan(**given).objective.metrics == ("loss", "speed")


class Own(StopRule):
    """A rule of a user's that has never heard of several metrics."""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"scheduler": mqtune.ASHA(9)},
            r"ASHA goes by one metric, and the experiment has 'loss' and 'speed': give mqtune.MOASHA",
        ),
        ({"scheduler": mqtune.PromotionASHA(9)}, "PromotionASHA goes by one metric"),
        ({"scheduler": mqtune.HyperBand(9)}, "HyperBand goes by one metric"),
        ({"scheduler": mqtune.MedianStopping()}, "MedianStopping goes by one metric"),
        ({"scheduler": mqtune.PBT(2, SPACE)}, "PBT goes by one metric"),
        ({"stop": mqtune.TargetReached(1)}, "TargetReached goes by one metric.*give one that names its metric"),
        ({"stop": mqtune.TimeLimit(3) | mqtune.TrialPlateau()}, "TrialPlateau goes by one metric"),
        ({"stop": mqtune.ExperimentPlateau()}, "ExperimentPlateau goes by one metric"),
        ({"stop": mqtune.ExperimentPlateau("speed", mode="min")}, "of which the experiment wants the max"),
        ({"stop": mqtune.ExperimentPlateau("accuracy")}, "'accuracy' is not the experiment's metric"),
        (
            {"searcher": mqtune.Repeater("x"), "space": {"x": mqtune.choice([1, 2]), "y": mqtune.uniform(0, 1)}},
            'Repeater goes by one metric.*searcher="tpe"',
        ),
        ({"searcher": mqtune.WarmStart([({"x": 1}, 0.5)])}, "WarmStart goes by one metric"),
        ({"stop": Own()}, "Own goes by one metric"),
    ],
)
def test_what_goes_by_one_metric_is_refused_when_the_tuner_is_made(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        plan(**given)


def test_a_bound_is_reached_by_the_mode_of_its_metric() -> None:
    found = simulated(stop={"loss": 0.55, "speed": 7}, max_trials=20)
    for each in found:
        by_loss, by_speed = each.metrics["loss"] <= 0.55, each.metrics["speed"] >= 7
        assert (each.reason != "") is (by_loss or by_speed)


# Runs.


def curve(config: Config) -> Iterator[tuple[float, Metrics]]:
    for step in range(1, 4):
        yield 1.0, both((1 + config["x"]) / step, config["x"] * 10)


def simulated(reports: Callable[[Config], Any] = curve, **given: Any) -> Results:
    usual: dict[str, Any] = {"run": mqtune.RunOptions(progress=False), "seed": 1, "max_trials": 5, **BOTH}
    tuner = mqtune.Tuner(train, SPACE, backend=mqtune.Simulated(reports, slots=2), **{**usual, **given})
    try:
        return tuner.run()
    finally:
        tuner.close()


def test_a_first_report_that_lacks_one_of_the_metrics_ends_the_run(mqtune_home: Path) -> None:
    with pytest.raises(MetricMissing, match=r"metric='speed' is not in the first report.*did you mean 'sped'"):
        simulated(lambda config: [(1.0, {"loss": 1, "sped": 2})])


def test_metrics_that_come_later_count_from_then_on(mqtune_home: Path) -> None:
    results = simulated(
        lambda _: [(1.0, {"loss": 1}), (1.0, both(2, 3))], failures=mqtune.Failures(metric_from="later")
    )
    assert [each.metrics["loss"] for each in results.pareto_front] == [2] * 5


def test_a_function_can_not_return_one_number_for_several_metrics() -> None:
    from mqtune.trainable.function import _as_metrics

    class Session:
        message = {"options": {"metric": ["loss", "speed"]}}  # noqa: RUF012 - as a session has it

    with pytest.raises(
        TypeError, match=r"train returned 0.5, which is float; give a dict of the metrics \['loss', 'speed'\]"
    ):
        _as_metrics(0.5, "train returned", Session())  # type: ignore[arg-type]


def test_another_experiment_of_the_name_differs_in_its_metrics() -> None:
    first = DefinitionWriter(plan(name="mine", seed=1))
    kept = mqtune.core.codec.encode_value(first.definition(None))
    assert DefinitionWriter(plan(name="mine")).definition(kept)["metric"] == ["loss", "speed"]
    with pytest.raises(MqtuneError, match=r"mode was \['min', 'max'\] and is \['min', 'min'\]"):
        DefinitionWriter(plan(name="mine", mode="min")).definition(kept)
