"""Replays of recorded experiments under other schedulers, and tables of curves."""

from __future__ import annotations

import json
import math
import random
import statistics
import threading
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
from mqtune.backends import rows_of
from mqtune.cli import group
from mqtune.cli.replay import SCHEDULERS, scheduler_of
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import AttemptEnd, Config
from mqtune.results.results import Results
from mqtune.schedulers.base import Scheduler

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


def test_what_hangs_on_curves_that_were_cut_off_is_said_within_bounds() -> None:
    results = recorded(mqtune.ASHA(MAX_T))
    stopped = [each.id for each in results if each.status is mqtune.TrialStatus.EARLY_STOPPED]
    completed = [each.id for each in results if each.status is mqtune.TrialStatus.COMPLETED]

    patient = mqtune.results.Replay(results).run(mqtune.ASHA(MAX_T, grace_period=MAX_T))
    without = mqtune.results.Replay(results).run(mqtune.FIFO())

    assert patient.course.cut == tuple(stopped)
    # What its scheduler had completed might have gone on as well.
    assert without.course.cut == tuple(sorted(stopped + completed))
    assert patient.course.known_s == pytest.approx(60, abs=10)
    assert not patient.is_certain
    assert patient.bounds["reports"] == (patient.original.reports, 12 * MAX_T, 12 * MAX_T)
    least, stays, most = (f"{each / patient.original.trials_s:.0%}" for each in patient.bounds["trials_s"])
    assert patient.verdict.startswith(
        f"between {least} and {most} of the trials' time, and as far as the curves go the same best trial, "
        f"{patient.original.trial}; {len(stopped)} trials ({', '.join(stopped[:5])}"
    )
    assert patient.verdict.endswith(f": {stays} if they stay at their last values")


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda: mqtune.ASHA(MAX_T, reduction_factor=2),
        lambda: mqtune.ASHA(MAX_T, grace_period=3),
        lambda: mqtune.HyperBand(MAX_T),
        mqtune.MedianStopping,
        mqtune.FIFO,
    ],
)
def test_what_whole_curves_come_to_lies_within_the_bounds_of_those_that_were_cut_off(
    scheduler: Callable[[], Scheduler],
) -> None:
    whole = mqtune.results.Replay(recorded()).run(scheduler())
    bounded = mqtune.results.Replay(recorded(mqtune.ASHA(MAX_T, reduction_factor=4), name="cut")).run(scheduler())

    assert (whole.is_certain, bounded.is_certain) == (True, False)
    for name in ("trials_s", "took_s", "reports"):
        least, stays, most = bounded.bounds[name]
        assert least <= getattr(whole.course, name) <= most
        assert least <= stays <= most
        assert least < most


def test_where_nothing_was_cut_off_bounds_are_the_figures_themselves() -> None:
    replayed = mqtune.results.Replay(recorded()).run(mqtune.ASHA(MAX_T))

    assert replayed.bounds == {
        name: (getattr(replayed.course, name),) * 3 for name in ("trials_s", "took_s", "reports", "stopped")
    }


def short_curve(config: Config) -> list[tuple[float, dict[str, float]]]:
    return [*curve(config)][:4]


@pytest.mark.parametrize(
    ("scheduler", "reports", "longest"),
    [
        # The longest trial has ended by itself, or was ended by its scheduler.
        (lambda: mqtune.ASHA(MAX_T), short_curve, 4),
        (lambda: mqtune.ASHA(3), curve, MAX_T),
    ],
)
def test_a_trial_goes_on_to_max_t_or_to_where_the_longest_has_ended_by_itself(
    scheduler: Callable[[], Scheduler], reports: Any, longest: int
) -> None:
    patient = mqtune.results.Replay(recorded(scheduler(), reports)).run(mqtune.ASHA(MAX_T, grace_period=MAX_T))

    assert patient.bounds["reports"].most == patient.bounds["reports"].stays == 12 * longest


def test_under_a_scheduler_without_max_t_a_trial_goes_on_as_far_as_the_longest() -> None:
    replay = mqtune.results.Replay(recorded(mqtune.ASHA(3)))

    for scheduler in (mqtune.FIFO(), mqtune.ASHA(MAX_T, grace_period=MAX_T, stop_last_trials=False)):
        assert replay.run(scheduler).bounds["reports"].most == 12 * 3


