"""Searchers that learn from trials that have ended elsewhere."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

import mqtune
from mqtune import Results, Space, WarmStart
from mqtune.core.errors import ConfigurationError, UserCodeFailed
from mqtune.core.trial import Config, Metrics, TrialId, TrialStatus
from mqtune.integrations import OptunaSearcher
from mqtune.results import MAX_LEARNT_BYTES
from mqtune.search import PastTrial, Searcher

SPACE: dict[str, Any] = {
    "x": mqtune.uniform(-1, 1),
    "lr": mqtune.loguniform(1e-4, 1),
    "opt": mqtune.choice([{"name": "adam", "eps": mqtune.uniform(0, 1)}, {"name": "sgd"}]),
    "q": mqtune.quniform(0, 1, 0.1),
    "act": mqtune.choice(["relu", None, [1, 2]]),
    "epochs": 3,
}


def curve(config: Config) -> Iterator[tuple[float, Metrics | Exception]]:
    """A loss with its minimum at x=0.3 and lr=0.01; what has a loss above 2 diverges, fails or reports nothing."""
    loss = (config["x"] - 0.3) ** 2 + math.log10(config["lr"] / 0.01) ** 2
    if loss > 4.5:
        return
    if loss > 3.5:
        yield 1.0, RuntimeError("out of memory")
    for epoch in range(1, 4):
        yield 1.0, {"loss": math.nan if loss > 3 else loss + 1 / epoch}


def train(config: Config) -> None:
    """Stand for a trainable: the simulated backend doesn't call it."""


def tuner(searcher: Any = None, *, space: Any = SPACE, **options: Any) -> mqtune.Tuner:
    usual: dict[str, Any] = {
        "metric": "loss",
        "mode": "min",
        "max_trials": 10,
        "seed": 5,
        "backend": mqtune.Simulated(curve, slots=2),
        "failures": mqtune.Failures(accept_no_report=True, metric_required="eventually"),
        "run": mqtune.RunOptions(progress=False),
    }
    return mqtune.Tuner(train, space, searcher=searcher, **{**usual, **options})


def learnt(searcher: Any, **options: Any) -> list[Any]:
    """The trials in the definition of an experiment that begins with this searcher."""
    with closing(tuner(searcher, **options)) as begun:
        begun.step(0.0)
        found: list[Any] = begun.results().definition["learnt"]
    return found


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """An experiment of 60 trials, and the home that it is in."""
    home = tmp_path_factory.mktemp("old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MQTUNE_HOME", str(home))
        scheduler = mqtune.ASHA(max_t=3, grace_period=1, reduction_factor=3)
        return home, tuner(name="old", max_trials=60, scheduler=scheduler).run()


@pytest.fixture
def old(ended: tuple[Path, Results], mqtune_home: Path) -> Results:
    shutil.copytree(ended[0] / "old", mqtune_home / "old")
    return Results.load("old")


def test_trials_count_that_have_ended_with_data(old: Results) -> None:
    found = learnt(WarmStart(["old"]))

    counting = [trial for trial in old if trial.status in (TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED)]
    with_data = [trial for trial in counting if "loss" in trial.trial.last_metrics]
    assert {trial.status for trial in old} == {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED, TrialStatus.FAILED}
    assert 10 < len(with_data) < len(counting)
    for (config, value, step, status), trial in zip(found, with_data, strict=True):
        last = trial.trial.last_metrics
        assert (config, step, status) == (trial.config, last["training_iteration"], trial.status.value)
        assert value == (None if math.isnan(last["loss"]) else last["loss"])
    assert any(value is None for _, value, _, _ in found)


def test_an_experiment_teaches_the_same_as_its_study(old: Results) -> None:
    usual = learnt(WarmStart([old]))
    found = learnt(WarmStart([old.to_optuna_study()], "tpe"))

    assert usual == learnt(WarmStart(old.folder))
    # Optuna has no completed trials that have diverged.
    assert found == [each for each in usual if each[1] is not None or each[3] == "early_stopped"]


