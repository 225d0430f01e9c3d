"""Replays of recorded experiments under other schedulers, and tables of curves."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from book import Book
from click import UsageError
from click.testing import CliRunner
from simulation import tuner_on
from walkthrough import blocks_of

import mqtune
from mqtune import Results
from mqtune.backends import rows_of
from mqtune.cli import SCHEDULERS, group, scheduler_of
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import AttemptEnd, Config
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
    life_s = arguments.pop("life_s", None)
    tuner = tuner_on(
        mqtune.Simulated(reports, slots=4, life_s=life_s, checkpoints=life_s is None),
        curve,
        arguments.pop("space", SPACE),
        scheduler=scheduler,
        max_trials=arguments.pop("max_trials", 12),
        seed=3,
        name=name,
        **arguments,
    )
    return tuner.run()


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


# Curves that were cut off.


def test_figures_of_curves_that_were_cut_off_are_uncertain_and_name_their_trials() -> None:
    results = recorded(mqtune.ASHA(MAX_T))
    stopped = [each.id for each in results if each.status is mqtune.TrialStatus.EARLY_STOPPED]
    completed = [each.id for each in results if each.status is mqtune.TrialStatus.COMPLETED]

    patient = mqtune.results.Replay(results).run(mqtune.ASHA(MAX_T, grace_period=MAX_T))
    without = mqtune.results.Replay(results).run(mqtune.FIFO())

    assert patient.course.cut == tuple(stopped)
    # A trial that its scheduler had completed might have continued as well.
    assert without.course.cut == tuple(sorted(stopped + completed))
    assert patient.course.known_s == pytest.approx(60, abs=10)
    assert not patient.is_certain
    assert patient.course.reports == patient.original.reports
    share = f"{patient.course.trials_s / patient.original.trials_s:.0%}"
    assert patient.verdict.startswith(
        f"as far as the curves go {share} of the trials' time, and the same best trial, {patient.original.trial}; "
        f"{len(stopped)} trials ({', '.join(stopped[:5])}"
    )


def test_a_trial_without_any_report_is_cut_off_at_its_beginning(tmp_path: Path) -> None:
    book = Book(tmp_path / "running")
    book.run("0001", 0.5, 0.4, config={"lr": 0.1})
    book.stage("0002", {"lr": 0.2})
    replayed = mqtune.results.Replay(Results.load(book.save())).run(mqtune.FIFO())

    assert (replayed.course.cut, replayed.is_certain) == (("0002",), False)


# Other conditions.


def test_more_slots_take_less_time_and_as_much_of_the_trials() -> None:
    replay = mqtune.results.Replay(recorded())
    replayed = replay.run(slots=12)

    assert (replay.original.slots, replayed.course.slots) == (4, 12)
    assert replayed.course.trials_s == pytest.approx(replayed.original.trials_s, abs=0.01)
    assert replayed.course.took_s < replayed.original.took_s / 2


def test_one_that_failed_fails_again_and_one_that_was_lost_counts_once() -> None:
    def breaks(config: Config) -> Iterator[Any]:
        for place, item in enumerate(curve(config)):
            if place == 3 and config["optimizer"] == "sgd":
                yield 5.0, ValueError("diverged")
            yield item

    failing = mqtune.results.Replay(recorded(reports=breaks, failures=mqtune.Failures(max_failures=0)))
    dying = mqtune.results.Replay(recorded(name="dying", life_s=lambda rng: rng.uniform(200, 2000)))

    assert 0 < failing.run().course.failed == failing.original.failed < 12
    assert dying.original.reports > 12 * MAX_T == dying.run().course.reports
    assert dying.run().is_certain


def test_the_slot_of_a_lost_attempt_was_another_ones_before_that_was_seen(tmp_path: Path) -> None:
    book = Book(tmp_path / "lost", max_failures=1)
    book.stage("0001", {"lr": 0.1})
    book.run("0002", 0.5, config={"lr": 0.2})
    book.end("0001", AttemptEnd.LOST)
    book.run("0001", 0.25, config={"lr": 0.1})
    book.finish()

    assert mqtune.results.Replay(Results.load(book.save())).original.slots == 1


def test_trials_of_one_config_keep_curves_of_their_own() -> None:
    rng = random.Random(7)

    def noise(_: Config) -> list[tuple[float, dict[str, float]]]:
        return [(rng.uniform(1, 9), {"loss": rng.random()}) for _ in range(3)]

    replayed = mqtune.results.Replay(recorded(reports=noise, space={"x": 1}, max_trials=5)).run(slots=1)

    assert (replayed.course.value, replayed.course.trial) == (replayed.original.value, replayed.original.trial)
    assert replayed.course.trials_s == pytest.approx(replayed.original.trials_s)


@pytest.mark.parametrize("searcher", ["random", "tpe", mqtune.PointsFirst([{"lr": 0.5}])])
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
        else f"nearest recorded to {'optuna' if searcher == 'tpe' else 'PointsFirst'}"
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


def test_a_maximum_and_several_metrics_are_compared_as_they_are_meant() -> None:
    def both(config: Config) -> Iterator[Any]:
        for seconds, metrics in curve(config):
            yield seconds, {"loss": metrics["loss"], "cost": 1 - config["lr"]}

    several = mqtune.Tuner(
        curve,
        SPACE,
        metric=["loss", "cost"],
        mode="min",
        max_trials=12,
        seed=1,
        name="several",
        backend=mqtune.Simulated(both, slots=4),
        run=mqtune.RunOptions(progress=False),
    ).run()
    replayed = mqtune.results.Replay(several).run(mqtune.MOASHA(MAX_T))

    assert len(replayed.original.front) == len(several.pareto_front) > 1
    assert f"of the {len(replayed.original.front)} trials on the Pareto front" in replayed.verdict


def test_what_real_workers_have_recorded_is_replayed() -> None:
    replayed = mqtune.results.Replay(Results.load(RECORDED / "hyperband")).run()
    of_taken_over = mqtune.results.Replay(Results.load(RECORDED / "taken-over")).run()

    assert (replayed.course.reports, replayed.verdict) == (
        81,
        "100% of the trials' time, and the same best trial, 0001",
    )
    assert of_taken_over.is_certain
    assert of_taken_over.course.reports <= of_taken_over.original.reports


def test_configs_that_change_can_not_be_replayed() -> None:
    left_out = mqtune.results.Replay(Results.load(RECORDED / "pbt"))

    assert "left out are 3 trials (0003, 0004, 0005)" in left_out.run(mqtune.ASHA(9)).verdict
    with pytest.raises(ConfigurationError, match="PBT makes configs of its own"):
        left_out.run()


# The command.


def test_the_command_shows_replays_beside_what_was_recorded(mqtune_home: Path) -> None:
    recorded(mqtune.ASHA(MAX_T))
    arguments = ["replay", "recorded", "--scheduler", "ASHA(9)", "--scheduler", "FIFO", "--slots", "2"]
    shown = CliRunner().invoke(group, arguments)
    told = json.loads(CliRunner().invoke(group, [*arguments, "--json"]).stdout)

    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = {line[:15].strip(): line for line in shown.stdout.splitlines()}
    assert lines["scheduler"].split() == ["scheduler", "ASHA(max_t=9)", "ASHA(max_t=9)", "FIFO()"]
    assert lines["slots"].split() == ["slots", "4", "2", "2"]
    assert lines["reports"].rstrip().endswith("?")
    assert lines["best"].rstrip().endswith("?")
    assert "12 trials (" in shown.stdout.partition("replay 2: as far as the curves go ")[2]
    assert told["original"]["reports"] == told["replays"][1]["reports"]
    assert not told["replays"][1]["certain"]
    assert [path.name for path in mqtune_home.iterdir()] == ["recorded"]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_written_as_in_a_script(name: str) -> None:
    needed = {"RUSH": "max_t=9, candidates=2", "FIFO": "", "MedianStopping": "", "WilcoxonStopping": ""}

    assert type(scheduler_of(f" {name}({needed.get(name, 'max_t=9')}) ")).__name__ == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ASHA(",
        "PBT()",
        "mqtune.ASHA(9)",
        "ASHA(9)(1)",
        "ASHA(9).bind",
        "ASHA(max_t=exit(7))",
        "ASHA(*[9])",
        "ASHA(**{'max_t': 9})",
        "__import__('os').abort()",
        "Tuner(9)",
        "ASHA(9), ASHA(9)",
        "[ASHA(9)]",
        "(" * 500,
    ],
)
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


# Tables of curves.

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
