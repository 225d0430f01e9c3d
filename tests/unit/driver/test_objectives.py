"""Several metrics and bounds on them: values of trials, refusals, results and pictures."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from book import Book
from optuna.samplers import RandomSampler
from optuna.study._multi_objective import _fast_non_domination_rank
from optuna.trial import TrialState

import mqtune
from mqtune import Results, Space
from mqtune.core.errors import ConfigurationError, MetricMissing
from mqtune.core.experiment import Experiment
from mqtune.core.objective import Objective, pareto_front
from mqtune.core.trial import (
    Attempt,
    AttemptEnd,
    CheckpointId,
    Config,
    Metrics,
    Point,
    Report,
    SavedCheckpoint,
    Trial,
    TrialId,
    TrialStatus,
)
from mqtune.driver import Retention
from mqtune.integrations import OptunaSearcher
from mqtune.results import Plots, checkpoint_of
from mqtune.schedulers.stopping import StopRule

BOTH: dict[str, Any] = {"metric": ["loss", "speed"], "mode": ["min", "max"]}

ONE_NUMBER = {"x": mqtune.uniform(0, 1)}


@pytest.mark.parametrize(
    ("metric", "mode", "says"),
    [
        (["loss", "speed"], ["min"], r"metric=\['loss', 'speed'\], mode=\['min'\]: give one mode for each metric"),
        ([], [], "give one mode for each metric, at least one"),
        (["loss", "loss"], "min", "a metric is given twice"),
        (["loss", ""], "min", "metric='' is not a name"),
        (["loss", "speed"], ["min", "most"], "mode='most' is neither 'min' nor 'max'"),
        (3, "min", "metric=3 is not a name"),
        (["loss", "speed"], None, "mode=None: give 'min' or 'max'"),
    ],
)
def test_what_can_not_be_optimised_is_refused_when_it_is_said(metric: Any, mode: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        mqtune.Tuner(train_both, ONE_NUMBER, metric=metric, mode=mode, max_trials=1)


def train_both(config: Config) -> None:
    """It is named, and never called."""


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


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path / "mine", **BOTH)


def run_trial(book: Book, trial: str, *metrics: Metrics, end: AttemptEnd | None = AttemptEnd.COMPLETED) -> None:
    book.stage(trial, {"x": int(trial)})
    book.report(trial, *metrics)
    if end is not None:
        book.end(trial, end)


def both(loss: float, speed: float) -> Metrics:
    return {"loss": loss, "speed": speed}


def front(results: Results) -> list[str]:
    return [str(each.id) for each in results.pareto_front]


def test_the_trials_that_no_other_beats_are_on_the_front(book: Book) -> None:
    run_trial(book, "0001", both(1, 5))
    run_trial(book, "0002", both(2, 4))
    run_trial(book, "0003", both(3, 9))
    run_trial(book, "0004", both(1, 5))
    run_trial(book, "0005", both(0.5, 1), end=None)

    results = Results.load(book.save())

    assert front(results) == ["0005", "0001", "0004", "0003"]
    first = results.pareto_front[0]
    assert (first.metrics, first.config, first.status) == (both(0.5, 1), {"x": 5}, TrialStatus.RUNNING)
    assert (first.values, repr(first)) == (both(0.5, 1), "<trial 0005 RUNNING: loss=0.5, speed=1, config={'x': 5}>")
    assert results.best_by("loss").id == "0005"
    assert (results.best_by("speed").id, results.best_by("speed").value) == ("0003", 9)
    assert "4 on the Pareto front" in repr(results)


def test_a_trial_counts_with_its_last_report_that_has_all_metrics(book: Book) -> None:
    run_trial(
        book, "0001", both(1, 1), both(4, 2), {"loss": 0}, {"loss": None, "speed": 7}, both(float("nan"), 9), end=None
    )
    run_trial(book, "0002", both(5, 1))

    results = Results.load(book.save())

    assert [(each.id, each.metrics) for each in results.pareto_front] == [("0001", both(4, 2))]
    assert list(results.array("loss")) == [4, 5]


def test_no_one_trial_is_the_best_and_the_error_says_what_to_ask_for(book: Book) -> None:
    run_trial(book, "0001", both(1, 5))
    results = Results.load(book.save())

    with pytest.raises(ConfigurationError, match=r"'loss' and 'speed'.*results.pareto_front.*best_by\('loss'\)"):
        _ = results.best
    with pytest.raises(ConfigurationError, match=r"best_by\('accuracy'\).*optimises 'loss' and 'speed'"):
        results.best_by("accuracy")
    with pytest.raises(ConfigurationError, match="no trial is the best by all"):
        results.get_checkpoint()
    with pytest.raises(ConfigurationError, match="no checkpoint is the best by all; give 'newest'"):
        results.get_checkpoint("0001", "best")
    results.raise_if_failed()


def test_a_trial_that_never_had_all_metrics_in_one_report_has_failed(book: Book) -> None:
    run_trial(book, "0001", {"loss": 1}, {"speed": 2})

    results = Results.load(book.save())

    assert results["0001"].status is TrialStatus.FAILED
    assert results["0001"].reason == (
        "none of its 2 reports has a number for 'loss' and 'speed' (the last has speed=2): call "
        "mqtune.report({'loss': …, 'speed': …}) in the training; a script without mqtune prints a line instead: "
        '[tune-metric]: {"loss": …, "speed": …}'
    )
    with pytest.raises(MetricMissing, match="'loss' and 'speed'"):
        results.best_by("loss")
    with pytest.raises(mqtune.core.errors.TrialFailed):
        results.raise_if_failed()


class Own(StopRule):
    """A user's rule without support for several metrics."""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scheduler": mqtune.ASHA(9)}, "ASHA supports one metric, and .* has 'loss' and 'speed': give mqtune.MOASHA"),
        ({"scheduler": mqtune.PromotionASHA(9)}, "PromotionASHA supports one metric"),
        ({"scheduler": mqtune.HyperBand(9)}, "HyperBand supports one metric"),
        ({"scheduler": mqtune.MedianStopping()}, "MedianStopping supports one metric"),
        ({"scheduler": mqtune.PBT(2, ONE_NUMBER)}, "PBT supports one metric"),
        ({"stop": mqtune.TargetReached(1)}, "TargetReached supports one metric.*give one that names its metric"),
        ({"stop": mqtune.TimeLimit(3) | mqtune.TrialPlateau()}, "TrialPlateau supports one metric"),
        ({"stop": mqtune.ExperimentPlateau()}, "ExperimentPlateau supports one metric"),
        ({"stop": mqtune.ExperimentPlateau("speed", mode="min")}, "of which the experiment wants the max"),
        ({"stop": mqtune.ExperimentPlateau("accuracy")}, "'accuracy' is not the experiment's metric"),
        (
            {"searcher": mqtune.Repeater("x"), "space": {"x": mqtune.choice([1, 2]), "y": mqtune.uniform(0, 1)}},
            'Repeater supports one metric.*searcher="tpe"',
        ),
        ({"searcher": mqtune.WarmStart([({"x": 1}, 0.5)])}, "WarmStart supports one metric"),
        ({"stop": Own()}, "Own supports one metric"),
    ],
)
def test_what_goes_by_one_metric_is_refused_when_the_tuner_is_made(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        mqtune.Tuner(train_both, **{"space": ONE_NUMBER, "max_trials": 1, **BOTH, **given})


LIMIT = "latency <= 10"

LIMITED = ["loss", LIMIT]

SPACE = {"x": mqtune.uniform(0, 1), "y": mqtune.uniform(0, 1)}


def of(folder: Path, *trials: list[tuple[float, float | None]], **options: Any) -> Results:
    """Return the results of completed trials that have reported these losses and latencies."""
    book = Book(folder, **{"metric": LIMITED, **options})
    for number, reports in enumerate(trials, 1):
        id_ = f"{number:04d}"
        book.stage(id_)
        for loss, latency in reports:
            book.report(id_, {"loss": loss, "speed": -loss} | ({} if latency is None else {"latency": latency}))
        book.end(id_)
    book.finish()
    return Results.load(book.save())


def tuner_of(metric: Any = LIMITED, **options: Any) -> mqtune.Tuner:
    """Return a limited whose trials report a loss of x, and a latency of 20 y at their ends."""
    usual: dict[str, Any] = {
        "mode": "min",
        "max_trials": 6,
        "seed": 1,
        "backend": mqtune.Simulated(
            lambda each: [(1.0, {"loss": each["x"]}), (1.0, {"loss": each["x"] / 2, "latency": 20 * each["y"]})],
            keep_journal=True,
        ),
        "run": mqtune.RunOptions(progress=False),
    }
    return mqtune.Tuner(train_both, **{"space": SPACE, "metric": metric, **usual, **options})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path))
    return tmp_path


