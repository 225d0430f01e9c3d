"""Replays of recorded experiments under other schedulers, and tables of curves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from click import UsageError
from simulation import tuner_on
from walkthrough import blocks_of

import mqtune
from mqtune import Results
from mqtune.backends import rows_of
from mqtune.cli import SCHEDULERS, scheduler_of
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import Config
from mqtune.schedulers import Scheduler

ROOT: Final = Path(__file__).parents[3]
RECORDED: Final = ROOT / "tests" / "recorded"
SPACE: Final = {"lr": mqtune.uniform(0, 1), "optimizer": mqtune.choice(["sgd", "adam"])}
MAX_T: Final = 9


def curve(config: Config) -> Iterator[tuple[float, dict[str, float]]]:
    """A noisy curve that comes to the config's lr."""
    rng = random.Random(repr(config))
    for epoch in range(1, MAX_T + 1):
        yield rng.uniform(50, 70), {"loss": config["lr"] + rng.random() / epoch}


def recorded(
    scheduler: Scheduler | None = None, reports: Any = curve, *, name: str = "recorded", **arguments: Any
) -> Results:
    """An experiment that has run, simulated, with 12 trials on 4 slots."""
    options = {"scheduler": scheduler, "max_trials": 12, "seed": 3, "name": name, **arguments}
    return tuner_on(mqtune.Simulated(reports, slots=4), curve, options.pop("space", SPACE), **options).run()


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda: mqtune.ASHA(MAX_T),
        lambda: mqtune.PromotionASHA(MAX_T, reduction_factor=4),
        lambda: mqtune.HyperBand(MAX_T),
        mqtune.MedianStopping,
    ],
)
def test_a_replay_of_whole_curves_is_what_the_scheduler_would_have_done(scheduler: Callable[[], Scheduler]) -> None:
    replayed = mqtune.results.Replay(recorded()).run(scheduler())
    really = mqtune.results.Replay(recorded(scheduler(), name="really")).original

    assert replayed.is_certain
    assert replayed.course.reports < replayed.original.reports == 12 * MAX_T
    assert replace(replayed.course, searcher="random", took_s=0, found_s=0, trials_s=0) == replace(
        really, took_s=0, found_s=0, trials_s=0
    )
    for name in ("took_s", "found_s", "trials_s"):
        # Times in a journal are since 1970, of which the last digits are lost.
        assert getattr(replayed.course, name) == pytest.approx(getattr(really, name), abs=0.01)


def test_the_same_scheduler_on_what_it_has_cut_off_comes_to_the_same_end() -> None:
    replayed = mqtune.results.Replay(recorded(mqtune.ASHA(MAX_T))).run()

    assert (replayed.course.reports, replayed.course.cut) == (replayed.original.reports, ())
    assert replayed.verdict == f"100% of the trials' time, and the same best trial, {replayed.original.trial}"
    assert replayed.is_certain


def test_a_config_with_nan_has_its_curve() -> None:
    odd = {**SPACE, "missing": mqtune.choice([math.nan, 0.0]), "fill": math.nan}

    replayed = mqtune.results.Replay(recorded(mqtune.ASHA(MAX_T), space=odd)).run()

    assert replayed.verdict == f"100% of the trials' time, and the same best trial, {replayed.original.trial}"


def test_trials_of_one_config_keep_curves_of_their_own() -> None:
    rng = random.Random(7)

    def noise(_: Config) -> list[tuple[float, dict[str, float]]]:
        return [(rng.uniform(1, 9), {"loss": rng.random()}) for _ in range(3)]

    replayed = mqtune.results.Replay(recorded(reports=noise, space={"x": 1}, max_trials=5)).run(slots=1)

    assert (replayed.course.value, replayed.course.trial) == (replayed.original.value, replayed.original.trial)
    assert replayed.course.trials_s == pytest.approx(replayed.original.trials_s)


@pytest.mark.parametrize("searcher", ["random", "tpe", mqtune.InitialPoints([{"lr": 0.5}])])
def test_a_searcher_proposes_each_recorded_config_once(searcher: Any) -> None:
    if searcher == "tpe":
        pytest.importorskip("optuna")
    results = recorded()

    replayed = mqtune.results.Replay(results).run(searcher=searcher)

    assert (replayed.course.trials, replayed.course.failed, replayed.course.cut) == (12, 0, ())
    assert replayed.course.trials_s == pytest.approx(replayed.original.trials_s, abs=0.01)
    assert replayed.course.searcher == (
        "recorded, shuffled"
        if searcher == "random"
        else f"nearest recorded to {'optuna' if searcher == 'tpe' else 'InitialPoints'}"
    )


def test_the_nearest_recorded_config_is_tried_and_learnt_from() -> None:
    class Wishful(mqtune.search.Searcher):
        """Wants the lowest lr, and hears what it gets."""

        def __init__(self) -> None:
            self.got: list[Config] = []

        def suggest(self, trial: str) -> Config:
            return {"lr": 0.0, "optimizer": "sgd"}

        def adopt(self, trial: str, config: Config) -> None:
            self.got.append(config)

        def describe(self) -> dict[str, Any]:
            return {"searcher": "wishful"}

    wishful, results = Wishful(), recorded()
    mqtune.results.Replay(results).run(searcher=wishful)

    configs = [each.config for each in results]
    wanted = sorted(configs, key=lambda config: config["lr"] ** 2 + 2 * (config["optimizer"] != "sgd"))
    assert wishful.got == wanted


