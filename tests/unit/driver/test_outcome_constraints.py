"""Bounds on what trials report: which trials keep to them, what searchers learn, and how results, pictures and tables say it."""

from __future__ import annotations

import csv
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from book import Book
from click.testing import CliRunner
from optuna.trial import TrialState

import mqtune
from mqtune.cli import group
from mqtune.core.errors import ConfigurationError, MetricMissing, NameTaken
from mqtune.core.experiment import Experiment
from mqtune.core.objective import Objective
from mqtune.core.trial import (
    Attempt,
    CheckpointId,
    Config,
    Report,
    SavedCheckpoint,
    Trial,
    TrialId,
    TrialStatus,
)
from mqtune.driver import Retention
from mqtune.integrations.optuna import OptunaSearcher
from mqtune.results.checkpoints import checkpoint_of
from mqtune.results.plots.plots import Plots
from mqtune.results.results import Results
from mqtune.results.whatif import Replay
from mqtune.search.base import Searcher
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space
from mqtune.testing.worlds import happened

LIMIT = "latency <= 10"
LIMITED = ["loss", LIMIT]
SPACE = {"x": mqtune.uniform(0, 1), "y": mqtune.uniform(0, 1)}


def train(config: Config) -> None:
    """Stand for a trainable: the simulated backend doesn't call it."""


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


def tuner(metric: Any = LIMITED, **options: Any) -> mqtune.Tuner:
    """Return a tuner whose trials report a loss of x, and a latency of 20 y at their ends."""
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
    return mqtune.Tuner(train, **{"space": SPACE, "metric": metric, **usual, **options})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path))
    return tmp_path


# How they are said.


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("latency < 10", r'is not a metric, "<=" or ">=", and a number'),
        ("latency == 10", r'is not a metric, "<=" or ">=", and a number'),
        ("2 * latency <= 10", r'is not a metric, "<=" or ">=", and a number'),
        ("latency <= 0.9 * baseline", r'is not a metric, "<=" or ">=", and a number'),
        ("<= 3", r'is not a metric, "<=" or ">=", and a number'),
        ("latency <= nan", r'is not a metric, "<=" or ">=", and a number'),
        (3, "metric=3 is not"),
    ],
)
def test_a_constraint_that_can_not_be_meant_is_named_at_once(text: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        tuner(["loss", text])


@pytest.mark.parametrize("alone", [LIMIT, [LIMIT]])
def test_a_constraint_alone_is_nothing_to_optimise(alone: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"bounds alone; give what is optimised, too: metric=\['loss', 'latency <= 10'\]"
    ):
        tuner(alone)


def test_modes_are_those_of_what_is_optimised(home: Path) -> None:
    assert tuner(["loss", LIMIT, "speed"], mode=["min", "max"])._runner.plan.objective.modes == ("min", "max")
    with pytest.raises(ConfigurationError, match="give one mode for each metric"):
        tuner(["loss", LIMIT], mode=["min", "min"])


@pytest.mark.parametrize("name", ["outcome_constraints", "constraints_func"])
def test_who_gives_them_elsewhere_is_told_where_they_belong(name: str) -> None:
    where = r'metric=\["loss", "latency <= 10"\]'
    with pytest.raises(
        ConfigurationError, match=rf"OptunaSearcher has no argument '{name}'; do you mean Tuner\({where}\)"
    ):
        OptunaSearcher(**{name: [LIMIT]})
    with pytest.raises(ConfigurationError, match=f"Tuner has no argument '{name}'; do you mean {where}"):
        tuner("loss", **{name: [LIMIT]})


def test_where_all_but_the_metric_is_unknown_constraints_are_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"Repeater: OptunaSearcher learns of the mean .* latency <= 10; leave"
    ):
        tuner(space={**SPACE, "seed": mqtune.choice([1, 2])}, searcher=mqtune.Repeater("seed", OptunaSearcher()))
    with pytest.raises(
        ConfigurationError, match=r"WarmStart: .* nobody knows whether they keep to latency <= 10; leave"
    ):
        tuner(searcher=mqtune.WarmStart([({"x": 0.5, "y": 1}, 1.0)]))


