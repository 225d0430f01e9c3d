"""Stop rules: their exact bounds, and their state after a replay."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mqtune import ExperimentPlateau, MetricMaximum, TargetReached, TimeLimit, TrialDiverged, TrialPlateau
from mqtune.core.errors import ConfigurationError, MetricMissing, UserCodeFailed
from mqtune.core.experiment import Experiment
from mqtune.core.trial import Attempt, CheckpointId, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers import AnyRule, MetricBounds, Scope, as_rule
from mqtune.schedulers.stopping import (
    MaximumIteration,
    ReportsReceived,
    StopRule,
    TrialsCompleted,
    TrialsEnded,
    TrialsFailed,
    TrialsStarted,
)

NAN, INF = math.nan, math.inf
T0 = 1_700_000_000.0


def bound(rule: Any, mode: str = "min") -> StopRule:
    made = as_rule(rule)
    assert made is not None
    made.bind("loss", mode)
    return made


def trial(name: str = "0001", attempt: int = 1, status: TrialStatus = TrialStatus.RUNNING, **values: Any) -> Trial:
    return Trial(TrialId(name), {}, status, [Attempt(number, T0) for number in range(1, attempt + 1)], **values)


class Run:
    """Reports of one trial after the other, to one rule."""

    def __init__(self, rule: StopRule) -> None:
        self.rule = rule
        self.sequences: dict[str, int] = {}

    def report(self, loss: Any = None, name: str = "0001", **metrics: Any) -> str:
        if loss is not None:
            metrics["loss"] = loss
        self.sequences[name] = sequence = self.sequences.get(name, 0) + 1
        return self.rule.stops_trial(trial(name), Report(TrialId(name), 1, sequence, T0, metrics))

    def end(self, name: str = "0001", status: TrialStatus = TrialStatus.COMPLETED, **values: Any) -> None:
        self.rule.on_trial_end(trial(name, status=status, reports=self.sequences.get(name, 0), **values))


def experiment(mode: Any = "min", **counts: int) -> Experiment:
    made = Experiment("mine", metric="loss", mode=mode)
    made.created_at = T0
    for status, count in counts.items():
        made.counts[TrialStatus[status]] = count
    made.trials = {TrialId(f"{number:04d}"): trial(f"{number:04d}") for number in range(sum(counts.values()))}
    return made


@pytest.mark.parametrize(
    ("rule", "mode", "losses", "reasons"),
    [
        # An iteration that is not reported is the sequence number.
        ({"training_iteration": 3}, "min", [9.0] * 4, ["", "", "training_iteration=3 reached 3", "training_iteration=4 reached 3"]),
        (MaximumIteration(3), "min", [9.0] * 3, ["", "", "reached iteration 3"]),
        (MaximumIteration(3), "min", [{"training_iteration": 2}, {"training_iteration": 7}], ["", "reached iteration 3"]),
        (TrialDiverged(), "max", [0.0, 1e300, None, NAN, -INF], ["", "", "", "loss has diverged: nan", "loss has diverged: -inf"]),
        (TrialDiverged("gradient_norm"), "min", [{"loss": NAN, "gradient_norm": 1.0}, {"gradient_norm": INF}], ["", "…"]),
        # A maximum is reached from below, also by a metric that is minimised.
        (MetricMaximum("loss", 100), "min", [99.0, 100, 1e9, INF, NAN], ["", *["…"] * 3, "loss is NaN, and its maximum is 100"]),
        # The grace period is over.
        (TrialPlateau(std=0.1, num_results=3, grace_period=5), "min", [1.0] * 5 + [2.0, 2.0, 2.05], [*[""] * 4, "…", "", "", "…"]),
        *(
            (TrialPlateau(num_results=2, grace_period=0), "min", [1.0, odd, odd, 1.0, 1.0], [*[""] * 4, "…"])
            for odd in (NAN, INF, -INF)
        ),
        (TrialPlateau(num_results=2, grace_period=0), "min", [1.0, None, None, 1.0], ["", "", "", "…"]),
        # The standard deviation may equal the bound.
        (TrialPlateau(std=0.0, num_results=3), "min", [0.1] * 4, ["", "", "", "…"]),
        # A value that is not good enough yet is no plateau, from either side.
        (TrialPlateau(num_results=2, grace_period=0, metric_threshold=1), "min", [2.0, 2.0, 1.0, 1.0, 0.5, 0.5], ["", "", "", "…", "", "…"]),
        (TrialPlateau(num_results=2, grace_period=0, metric_threshold=1), "max", [0.5, 0.5, 1.0, 1.0], ["", "", "", "…"]),
        (TrialPlateau("acc", mode="max", num_results=2, grace_period=0, metric_threshold=1), "min",
         [{"acc": 0.5}, {"acc": 0.5}, {"acc": NAN}, {"acc": 2.0}, {"acc": 2.0}], ["", "", "", "", "…"]),
        (TrialPlateau(num_results=2, grace_period=4, min_delta=0.5), "min", [1.0, 9.0, 9.0, 9.0, 1.5, 1.75, 1.75], ["", "", "", "…", "", "", "…"]),
        (TrialPlateau(num_results=1, grace_period=0, min_delta=0), "max", [1.0, 1.0, 0.5, NAN, 2.0, 1.0],
         ["", "", "loss got worse: 0.5 is the best of the last 1 values, and 1 of those before", "", "", "…"]),
        # A bound is reached at its very value, and from the side that is meant.
        ({"loss": 0.1}, "min", [0.11, NAN, None, 0.1, -INF], ["", "", "", "…", "…"]),
        ({"loss": 0.1}, "max", [0.09, NAN, None, 0.1, INF], ["", "", "", "…", "…"]),
        ({"epoch": 3}, "min", [{"epoch": 2.5}, {"epoch": 3}, {"epoch": 3.5}], ["", "…", "…"]),
        ({"loss": 0.1, "epoch": 3}, "min", [{"loss": 0.0, "epoch": 1}], ["…"]),
        ({"done": True}, "min", [{"done": False}, {"done": True}], ["", "…"]),
        ({"loss": 2}, "min", ["low", [1], {"loss": {"a": 1}}, True, 1.0], [*[""] * 4, "…"]),
        (MaximumIteration(1), "min", [{}], ["…"]),
        (MaximumIteration(2) | {"loss": 0.1}, "min", [0.5, 0.05], ["", "reached iteration 2"]),
        (MaximumIteration(9) | {"loss": 0.1}, "min", [0.05], ["loss=0.05 reached 0.1"]),
        (MaximumIteration(2) & {"loss": 0.1}, "min", [0.05, 0.5, 0.1], ["", "", "reached iteration 2 and loss=0.1 reached 0.1"]),
    ],
)  # fmt: skip
def test_a_rule_ends_a_trial_at_these_reports(rule: Any, mode: str, losses: list[Any], reasons: list[str]) -> None:
    run = Run(bound(rule, mode))

    found = [run.report(**loss) if isinstance(loss, dict) else run.report(loss) for loss in losses]

    assert [said if wanted != "…" else "…" * bool(said) for said, wanted in zip(found, reasons, strict=True)] == reasons


@pytest.mark.parametrize(
    ("rule", "losses", "given_up"),
    [
        (TrialDiverged(), [NAN], True),
        (MaximumIteration(1), [0.5], False),
        (TrialDiverged() | MaximumIteration(1), [0.5], False),
        (TrialDiverged() | MaximumIteration(9), [0.5, NAN], True),
        # The first one says.
        (TrialDiverged() | MaximumIteration(1), [NAN], True),
        (MaximumIteration(1) | TrialDiverged(), [NAN], False),
        (MaximumIteration(1) & TrialDiverged(), [NAN], True),
        (MaximumIteration(9) | (MaximumIteration(1) & TrialDiverged()), [NAN], True),
        # Earlier trials that it gave up have no part in it.
        (TrialDiverged() | MaximumIteration(3), [0.5, NAN, 0.5], False),
    ],
)
def test_a_trial_is_given_up_where_its_rule_says_so(rule: StopRule, losses: list[float], *, given_up: bool) -> None:
    run = Run(bound(rule))

    assert [run.report(loss) for loss in losses][-1]
    assert rule.gives_up is given_up


def test_a_metric_that_the_first_report_lacks_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(bound({"epoch": 3, "los": 0.1}))

    with caplog.at_level(logging.WARNING):
        run.report(0.5, epoch=1)
        run.report(0.5, epoch=2)
        run.report(0.5, name="0002")

    assert [record.getMessage() for record in caplog.records] == [
        "stop: report 1 of trial 0001 lacks 'los', which can't stop it; it has 'epoch', 'loss'"
    ]


def test_a_metric_that_no_report_had_is_an_error_when_a_trial_completes() -> None:
    run = Run(bound({"los": 0.1}))
    run.report(0.5)

    with pytest.raises(MetricMissing, match=r"had 'los', and trial 0001 is complete; .* 'loss': correct"):
        run.end(last_metrics={"loss": 0.5})


def test_a_function_is_asked_with_the_trial_and_its_report() -> None:
    run = Run(bound(lambda trial, report: trial.id == "0002" and report.metrics["loss"] > 1))

    assert run.report(2.0) == ""
    assert "says so" in run.report(2.0, name="0002")
    assert run.report(0.5, name="0002") == ""


def test_an_error_in_a_function_names_it_the_report_and_what_it_is_called_with() -> None:
    run = Run(bound(lambda trial, report: report["loss"] > 1))

    with pytest.raises(UserCodeFailed, match=r"lambda> failed on report 1 of trial 0001: TypeError.*report\.metrics"):
        run.report(1.0)


async def later(trial: Trial, report: Report) -> bool:
    return True


@pytest.mark.parametrize(
    ("checkpoint", "source", "stops"),
    [("p-0001-1-1", None, True), ("p-0001-1-1", "0001", True), ("", None, False), ("p-0009-1-1", "0009", False)],
)
def test_a_later_attempt_keeps_its_checkpoints_values(checkpoint: str, source: TrialId | None, stops: bool) -> None:
    rule = bound(TrialPlateau(num_results=2, grace_period=0))
    rule.stops_trial(trial(), Report(TrialId("0001"), 1, 1, T0, {"loss": 1.0}))
    again = trial(attempt=2)
    again.attempt.checkpoint, again.attempt.source = CheckpointId(checkpoint), source

    assert bool(rule.stops_trial(again, Report(TrialId("0001"), 2, 1, T0, {"loss": 1.0}))) is stops
    assert rule.stops_trial(again, Report(TrialId("0001"), 2, 2, T0, {"loss": 1.0}))


@pytest.mark.parametrize(
    ("rule", "below", "at", "word"),
    [
        (TrialsStarted(3), {"CANDIDATE": 5, "QUEUED": 1, "FAILED": 1}, {"QUEUED": 1, "RUNNING": 1, "PAUSED": 1}, "started"),
        (TrialsCompleted(3), {"COMPLETED": 2, "EARLY_STOPPED": 9}, {"COMPLETED": 3}, "completed"),
        (TrialsFailed(3), {"FAILED": 2, "ABANDONED": 9}, {"FAILED": 3}, "failed"),
        (TrialsFailed(2) & TrialsStarted(3), {"FAILED": 1, "QUEUED": 9}, {"FAILED": 2, "QUEUED": 1}, "started"),
        (TrialsFailed(9) | TrialsStarted(3), {"FAILED": 2}, {"FAILED": 3}, "started"),
        (TrialsEnded(3), {"FAILED": 2, "RUNNING": 9, "PAUSED": 9}, {"COMPLETED": 1, "EARLY_STOPPED": 1, "ABANDONED": 1}, "ended"),
    ],
)  # fmt: skip
def test_an_experiment_stops_at_the_number_of_trials(
    rule: StopRule, below: dict[str, int], at: dict[str, int], word: str
) -> None:
    assert rule.stops_experiment(experiment(**below), T0) == ""
    assert rule.stops_experiment(experiment(**at), T0).split(" and ")[-1] == f"3 trials have {word}"


def test_a_time_limit_holds_from_its_very_moment_on_and_says_when_that_is() -> None:
    rule, mine = TimeLimit(60), experiment()

    assert rule.stops_experiment(mine, T0 + 59.999) == ""
    assert rule.stops_experiment(mine, T0 + 60) == "the time limit of 60 s is over"
    assert rule.due(mine, T0) == T0 + 60
    assert rule.due(mine, T0 + 60) == INF
    assert (rule | TimeLimit(90)).due(mine, T0 + 60) == T0 + 90
    assert TrialsFailed(1).due(mine, T0) == INF
    # It does not run before the experiment is created.
    mine.created_at = None
    assert rule.stops_experiment(mine, T0 + 99) == ""
    assert rule.due(mine, T0) == INF


@pytest.mark.parametrize(("mode", "short"), [("min", 0.11), ("max", 0.09)])
def test_an_experiment_stops_at_its_target_and_beyond(mode: str, short: float) -> None:
    rule, mine = TargetReached(0.1), experiment(mode)
    assert rule.stops_experiment(mine, T0) == ""
    best = mine.best = trial("0007")

    best.best_value = short
    assert rule.stops_experiment(mine, T0) == ""
    best.best_value = 0.1
    assert rule.stops_experiment(mine, T0) == "trial 0007 has reached the target: loss=0.1"
    best.best_value = 0.2 - short
    assert rule.stops_experiment(mine, T0)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-2, 2).map(float) | st.just(NAN)), max_size=60),
    st.sampled_from(["min", "max"]),
)
def test_a_plateau_is_one_of_the_best_values_of_the_best_trials(steps: list[tuple[int, float]], mode: str) -> None:
    run = Run(bound(ExperimentPlateau(std=0, top=3), mode))
    best: dict[int, float] = {}
    sign = 1 if mode == "min" else -1

    for name, loss in steps:
        run.report(loss, name=str(name))
        if not math.isnan(loss):
            best[name] = min(best.get(name, INF), sign * loss)
        is_even = len(best) >= 3 and len(set(sorted(best.values())[:3])) == 1
        assert bool(run.rule.stops_experiment(experiment(mode), T0)) == is_even


def test_a_plateau_of_another_metric_needs_a_mode_and_that_of_the_experiments_none() -> None:
    with pytest.raises(ConfigurationError, match="'accuracy' is not the experiment's metric 'loss'; say mode="):
        bound(ExperimentPlateau("accuracy"))
    with pytest.raises(ConfigurationError, match="mode='max' for 'loss', of which the experiment wants the min"):
        bound(ExperimentPlateau("loss", mode="max"))
    run = Run(bound(ExperimentPlateau("accuracy", mode="max", top=2)))
    for number, accuracy in enumerate((0.1, 0.9, 0.9)):
        run.report(accuracy=accuracy, name=str(number))
    assert run.rule.stops_experiment(experiment(), T0)


def test_dicts_and_functions_combine_from_either_side() -> None:
    for rule in (
        {"loss": 0.1} | MaximumIteration(9),
        MaximumIteration(9) | (lambda trial, report: report.metrics["loss"] < 1),
    ):
        assert Run(bound(rule)).report(0.05)
    for rule in ({"loss": 0.1} & MaximumIteration(9), MaximumIteration(9) & (lambda trial, report: False)):
        assert not Run(bound(rule)).report(0.05)


def test_a_rule_says_what_it_may_end() -> None:
    assert MaximumIteration(9).scopes == {Scope.TRIAL}
    assert TimeLimit(9).scopes == {Scope.EXPERIMENT}
    assert (MaximumIteration(9) | TimeLimit(9)).scopes == set(Scope)
    assert ((MaximumIteration(9) | TimeLimit(9)) & TimeLimit(9)).scopes == {Scope.EXPERIMENT}


def test_a_rule_stands_in_one_place() -> None:
    rule = TrialPlateau()
    with pytest.raises(ConfigurationError, match="make another one"):
        bound(rule | rule)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: as_rule(100), "stop=100 is not a stop rule; give a dict"),
        (lambda: as_rule([TimeLimit(1)]), r"join several by \| \(any\) or & \(all\)"),
        (lambda: as_rule(TimeLimit), "stop=TimeLimit is a class"),
        (lambda: as_rule({}), "has no bound"),
        (lambda: as_rule({"loss": NAN}), "loss=nan is not a finite number"),
        (lambda: as_rule({"": 1}), "'' is not a name"),
        (lambda: as_rule(lambda report: True), "must take a trial and a report"),
        (lambda: as_rule(later), "later is a coroutine"),
        (lambda: TimeLimit(1) | None, "None is not a stop rule"),
        (AnyRule, "has no rule"),
        (
            lambda: MaximumIteration(9) & TimeLimit(60),
            r"MaximumIteration ends the trial, TimeLimit ends the experiment; join them by \|",
        ),
        (lambda: MetricMaximum("", 1), "'' is not a name"),
        (lambda: MaximumIteration(0), "iterations=0 is not a whole number of at least 1"),
        (lambda: TrialDiverged(""), "metric='' is not a name"),
        (lambda: TrialPlateau(std=-1), "std=-1 must not be below 0"),
        (lambda: TrialPlateau(num_results=1), "num_results=1 is not a whole number of at least 2"),
        (lambda: TrialPlateau(grace_period=-1), "grace_period=-1"),
        (lambda: TrialPlateau(min_delta=-1), "min_delta=-1 must not be below 0"),
        (lambda: TrialPlateau(metric_threshold=NAN), "metric_threshold=nan"),
        (lambda: TrialPlateau(mode="least"), "mode='least'"),  # type: ignore[arg-type]
        (lambda: bound(TrialPlateau("accuracy", min_delta=0)), "whether a higher accuracy is better is not known"),
        (lambda: ExperimentPlateau(top=1), "top=1 is not a whole number of at least 2"),
        (lambda: ExperimentPlateau(patience=-1), "patience=-1"),
        (lambda: ExperimentPlateau(mode="low"), "mode='low'"),  # type: ignore[arg-type]
        (lambda: TimeLimit(0), "seconds=0 must be above 0"),
        (lambda: TrialsStarted(0), "TrialsStarted: trials=0"),
        (lambda: ReportsReceived(0), "ReportsReceived: reports=0 is not a whole number of at least 1"),
        (lambda: TargetReached("low"), "value='low'"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused_at_once(make: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        make()


@pytest.mark.parametrize("rule", [TrialPlateau(), ExperimentPlateau(), MetricBounds({"loss": 0.1})])
def test_a_rule_that_goes_by_the_metric_asks_to_be_bound_first(rule: StopRule) -> None:
    with pytest.raises(ConfigurationError, match="call bind"):
        Run(rule).report(0.5)