def test_stop_rules_count_again_and_functions_are_trusted() -> None:
    ruled = recorded(stop=mqtune.schedulers.stopping.MaximumIteration(4))
    by_function = recorded(name="by-function", stop=lambda trial, report: report.metrics["training_iteration"] >= 4)

    for replayed in (mqtune.results.Replay(ruled).run(slots=2), mqtune.results.Replay(by_function).run(slots=2)):
        assert (replayed.course.reports, replayed.course.cut) == (12 * 4, ())
    replay = mqtune.results.Replay(ruled)
    assert replay.run(mqtune.ASHA(4)).course.reports == replay.run(mqtune.ASHA(4)).course.reports


def test_configs_that_change_can_not_be_replayed() -> None:
    left_out = mqtune.results.Replay(Results.load(RECORDED / "pbt"))

    assert (
        "3 trials (0003, 0004, 0005) had no learning curve of their own and were left out"
        in left_out.run(mqtune.ASHA(9)).verdict
    )
    with pytest.raises(ConfigurationError, match="PBT creates configs"):
        left_out.run()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_written_as_in_a_script(name: str) -> None:
    needed = {"RUSH": "max_t=9, candidates=2", "FIFO": "", "MedianStopping": "", "WilcoxonStopping": ""}

    assert type(scheduler_of(f" {name}({needed.get(name, 'max_t=9')}) ")).__name__ == name


NO_SCHEDULERS = """
    |ASHA(|PBT()|mqtune.ASHA(9)|ASHA(9)(1)|ASHA(9).bind|ASHA(max_t=exit(7))|ASHA(*[9])|ASHA(**{'max_t': 9})|Tuner(9)
    |__import__('os').abort()|ASHA(9), ASHA(9)|[ASHA(9)]
"""


@pytest.mark.parametrize("text", [*map(str.strip, NO_SCHEDULERS.split("|")), "(" * 500])
def test_nothing_else_is_a_scheduler(text: str) -> None:
    with pytest.raises(UsageError, match="is not a scheduler; write one such as"):
        scheduler_of(text)


@pytest.mark.parametrize("text", ["ASHA", "ASHA(max_t=0)", "ASHA(9, max=3)"])
def test_arguments_that_a_scheduler_refuses_are_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="max"):
        scheduler_of(text)


def test_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/how-to/what-if.md says is so."""
    monkeypatch.chdir(tmp_path)
    recorded(mqtune.ASHA(MAX_T), name="digits", space={"lr": mqtune.uniform(0, 1)})
    names: dict[str, Any] = {"train": curve}
    for block in blocks_of(ROOT / "docs" / "how-to" / "what-if.md"):
        if block.language == "csv":
            (tmp_path / block.title).write_text(block.text)
        elif block.language == "python":
            exec(block.text, names)
        elif block.language == "console":
            for line in block.text.splitlines():
                assert scheduler_of(line.partition("--scheduler '")[2].partition("'")[0])
    assert len(names["results"]) == 2


ROWS: Final = [
    {"lr": 0.1, "net.width": 8, "seconds": 2.0, "loss": 0.5, "note": "a"},
    {"lr": 0.1, "net.width": 8, "seconds": 3.0, "loss": 0.25},
    {"lr": 0.2, "net.width": 16, "seconds": 2, "loss": math.inf, "note": "b"},
]


def table_space() -> dict[str, Any]:
    return {"lr": mqtune.grid_search([0.1, 0.2]), "net": {"width": mqtune.sample_from(lambda c: round(c["lr"] * 80))}}


def test_a_table_may_be_a_file_or_a_data_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    text = "lr,net.width,seconds,loss,note\n0.1,8,2.0,0.5,a\n0.1,8,3.0,0.25,\n0.2,16,2,inf,b\n"
    (tmp_path / "curves.csv").write_text("\ufeff" + text)
    frame = pandas.DataFrame([{**row, "note": row.get("note")} for row in ROWS])
    tables: dict[str, Any] = {"rows": ROWS, "csv": str(tmp_path / "curves.csv"), "frame": frame}

    for name, table in tables.items():
        results = recorded(reports=table, name=name, space=table_space(), max_trials=None)
        found = [(each.trial, each.metrics["loss"]) for each in results.reports()]
        assert sorted(found) == [("0001", 0.25), ("0001", 0.5), ("0002", math.inf)]
        assert results["0002"].trial.last_metrics["note"] == "b"
    assert rows_of(tmp_path / "curves.csv")[1] == ROWS[1]


def test_a_table_of_parquet_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame([{"lr": 0.1, "seconds": 1.0, "loss": 2.0}]).to_parquet(tmp_path / "curves.parquet")

    assert rows_of(tmp_path / "curves.parquet") == [{"lr": 0.1, "seconds": 1.0, "loss": 2.0}]


@pytest.mark.parametrize("table", ["nowhere.csv", "nowhere.parquet", b"lr", 7, {"lr": [1], "seconds": [1, 2]}])
def test_what_is_no_table_is_said(table: Any) -> None:
    if table == "nowhere.parquet":
        pytest.importorskip("pyarrow")
    with pytest.raises(ConfigurationError, match="table"):
        mqtune.Simulated(table)