def test_a_name_that_no_report_has_is_a_mistake_as_soon_as_a_trial_has_completed(home: Path) -> None:
    with pytest.raises(
        MetricMissing, match=r"no report has had a number for 'latenzy', .* to latenzy <= 10, and trial 0001 is"
    ):
        tuner(
            ["loss", "latenzy <= 10"], backend=mqtune.Simulated(lambda each: [(1.0, {"loss": 1, "latency": 1})])
        ).run()
    kept = mqtune.Failures(accept_no_report=True)
    assert len(tuner(["loss", "latenzy <= 10"], failures=kept).run()) == 6


# What an experiment is.


def test_a_definition_has_them_where_there_are_some_and_they_can_not_change(home: Path) -> None:
    limited = tuner(["loss", "latency<=10.50"], name="limited").run()
    plain = tuner("loss", name="plain").run()

    assert (limited.definition["metric"], limited.definition["outcome_constraints"]) == ("loss", ["latency <= 10.5"])
    assert limited.summary()["outcome_constraints"] == ["latency <= 10.5"]
    assert "outcome_constraints" not in {**plain.definition, **plain.summary()}
    assert [str(each) for each in Results.load(home / "limited").experiment.objective.constraints] == [
        "latency <= 10.5"
    ]
    backend = mqtune.Simulated(lambda each: [(1.0, {"loss": 1.0, "latency": 1.0})], keep_journal=True)
    for metric in (LIMITED, "loss"):
        tuner(metric, name="again", backend=backend, run=mqtune.RunOptions(progress=False, overwrite=True)).run()
        for other in ("loss", ["loss", "latency <= 11"], LIMITED):
            again = tuner(other, name="again", backend=backend)
            if other == metric:
                assert len(again.run()) == 6
            else:
                with pytest.raises(NameTaken, match=r"outcome_constraints was"):
                    again.run()


def test_a_driver_that_resumes_asks_and_decides_as_the_one_before(home: Path) -> None:
    def decisions(name: str, *cuts: int) -> list[str]:
        backend = mqtune.Simulated(
            lambda each: [(1.0, {"loss": each["x"] / step, "latency": 20 * each["y"]}) for step in (1, 2, 3)],
            slots=2,
            keep_journal=True,
        )

        def new() -> mqtune.Tuner:
            return tuner(
                name=name, backend=backend, searcher="tpe", scheduler=mqtune.ASHA(3, reduction_factor=2), max_trials=16
            )

        for steps in cuts:
            with closing(new()) as cut:
                for _ in range(steps):
                    cut.step()
        return happened(new().run())

    assert decisions("cut", 5, 12) == decisions("uncut")


def test_random_search_and_grids_have_them_too(home: Path) -> None:
    results = tuner(max_trials=40).run()

    assert results.definition["searcher"]["searcher"] == "random"
    feasible = [each for each in results if each.metrics["latency"] <= 10]
    assert 0 < len(feasible) < 40
    assert results.best.value == min(each.value for each in feasible)
    assert [each.is_feasible for each in results] == [each.metrics["latency"] <= 10 for each in results]


def test_a_replay_under_another_scheduler_keeps_to_them(home: Path) -> None:
    results = tuner(max_trials=20).run()
    replayed = Replay(results).run(mqtune.ASHA(2, reduction_factor=2))

    assert replayed.original.trial == results.best.id
    assert replayed.course.value is not None
    assert results.experiment.trials[TrialId(replayed.course.trial)].last_metrics["latency"] <= 10


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
    book = Book(tmp_path / "given-up", metric=LIMITED)
    for id_, loss, latency in (("0001", 0.1, 1), ("0002", 0.2, 99), ("0003", 0.3, 2)):
        book.stage(id_)
        book.report(id_, {"loss": loss, "latency": latency})
    book.decide("0001", "abandon", "by hand")

    assert Results.load(book.save()).best.id == "0003"


