"""Bounds on what trials report: which trials keep to them, what searchers learn, and how results, pictures and tables say it."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import optuna
import pytest
from book import Book
from click.testing import CliRunner
from optuna.trial import TrialState

import mqtune
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError, MetricMissing
from mqtune.core.trial import Attempt, Config, Report, Trial, TrialId, TrialStatus
from mqtune.integrations.optuna import OptunaSearcher
from mqtune.results.plots.plots import Plots
from mqtune.results.results import Results
from mqtune.search.base import Searcher
from mqtune.search.points import searcher_of
from mqtune.search.space import Space

LIMIT = ["latency <= 10"]
SPACE = {"x": mqtune.uniform(0, 1), "y": mqtune.uniform(0, 1)}


def train(config: Config) -> None:
    """Stand for a trainable: the simulated backend doesn't call it."""


def of(folder: Path, *trials: list[tuple[float, float | None]], **options: Any) -> Results:
    """Return the results of completed trials that have reported these losses and latencies."""
    book = Book(folder, outcome_constraints=LIMIT, **options)
    for number, reports in enumerate(trials, 1):
        id_ = f"{number:04d}"
        book.stage(id_)
        for loss, latency in reports:
            book.report(id_, {"loss": loss, "speed": -loss} | ({} if latency is None else {"latency": latency}))
        book.end(id_)
    book.finish()
    return Results.load(book.save())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (["latency < 10"], 'is not a metric, "<=" or ">=", and a number'),
        (["2 * latency <= 10"], 'is not a metric, "<=" or ">=", and a number'),
        (["latency <= 0.9 * baseline"], 'is not a metric, "<=" or ">=", and a number'),
        (["<= 3"], 'is not a metric, "<=" or ">=", and a number'),
        (["latency <= nan"], 'is not a metric, "<=" or ">=", and a number'),
        ([3], 'is not a metric, "<=" or ">=", and a number'),
        ("latency <= 10", r'outcome_constraints=.* is not a list; write \["latency'),
    ],
)
def test_a_constraint_that_can_not_be_meant_is_named_at_once(text: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        OptunaSearcher(outcome_constraints=text)


def test_where_all_but_the_metric_is_unknown_constraints_are_refused() -> None:
    limited = OptunaSearcher(outcome_constraints=LIMIT)

    with pytest.raises(
        ConfigurationError, match=r"outcome_constraints=\['latency <= 10'\] of OptunaSearcher: .*leave them out"
    ):
        mqtune.Repeater("seed", limited)
    with pytest.raises(ConfigurationError, match="learns nothing from other trials"):
        mqtune.WarmStart([({"x": 0.5, "y": 1}, 1.0)], limited)


def test_a_driver_that_goes_on_and_points_that_come_first_have_them_too() -> None:
    searcher = mqtune.PointsFirst([{"x": 0.5}], OptunaSearcher(outcome_constraints=LIMIT))
    searcher.bind(Space(SPACE), 1, metric="loss", mode="min")

    assert searcher.outcome_constraints == LIMIT
    assert searcher_of(searcher.describe(), Space(SPACE)).outcome_constraints == LIMIT


# Which trials keep to them.


def test_the_best_trial_is_the_best_of_those_that_keep_to_the_constraints(tmp_path: Path) -> None:
    results = of(
        tmp_path / "limited",
        [(0.1, 30)],
        [(0.5, 5), (0.2, 20), (0.4, 9)],
        [(0.3, None)],
        [(0.05, 11), (0.9, 10), (0.6, 12)],
        [(0.45, 1)],
    )

    assert (results.best.id, results.best.value, results.best.metrics["latency"]) == ("0002", 0.4, 9)
    assert [each.id for each in results if each.is_feasible] == ["0002", "0004", "0005"]
    # By its own best report, where one kept to the constraint; else by its best one of all.
    assert [each.value for each in results] == [0.1, 0.4, 0.3, 0.9, 0.45]
    assert results.best_trial("last").id == "0002"
    assert results.best_trial("avg").id == "0002"


def test_where_none_keeps_to_them_there_is_no_best_and_the_error_says_so(tmp_path: Path) -> None:
    results = of(tmp_path / "strict", [(0.1, 30)], [(0.2, 11)])

    with pytest.raises(MetricMissing, match="no best trial: none of its trials keeps to latency <= 10"):
        _ = results.best
    with pytest.raises(MetricMissing, match="keeps to latency <= 10"):
        results.raise_if_failed()
    assert results.pareto_front == []
    assert [series.name for series in Plots(results).history().panels[0].series] == ["infeasible"]


def test_when_the_best_one_is_abandoned_the_next_one_that_keeps_to_them_is(tmp_path: Path) -> None:
    book = Book(tmp_path / "given-up", outcome_constraints=LIMIT)
    for id_, loss, latency in (("0001", 0.1, 1), ("0002", 0.2, 99), ("0003", 0.3, 2)):
        book.stage(id_)
        book.report(id_, {"loss": loss, "latency": latency})
    book.decide("0001", "abandon", "by hand")

    assert Results.load(book.save()).best.id == "0003"


def test_the_front_has_the_trials_whose_last_report_keeps_to_them(tmp_path: Path) -> None:
    several: dict[str, Any] = {"metric": ["loss", "speed"], "mode": ["min", "max"]}
    results = of(
        tmp_path / "several", [(0.1, 30)], [(0.5, 50), (0.4, 9)], [(0.2, 5), (0.3, 50)], [(0.4, None)], **several
    )
    assert [each.id for each in results.pareto_front] == ["0002"]

    book = Book(tmp_path / "open", outcome_constraints=LIMIT, **several)
    book.stage("0001")
    book.report("0001", {"loss": 1.0, "speed": 1.0, "latency": 3})
    assert [each.id for each in Results.load(book.save()).pareto_front] == ["0001"]
    book.report("0001", {"loss": 0.5, "speed": 1.0, "latency": 13})
    assert Results.load(book.save()).pareto_front == []


def test_tables_and_pictures_say_which_trials_violate_them(tmp_path: Path) -> None:
    results = of(tmp_path / "shown", [(0.1, 30)], [(0.5, 5), (0.2, 20), (0.4, 9)], [(0.45, 1)])

    results.to_csv(tmp_path / "trials.csv")
    rows = list(csv.DictReader((tmp_path / "trials.csv").read_text().splitlines()))
    assert [row["feasible"] for row in rows] == ["False", "True", "True"]
    shown = CliRunner().invoke(group, ["show", str(results.folder)]).output
    assert "feasible" in shown
    (panel,) = Plots(results).history().panels
    points = {series.name: series.y for series in panel.series}
    assert points == {"infeasible": [0.1], "completed": [0.4, 0.45], "best so far": [0.4, 0.4]}


# What searchers learn.


def test_samplers_know_by_how_much_a_trial_violates_them() -> None:
    searcher = OptunaSearcher(outcome_constraints=["latency <= 10", "room >= 2"])
    searcher.bind(Space(SPACE), 1, metric="loss", mode="min")
    for number, more in enumerate([{"latency": 12, "room": 5}, {"latency": 4, "room": 1.5}, {"latency": 4}], 1):
        id_ = TrialId(f"{number:04d}")
        config: Any = searcher.suggest(id_)
        trial = Trial(id_, config, TrialStatus.COMPLETED, [Attempt(1, 0.0, config)], reports=1)
        searcher.on_stage(trial)
        searcher.on_report(trial, Report(id_, 1, 1, 0.0, {"loss": 1.0, "training_iteration": 1, **more}))
        searcher.on_trial_end(trial)

    seen = searcher._study.trials
    assert [each.system_attrs.get("constraints") for each in seen] == [[2, -3], [-6, 0.5], None]
    # What nobody knows to keep to them must not pass for one that does.
    assert [each.state for each in seen] == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL]


@pytest.mark.parametrize("several", [False, True])
def test_tpe_proposes_more_that_keeps_to_a_constraint_than_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, several: bool
) -> None:
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path))

    def run(name: str, searcher: Searcher) -> Results:
        return mqtune.Tuner(
            train,
            SPACE,
            metric=["loss", "other"] if several else "loss",
            mode="min",
            searcher=searcher,
            max_trials=60,
            seed=1,
            name=name,
            backend=mqtune.Simulated(
                lambda each: [(1.0, {"loss": each["x"], "other": each["y"], "sum": each["x"] + each["y"]})]
            ),
            run=mqtune.RunOptions(progress=False),
        ).run()

    limit = ["sum >= 1.6"]
    by_model = run("model", OptunaSearcher(outcome_constraints=limit))
    by_chance = run("chance", OptunaSearcher(optuna.samplers.RandomSampler(seed=1), outcome_constraints=limit))
    late = [sum(each.is_feasible for each in list(found)[30:]) for found in (by_model, by_chance)]
    assert late[0] > late[1] + 8
    assert all(each.metrics["sum"] >= 1.6 for each in by_model.pareto_front)
    again = Results.load(by_model.folder)
    assert [each.id for each in again.pareto_front] == [each.id for each in by_model.pareto_front]