@pytest.mark.parametrize("kind", ["SQLite", "Optuna's journal"])
def test_a_storage_teaches_the_same_as_its_study(kind: str, tmp_path: Path) -> None:
    space = {"x": mqtune.uniform(0, 1)}
    distributions = {"x": optuna.distributions.FloatDistribution(0, 1)}
    path = tmp_path / "study"
    storage: Any = f"sqlite:///{path}"
    if kind != "SQLite":
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    study = optuna.create_study(storage=storage, study_name="own")
    study.add_trial(optuna.create_trial(params={"x": 0.5}, distributions=distributions, value=0.25))
    pruned = {1: 3.0, 4: 2.0}
    for values in (pruned, {}):
        study.add_trial(
            optuna.create_trial(
                params={"x": 0.75}, distributions=distributions, intermediate_values=values, state=TrialState.PRUNED
            )
        )

    expected = [[{"x": 0.5}, 0.25, 1, "completed"], [{"x": 0.75}, 2.0, 4, "early_stopped"]]
    assert learnt(WarmStart(study), space=space) == expected
    assert learnt(WarmStart([path]), space=space) == expected
    if kind == "SQLite":
        assert learnt(WarmStart(storage), space=space) == expected


def test_pairs_are_completed_trials() -> None:
    found = learnt(
        WarmStart([({"x": 0, "a": 1}, np.float32(0.5)), [{"x": 1.0}, math.inf]]), space={"x": mqtune.uniform(0, 1)}
    )

    assert found == [[{"x": 0.0}, 0.5, 1, "completed"], [{"x": 1.0}, None, 1, "completed"]]


def test_constants_and_what_is_not_searched_any_more_do_not_matter_and_a_constraint_does(old: Results) -> None:
    space = {"x": mqtune.uniform(-1, 1), "epochs": 27, "twice": mqtune.sample_from(lambda config: 2 * config["x"])}
    found = learnt(WarmStart(["old"]), space=space)

    limited = Space(SPACE, constraint=lambda config: config["opt"]["name"] == "sgd")

    assert {config["opt"]["name"] for config, *_ in learnt(WarmStart(["old"]), space=limited)} == {"sgd"}
    assert len(found) == len(learnt(WarmStart(["old"])))
    assert all(config == {"x": config["x"], "epochs": 27, "twice": 2 * config["x"]} for config, *_ in found)


def test_what_does_not_fit_is_left_out_and_said_once(old: Results, caplog: pytest.LogCaptureFixture) -> None:
    whole = learnt(WarmStart(["old"]))
    with caplog.at_level(logging.WARNING):
        found = learnt(WarmStart(["old"]), space=SPACE | {"x": mqtune.uniform(0, 1)})

    assert found == [each for each in whole if each[0]["x"] >= 0]
    (said,) = caplog.messages
    assert f"{len(whole) - len(found)} of the {len(whole)} trials of old don't fit the space" in said
    assert "is outside uniform(0.0, 1.0)" in said


