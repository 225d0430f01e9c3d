"""In what order a driver processes its journal, and what it makes of odd reports."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench import Bench
from simulation import Simulation, simulate

from mqtune import ASHA, FIFO, ExperimentPlateau, Simulated, TrialPlateau
from mqtune.core.codec import pack_metrics, segment_bytes
from mqtune.core.errors import MetricMissing
from mqtune.core.events import DecisionTaken
from mqtune.core.trial import Config, TrialId, TrialStatus
from mqtune.driver import Limits, Reading
from mqtune.journal import Segment
from mqtune.schedulers import MetricBounds, Scheduler, as_rule
from mqtune.schedulers.stopping import MaximumIteration, StopRule

ONE = "0001"


def waiting(folder: Path) -> Bench:
    """An open experiment with a trial that runs, whose driver takes nothing in by itself."""
    bench = Bench(folder, space=None, scheduler=FIFO, max_trials=None)
    bench.hand.add({"lr": 1.0})
    bench.start(ONE).is_away = True
    return bench


def ahead(bench: Bench, count: int = 9) -> list[tuple[str, int]]:
    return [(report.trial, report.sequence) for report in bench.driver.reports_ahead(count)]


@pytest.mark.parametrize("hands_out", [False, True])
def test_reports_that_can_not_be_read_are_said_once_also_to_who_looks_ahead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hands_out: bool
) -> None:
    bench = waiting(tmp_path)
    bench.report(ONE, 3.0)
    damaged = segment_bytes(ONE, 1, 2, [pack_metrics(1.0, {"loss": 2.0}), b"\x07"])
    bench.worker.report([Segment(bench.claims[ONE], 2, 2, 1.0, damaged)])
    bench.sequences[ONE] = 3
    bench.report(ONE, 1.0)

    if hands_out:
        bench.driver.next_report(0)
        assert ahead(bench) == [(ONE, 2), (ONE, 4)]
        assert bench.experiment.unreadable == 0
        assert [bench.driver.next_report(0).sequence for _ in range(2)] == [2, 4]
        assert bench.driver.next_report(0) is None
    else:
        bench.driver.step(0)

    assert bench.experiment.unreadable == 1
    assert bench.trial().reports == 3
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1


NAN, INF = float("nan"), float("inf")

ONE, TWO = TrialId("0001"), TrialId("0002")

#: What one report of a trial may have in place of a time, or of a metric.
ODD: dict[str, dict[str, Any]] = {
    "time missing": {"epoch": None},
    "time a text": {"epoch": "three"},
    "time NaN": {"epoch": NAN},
    "time infinite": {"epoch": INF},
    "time a flag": {"epoch": True},
    "time a list": {"epoch": [3]},
    "time going down": {"epoch": 1},
    "metric a flag": {"loss": True},
    "metric a text": {"loss": "low"},
    "metric a dict": {"loss": {"train": 0.1}},
    "bound a text": {"accuracy": "high"},
}


def rule() -> StopRule:
    found = (
        MetricBounds({"accuracy": 2, "loss": -1e9, "epoch": 1e9})
        | TrialPlateau(std=0)
        | ExperimentPlateau(std=0, top=3)
        | MaximumIteration(1000)
    )
    found.bind("loss", "min")
    return found


def odd_curve(odd: dict[str, Any]) -> Callable[[Config], Iterable[tuple[float, dict[str, Any]]]]:
    """Return a function whose third and fourth report are odd."""

    def reports(config: Config) -> Iterator[tuple[float, dict[str, Any]]]:
        for step in range(1, 10):
            metrics = {"loss": config["lr"] / step, "epoch": step, "accuracy": 0.1}
            if step in (3, 4):
                metrics = {key: value for key, value in {**metrics, **odd}.items() if value is not None}
            yield 1.0, metrics

    return reports


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_report_ends_neither_the_experiment_nor_a_replay_of_it(odd: str) -> None:
    simulation = simulate(
        odd_curve(ODD[odd]),
        scheduler=lambda: ASHA(9, time_attr="epoch"),
        limits=Limits(max_trials=6, rule=rule()),
        slots=3,
        keep_journal=True,
    )
    assert all(trial.status.is_terminal for trial in simulation.experiment.trials.values())
    assert TrialStatus.FAILED not in {trial.status for trial in simulation.experiment.trials.values()}
    statuses = {id_: trial.status for id_, trial in simulation.experiment.trials.items()}

    simulation.limits = Limits(max_trials=6, rule=rule())
    heir = simulation.driver()

    assert {id_: trial.status for id_, trial in heir.experiment.trials.items()} == statuses


def test_nan_is_a_number_whose_place_is_the_schedulers_rule(caplog: pytest.LogCaptureFixture) -> None:
    simulation = simulate(odd_curve({"loss": NAN}), scheduler=lambda: ASHA(9, grace_period=3, time_attr="epoch"))

    assert simulation.used_scheduler.rung_sizes[0] == 4  # type: ignore[attr-defined]
    assert not caplog.records


def test_it_is_said_once_for_each_trial_and_key_and_not_again_by_a_later_driver(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rule = as_rule({"accuracy": 0.9})
    assert rule is not None
    rule.bind("loss", "min")
    simulation = simulate(
        odd_curve({"loss": "low", "epoch": "late", "accuracy": "high"}),
        scheduler=lambda: ASHA(9, time_attr="epoch"),
        limits=Limits(max_trials=2, rule=rule),
        keep_journal=True,
    )

    said = {record.getMessage() for record in caplog.records}
    assert len(said) == len(caplog.records) == 6
    for key, kind, counts in (
        ("loss", "number", "loss"),
        ("epoch", "finite number", "loss"),
        ("accuracy", "number", "accuracy"),
    ):
        value = {"loss": "low", "epoch": "late", "accuracy": "high"}[key]
        assert (
            f"trial 0001: report 3 has {key}={value!r}, which is not a {kind}; it counts as a report without {counts!r}"
            in said
        )
    caplog.clear()
    simulation.driver()
    assert not caplog.records


@pytest.mark.parametrize("odd", ["time going down", "metric a text"])
def test_an_odd_report_fails_its_own_trial_if_that_is_asked_for(odd: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=2, on_odd_report="fail", max_failures=3).step().start(ONE).start(TWO)
    bench.report(ONE, 0.5)
    bench.report(TWO, 0.5)

    bench.report(ONE, "low")  # type: ignore[arg-type]
    bench.report(TWO, 0.4)

    assert (bench.trial(TWO).status, bench.told(ONE)) == (TrialStatus.RUNNING, "stop")
    bench.end(ONE)
    assert (bench.trial(ONE).status, len(bench.trial(ONE).attempts)) == (TrialStatus.FAILED, 1)
    assert bench.trial(ONE).reason == "trial 0001: report 2 has loss='low', which is not a number"
    (decision,) = bench.of(DecisionTaken)
    assert (decision.action, decision.by, decision.sequence) == ("fail", "driver", 2)
    assert bench.replayed().trials[ONE].status is TrialStatus.FAILED
    assert bench.driver.failure is None


def first_report(metrics: dict[str, Any], scheduler: Callable[[], Scheduler] = FIFO, **reading: Any) -> Simulation:
    def reports(config: Config) -> Iterator[tuple[float, dict[str, Any]]]:
        yield 1.0, metrics
        yield 10_000.0, {**metrics, "loss": 0.5, "epoch": 2}

    simulation = Simulation(
        Simulated(reports), scheduler=scheduler, limits=Limits(max_trials=2), reading=Reading(**reading)
    )
    return simulation.run()


@pytest.mark.parametrize(
    ("metrics", "says"),
    [
        (
            {"los": 0.5, "acc": 0.5},
            (
                r"metric='loss' is not in the first report, of trial 0001.*'los', 'acc'.*mean 'los'.*"
                r"or give failures=mqtune\.Failures\(metric_from='later'\)"
            ),
        ),
        ({"loss": 0.5, "epochs": 1}, r"time_attr='epoch' is not in the first report.*did you mean 'epochs'"),
    ],
)
def test_a_metric_or_time_that_the_first_report_lacks_ends_the_run_at_once_and_the_nearest_is_named(
    metrics: dict[str, Any], says: str
) -> None:
    with pytest.raises(MetricMissing, match=says):
        first_report(metrics, lambda: ASHA(9, time_attr="epoch"))


@pytest.mark.parametrize("metrics", [{"note": "warming up"}, {"los": 0.5, "acc": 0.5}, {}])
def test_a_metric_may_come_later_if_that_is_said(metrics: dict[str, Any]) -> None:
    simulation = first_report(metrics, lambda: ASHA(2, time_attr="epoch"), metric_from="later")

    assert {trial.status for trial in simulation.experiment.trials.values()} == {TrialStatus.COMPLETED}


@pytest.mark.parametrize("others", [[{"loss": 0.5}, {"note": "validating"}], [{"loss": "?"}, {"loss": 0.5}]])
def test_a_metric_that_some_report_had_may_be_missing_from_others_or_no_number(others: list[dict[str, Any]]) -> None:
    simulation = simulate(lambda config: [(1.0, metrics) for metrics in others])

    assert simulation.experiment.counts[TrialStatus.COMPLETED] == 4