NO_BOUND = ("latency < 10", "latency == 10", "2 * latency <= 10", "latency <= 0.9 * baseline", "<= 3", "latency <= nan")


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        *((["loss", text], r'is not a metric, "<=" or ">=", and a number') for text in NO_BOUND),
        (["loss", 3], "metric=3 is not"),
        *(
            (alone, r"only constraints; give the metric .*: metric=\['loss', 'latency <= 10'\]")
            for alone in (LIMIT, [LIMIT])
        ),
    ],
)
def test_a_constraint_that_can_not_be_meant_or_stands_alone_is_named_at_once(metric: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        tuner_of(metric)


def test_where_all_but_the_metric_is_unknown_constraints_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Repeater: OptunaSearcher learns only the mean .* latency <= 10"):
        tuner_of(space={**SPACE, "seed": mqtune.choice([1, 2])}, searcher=mqtune.Repeater("seed", OptunaSearcher()))
    with pytest.raises(ConfigurationError, match=r"WarmStart: .* whether the past trials meet latency <= 10; leave"):
        tuner_of(searcher=mqtune.WarmStart([({"x": 0.5, "y": 1}, 1.0)]))


def test_a_name_that_no_report_has_is_a_mistake_as_soon_as_a_trial_has_completed(home: Path) -> None:
    with pytest.raises(MetricMissing, match=r"a number for 'latenzy', .* bound latenzy <= 10"):
        tuner_of(["loss", "latenzy <= 10"]).run()
    kept = mqtune.Failures(accept_no_report=True)
    assert len(tuner_of(["loss", "latenzy <= 10"], failures=kept).run()) == 6


def test_the_best_trial_is_the_best_of_those_that_keep_to_the_constraints(tmp_path: Path) -> None:
    trials = (
        [(0.1, 30)],
        [(0.5, 5), (0.2, 20), (0.4, 9)],
        [(0.3, None)],
        [(0.05, 11), (0.9, 10), (0.6, 12)],
        [(0.45, 1)],
    )
    results = of(tmp_path / "limited", *trials)

    assert (results.best.id, results.best.value, results.best.metrics["latency"]) == ("0002", 0.4, 9)
    assert [each.id for each in results if each.is_feasible] == ["0002", "0004", "0005"]
    # By its own best report, where one kept to the constraint; else by its best one of all.
    assert [each.value for each in results] == [0.1, 0.4, 0.3, 0.9, 0.45]
    assert results.best_trial("last").id == "0002"
    assert results.best_trial("avg").id == "0002"


def test_where_none_keeps_to_them_there_is_no_best_and_the_error_says_so(tmp_path: Path) -> None:
    results = of(tmp_path / "strict", [(0.1, 30)], [(0.2, 11)])

    with pytest.raises(MetricMissing, match="no best trial: no trial meets latency <= 10"):
        _ = results.best
    with pytest.raises(MetricMissing, match="meets latency <= 10"):
        results.raise_if_failed()
    assert results.pareto_front == []
    assert [series.name for series in Plots(results).history().panels[0].series] == ["infeasible"]


def test_rules_and_checkpoints_go_by_what_keeps_to_them(tmp_path: Path) -> None:
    results = of(tmp_path / "ruled", [(0.1, 30)], [(0.5, 5), (0.2, 20), (0.4, 9)])
    assert mqtune.TargetReached(0.3).stops_experiment(results.experiment, 0.0) == ""
    assert "0002 has reached" in mqtune.TargetReached(0.4).stops_experiment(results.experiment, 0.0)

    plateau = mqtune.ExperimentPlateau(top=2)
    plateau.check_objective(results.experiment.objective)
    plateau.bind("loss", "min")
    for number, latency in enumerate([1, 11, None, 1]):
        trial = Trial(TrialId(f"{number:04d}"), {}, TrialStatus.RUNNING)
        plateau.stops_trial(trial, Report(trial.id, 1, 1, 0.0, {"loss": 2.0, "latency": latency}))
        assert bool(plateau.stops_experiment(results.experiment, 0.0)) is (number == 3)


def test_the_best_checkpoint_is_the_best_that_keeps_to_them_and_is_kept(home: Path) -> None:
    trial = Trial(TrialId("0001"), {})
    for step, (loss, latency) in enumerate([(3.0, 1), (2.0, 9), (1.0, 30), (9.0, 1)], 1):
        id_ = CheckpointId(f"0001-1-{step}")
        trial.checkpoints[id_] = SavedCheckpoint(id_, float(step), {"loss": loss, "latency": latency})
        trial.checkpoint = id_
    experiment = Experiment("mine", metric=LIMITED, mode="min")
    limits = experiment.objective.constraints

    assert checkpoint_of(experiment, trial, "best") == "0001-1-2"
    assert Retention().of("loss", "min", limits).to_delete(trial.checkpoints) == ["0001-1-1", "0001-1-3"]
    # By another score the experiment's constraints say nothing.
    own = Retention(score="loss", mode="min").of("loss", "min", limits)
    assert own.to_delete(trial.checkpoints) == ["0001-1-1", "0001-1-2"]
    strict = Experiment("mine", metric=["loss", "latency <= 0"], mode="min")
    assert checkpoint_of(strict, trial, "best") == "0001-1-3"


def test_a_study_of_the_experiment_knows_by_how_much_trials_violate_them(tmp_path: Path) -> None:
    results = of(
        tmp_path / "studied", [(0.1, 30)], [(0.5, 5), (0.2, 20), (0.4, 9)], [(0.3, None)], space=Space(SPACE).describe()
    )
    study = results.to_optuna_study()

    assert [each.system_attrs["constraints"] for each in study.trials] == [[20], [-1], [math.inf]]
    assert study.best_trial.number == 1


def test_samplers_know_by_how_much_a_trial_violates_them() -> None:
    studies: list[Any] = []

    class Noting(RandomSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            studies.append(study)
            return super().infer_relative_search_space(study, trial)

    searcher = OptunaSearcher(sampler=Noting())
    searcher.check_objective(Objective.of(["loss", "latency <= 10", "room >= 2"], "min"))
    searcher.bind(Space(SPACE), 1, metric="loss", mode="min")
    odd = {"latency": math.nan, "room": 2}
    for number, more in enumerate([{"latency": 12, "room": 5}, {"latency": 4, "room": 1.5}, {"latency": 4}, odd], 1):
        id_ = TrialId(f"{number:04d}")
        config: Any = searcher.suggest(id_)
        trial = Trial(id_, config, TrialStatus.COMPLETED, [Attempt(1, 0.0, config)], reports=1)
        searcher.on_queue(trial)
        searcher.on_report(trial, Report(id_, 1, 1, 0.0, {"loss": 1.0, "training_iteration": 1, **more}))
        searcher.on_trial_end(trial)

    seen = studies[-1].trials
    # In proportion to their bounds, as samplers add them up.
    assert [each.system_attrs.get("constraints") for each in seen] == [[0.2, -1.5], [-0.6, 0.25], None, [math.inf, 0]]
    # A trial without a known value must not pass for one within the bounds.
    states = [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert [each.state for each in seen] == states