@pytest.mark.parametrize(("step", "reports"), [(10, 9), (0, 3)])
def test_the_schedulers_own_time_goes_on_as_it_did(step: int, reports: int) -> None:
    def with_epochs(config: Config) -> Iterator[Any]:
        for number, (seconds, metrics) in enumerate(curve(config), 1):
            yield seconds, {**metrics, "epoch": 1 + number * step}

    replay = mqtune.results.Replay(recorded(mqtune.ASHA(3), with_epochs))
    patient = replay.run(mqtune.ASHA(90, grace_period=90, time_attr="epoch"))

    # A time that stands still would never come to max_t: there the longest trial counts.
    assert patient.bounds["reports"].most == 12 * reports


def test_several_metrics_have_bounds_too() -> None:
    several = mqtune.Tuner(
        curve,
        SPACE,
        metric=["loss", "cost"],
        mode=["min", "max"],
        max_trials=12,
        seed=1,
        name="several-cut",
        scheduler=mqtune.MOASHA(MAX_T),
        backend=mqtune.Simulated(
            lambda config: [(1.0, {"loss": config["lr"] + 1 / n, "cost": n * config["lr"]}) for n in range(1, 10)]
        ),
        run=mqtune.RunOptions(progress=False),
    ).run()

    replayed = mqtune.results.Replay(several).run(mqtune.MOASHA(MAX_T, reduction_factor=2))

    assert replayed.course.cut
    assert replayed.bounds["reports"].least < replayed.bounds["reports"].most <= 12 * MAX_T
    assert "trials on the Pareto front; " in replayed.verdict


def test_of_a_trial_without_any_report_there_is_no_verdict(tmp_path: Path) -> None:
    book = Book(tmp_path / "running")
    book.run("0001", 0.5, 0.4, config={"lr": 0.1})
    book.stage("0002", {"lr": 0.2})
    replayed = mqtune.results.Replay(Results.load(book.save())).run(mqtune.FIFO())

    assert replayed.verdict == "no verdict: 1 trial (0002) would have gone on, of which no report is recorded"
    assert (replayed.bounds, replayed.is_certain) == ({}, False)


# Other conditions.


def test_reports_take_as_many_times_as_long_and_say_so() -> None:
    replay = mqtune.results.Replay(recorded())
    slower, faster = replay.run(time_scale=2), replay.run(time_scale=0.5)
    within_300_s = [
        replay.run(mqtune.ASHA(300, grace_period=300, time_attr="time_total_s"), time_scale=scale).course.reports
        for scale in (0.5, 1, 2)
    ]

    assert (slower.course.time_scale, slower.course.reports) == (2, replay.original.reports)
    assert slower.course.trials_s == pytest.approx(2 * replay.original.trials_s, abs=0.1)
    assert slower.course.took_s == pytest.approx(4 * faster.course.took_s, abs=0.1)
    # 60 s a report: at half the speed a trial has half of them.
    assert within_300_s == [pytest.approx(12 * min(MAX_T, 300 / 60 / scale + 0.5), abs=6) for scale in (0.5, 1, 2)]


@pytest.mark.parametrize("scale", [0, -1, math.nan, math.inf, True, "2"])
def test_a_time_scale_that_is_none_is_named(scale: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"time_scale={scale!r} "):
        mqtune.results.Replay(recorded()).run(time_scale=scale)


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


def test_a_searcher_that_can_not_be_copied_is_named() -> None:
    searcher = mqtune.PointsFirst([{"lr": 0.5}])
    searcher.lock = threading.Lock()  # type: ignore[attr-defined]

    with pytest.raises(
        ConfigurationError, match=r"FIFO, or the searcher, can't be copied, which a replay needs: .*lock"
    ):
        mqtune.results.Replay(recorded()).run(mqtune.FIFO(), searcher=searcher)


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


# Several orders.