@pytest.mark.parametrize(
    ("space", "text"),
    [
        ({"momentum": mqtune.uniform(0, 1)}, "none of the .* trials of old fits the space; .* lacks momentum"),
        ({"x": mqtune.uniform(5, 6)}, "none of the .* is outside uniform"),
        ({"opt": {"name": mqtune.choice(["lion"])}}, "none of the .* 'adam' is not one of|'sgd' is not one of"),
    ],
)
def test_none_that_fits_is_an_error(old: Results, space: Any, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        tuner(WarmStart(["old"]), space=space).run()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metric": "val_loss"}, "old has metric='loss', and this experiment metric='val_loss'"),
        ({"mode": "max"}, "old has mode='min', and this experiment mode='max'"),
    ],
)
def test_another_metric_or_mode_is_named_with_both(old: Results, options: Any, text: str) -> None:
    for source in ("old", old.to_optuna_study()):
        with pytest.raises(ConfigurationError, match=text):
            learnt(WarmStart([source]), **options)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([[]], "learn_from=.* is empty"),
        ([[7]], "7 is nothing to learn from"),
        ([{"x": 1}], "is nothing to learn from"),
        ([[({"x": 1}, "good")]], "is nothing to learn from"),
        ([""], "is nothing to learn from"),
        (["old", "best"], "searcher='best' is not a Searcher"),
        (["old", "random"], "searcher='random' learns nothing"),
        (["old", mqtune.InitialPoints([{}])], "learns nothing from other trials"),
    ],
)
def test_what_can_not_be_meant_is_refused_at_once(arguments: list[Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        WarmStart(*arguments)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("oldd", "there is no experiment 'oldd'.*do you mean old"),
        ("notes.txt", "notes.txt has no study"),
        ("sqlite:////nowhere/at/all.db", "can't be read as a storage"),
        ("mysql://me:secret@h/db", r"mysql://me:\*\*\*@h/db can't be read as a storage"),
        ("two.db", "two.db has 2 studies: a, b; give one"),
    ],
)
def test_a_missing_source_is_named(
    source: str, text: str, old: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("none of Optuna's")
    for name in "ab" if source == "two.db" else "":
        optuna.create_study(storage="sqlite:///two.db", study_name=name)

    with pytest.raises(ConfigurationError, match=text) as raised:
        tuner(WarmStart([source])).run()
    assert "secret" not in str(raised.value)


def test_an_experiment_without_ended_trials_has_nothing_to_teach(mqtune_home: Path) -> None:
    with closing(tuner(name="young")) as young:
        young.step(0.0)

        with pytest.raises(ConfigurationError, match="young has no COMPLETED or EARLY_STOPPED trial"):
            learnt(WarmStart([young.results()]))


def test_more_than_a_definition_can_hold_is_refused() -> None:
    pairs = [({"x": 0.5, "text": "a" * 1000}, 0.1)] * (MAX_LEARNT_BYTES // 1000)
    space = {"x": mqtune.uniform(0, 1), "text": mqtune.choice(["a" * 1000])}

    with pytest.raises(ConfigurationError, match=r"the 1,048 trials to learn from have .* bytes, and the most is"):
        learnt(WarmStart(pairs), space=space)


def test_a_scheduler_that_suggests_itself_learns_nothing() -> None:
    class Both(mqtune.FIFO):
        searcher = OptunaSearcher()

    with pytest.raises(ConfigurationError, match="proposes the configs itself"):
        tuner(WarmStart(["old"]), scheduler=Both())


def test_a_driver_that_goes_on_needs_no_source_and_suggests_the_same(old: Results, mqtune_home: Path) -> None:
    def build(name: str, backend: mqtune.Simulated) -> mqtune.Tuner:
        return tuner(WarmStart(["old"]), name=name, backend=backend)

    whole = build("whole", mqtune.Simulated(curve, slots=2)).run()
    backend = mqtune.Simulated(curve, slots=2, keep_journal=True)
    with closing(build("cut", backend)) as first:
        while len(first.get_trials()) < 5:
            first.step(1.0)
    shutil.rmtree(mqtune_home / "old")
    results = build("cut", backend).run()

    assert [trial.config for trial in results] == [trial.config for trial in whole]


def test_a_searcher_that_can_not_take_it_ends_the_run_and_is_named() -> None:
    class Fussy(Searcher):
        def learn(self, trial: PastTrial) -> None:
            if trial.value > 1:
                raise ValueError("too much")

        def suggest(self, trial: TrialId) -> None:
            return None

    searcher = WarmStart([({"x": 0}, 0.5), ({"x": 0}, 2.0)], Fussy())
    with pytest.raises(UserCodeFailed, match=r"Fussy.learn raised ValueError: too much \(trial 2 of"):
        tuner(searcher, space={"x": mqtune.uniform(0, 1)}).run()