def test_the_front_has_the_trials_whose_last_report_keeps_to_them(tmp_path: Path) -> None:
    several: dict[str, Any] = {"metric": ["loss", "speed", LIMIT], "mode": ["min", "max"]}
    results = of(
        tmp_path / "several", [(0.1, 30)], [(0.5, 50), (0.4, 9)], [(0.2, 5), (0.3, 50)], [(0.4, None)], **several
    )
    assert [each.id for each in results.pareto_front] == ["0002"]

    book = Book(tmp_path / "open", **several)
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
    seen: list[dict[str, float]] = [
        {"loss": 3.0, "latency": 1},
        {"loss": 2.0, "latency": 9},
        {"loss": 1.0, "latency": 30},
        {"loss": 9.0, "latency": 1},
    ]
    trial = Trial(TrialId("0001"), {})
    for step, metrics in enumerate(seen, 1):
        id_ = CheckpointId(f"0001-1-{step}")
        trial.checkpoints[id_] = SavedCheckpoint(id_, float(step), metrics)
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


def test_configs_with_a_repetition_that_violates_them_come_behind_the_others(home: Path) -> None:
    space = {"x": mqtune.grid_search([0.1, 0.2, 0.3]), "y": mqtune.grid_search([0.1, 0.4])}
    backend = mqtune.Simulated(lambda each: [(1.0, {"loss": each["x"], "latency": 2 * each["y"] / each["x"]})])
    results = mqtune.Tuner(
        train,
        space,
        metric=["loss", "latency <= 5"],
        mode="min",
        searcher=mqtune.Repeater("y"),
        backend=backend,
        run=mqtune.RunOptions(progress=False),
    ).run()

    assert [each.config["x"] for each in results.repeated()] == [0.2, 0.3, 0.1]


def test_a_study_of_the_experiment_knows_by_how_much_trials_violate_them(tmp_path: Path) -> None:
    results = of(
        tmp_path / "studied",
        [(0.1, 30)],
        [(0.5, 5), (0.2, 20), (0.4, 9)],
        [(0.3, None)],
        space=Space(SPACE).describe(),
    )
    study = results.to_optuna_study()

    assert [each.system_attrs["constraints"] for each in study.trials] == [[20], [-1], [math.inf]]
    assert study.best_trial.number == 1


# What searchers learn.


def test_samplers_know_by_how_much_a_trial_violates_them() -> None:
    searcher = OptunaSearcher()
    searcher.check_objective(Objective.of(["loss", "latency <= 10", "room >= 2"], "min"))
    searcher.bind(Space(SPACE), 1, metric="loss", mode="min")
    odd = {"latency": math.nan, "room": 2}
    for number, more in enumerate([{"latency": 12, "room": 5}, {"latency": 4, "room": 1.5}, {"latency": 4}, odd], 1):
        id_ = TrialId(f"{number:04d}")
        config: Any = searcher.suggest(id_)
        trial = Trial(id_, config, TrialStatus.COMPLETED, [Attempt(1, 0.0, config)], reports=1)
        searcher.on_stage(trial)
        searcher.on_report(trial, Report(id_, 1, 1, 0.0, {"loss": 1.0, "training_iteration": 1, **more}))
        searcher.on_trial_end(trial)

    seen = searcher._study.trials
    # In proportion to their bounds, as samplers add them up.
    assert [each.system_attrs.get("constraints") for each in seen] == [[0.2, -1.5], [-0.6, 0.25], None, [math.inf, 0]]
    # What nobody knows to keep to them must not pass for one that does.
    states = [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.FAIL, TrialState.COMPLETE]
    assert [each.state for each in seen] == states


@pytest.mark.parametrize("several", [False, True])
def test_tpe_proposes_more_that_keeps_to_a_constraint_than_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, several: bool
) -> None:
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path))

    def run(name: str, searcher: Searcher) -> Results:
        return mqtune.Tuner(
            train,
            SPACE,
            metric=["loss", *(["other"] if several else []), "sum >= 1.6"],
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

    by_model = run("model", OptunaSearcher())
    by_chance = run("chance", RandomSearcher(Space(SPACE), seed=1))
    late = [sum(each.is_feasible for each in list(found)[30:]) for found in (by_model, by_chance)]
    assert late[0] > late[1] + 8
    assert all(each.metrics["sum"] >= 1.6 for each in by_model.pareto_front)
    again = Results.load(by_model.folder)
    assert [each.id for each in again.pareto_front] == [each.id for each in by_model.pareto_front]