def test_a_replay_is_repeated_in_orders_that_are_the_same_for_each_scheduler() -> None:
    replay = mqtune.results.Replay(recorded())
    asha = mqtune.ASHA(MAX_T)

    stopping, again, without = replay.repeat(7, asha), replay.repeat(7, asha), replay.repeat(7, mqtune.FIFO())

    assert stopping == again
    assert len({each.course.took_s for each in stopping.replays}) == 7
    assert stopping.replays[0].course == replay.run(mqtune.ASHA(MAX_T), searcher="random").course
    costs = [each.course.trials_s for each in stopping.replays]
    low, *_, high = statistics.quantiles(costs, n=20, method="inclusive")
    assert stopping.spreads["trials_s"] == pytest.approx((low, statistics.median(costs), high))
    assert without.spreads["trials_s"] == pytest.approx((replay.original.trials_s,) * 3)
    assert without.same_best == 7
    assert stopping.same_best == sum(each.course.trial == replay.original.trial for each in stopping.replays)
    assert stopping.is_certain
    assert without.verdict == (
        f"100% of the trials' time by the median, between 100% and 100% in 90% of 7 orders; "
        f"the same best trial, {replay.original.trial}, in 7"
    )


def test_repeats_of_curves_that_were_cut_off_go_from_the_least_to_the_most() -> None:
    repeats = mqtune.results.Replay(recorded(mqtune.ASHA(MAX_T))).repeat(5, mqtune.ASHA(MAX_T, grace_period=MAX_T))
    bounds = [each.bounds["reports"] for each in repeats.replays]

    spread = repeats.spreads["reports"]
    assert min(each.least for each in bounds) <= spread.low < spread.median == spread.high == 12 * MAX_T
    assert not repeats.is_certain
    assert repeats.verdict.endswith(", as far as the curves go, which were cut off in 5")


def test_repeats_without_bounds_have_no_verdict() -> None:
    repeats = mqtune.results.Replay(Results.load(RECORDED / "pbt")).repeat(2, mqtune.ASHA(9))

    assert repeats.verdict.startswith("in 2 of 2 orders, no verdict: left out are 3 trials")
    assert "trials_s" not in repeats.spreads


@pytest.mark.parametrize("times", [0, -1, 1.5, True])
def test_a_number_of_repeats_that_is_none_is_named(times: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"times={times!r} is not a whole number of at least 1"):
        mqtune.results.Replay(recorded()).repeat(times)


# The command.


def test_the_command_repeats_and_compares() -> None:
    recorded()
    arguments = [
        "replay",
        "recorded",
        "--scheduler",
        "FIFO",
        "--scheduler",
        "ASHA(9)",
        "--repeat",
        "3",
        "--time-scale",
        "2",
    ]
    shown = CliRunner().invoke(group, arguments)
    told = json.loads(CliRunner().invoke(group, [*arguments, "--json"]).stdout)

    assert (shown.exit_code, shown.stderr) == (0, "")
    lines = {line[:15].strip(): line for line in shown.stdout.splitlines()}
    assert lines["orders"].split() == ["orders", "3", "3"]
    assert lines["time scale"].split() == ["time", "scale", "1", "2", "2"]
    assert "replay 1: 200% of the trials' time by the median, between 200% and 200% in 90% of 3 orders" in shown.stdout
    assert "replay 2 took less of the trials' time than replay 1 in 3 of 3 orders, and more in 0" in shown.stdout
    fifo, asha = told["replays"]
    assert fifo["spreads"]["trials_s"]["median"] == pytest.approx(2 * told["original"]["trials_s"])
    assert (asha["scheduler"], asha["time_scale"], len(asha["orders"])) == ("ASHA(max_t=9)", 2, 3)
    assert (fifo["same_best"], fifo["certain"]) == (3, True)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--repeat", "0", "'--repeat': 0 is not"),
        ("--time-scale", "0", "'--time-scale': 0.0 is not"),
        ("--time-scale", "nan", "time_scale=nan is not a finite number"),
    ],
)
def test_what_can_not_be_replayed_is_said(option: str, value: str, said: str) -> None:
    recorded()
    done = CliRunner().invoke(group, ["replay", "recorded", option, value])

    assert done.exit_code != 0
    assert said in f"{done.stderr}{done.exception}"


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
