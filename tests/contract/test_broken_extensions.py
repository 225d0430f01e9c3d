"""The contract suites find what breaks their contracts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqtune
from mqtune.core.errors import MqtuneError
from mqtune.core.trial import CONTINUE, Action, Config, Decision, Report, Trial, TrialId
from mqtune.schedulers import Scheduler, Wait
from mqtune.schedulers.base import START, Choice
from mqtune.schedulers.stopping.rule import StopRule
from mqtune.search import Searcher
from mqtune.testing.callbacks import CallbackContract
from mqtune.testing.schedulers import SchedulerContract
from mqtune.testing.searchers import SearcherContract
from mqtune.testing.stop_rules import StopRuleContract

#: What one instance leaves for the next: whoever reads it is not deterministic.
shared = itertools.count()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "home"))


class Plain(Scheduler):
    def on_report(self, trial: Trial, report: Report) -> Decision:
        return CONTINUE

    def describe(self) -> dict[str, Any]:
        return {"scheduler": "plain"}


class Gambles(Plain):
    """Stops at a report that no two instances in a row agree on."""

    def __init__(self) -> None:
        self.stops_at = 1 + next(shared) % 3

    def on_report(self, trial: Trial, report: Report) -> Decision:
        return Decision(Action.STOP, "bad luck") if report.sequence == self.stops_at else CONTINUE


def without(base: type, **methods: Any) -> type:
    """Return a class that breaks a promise by these methods."""
    return type("Broken", (base,), methods)


def pauses(scheduler: Scheduler, trial: Trial, report: Report) -> Decision:
    return Decision(Action.PAUSE, "for ever") if report.sequence == 2 else CONTINUE


def wavers(scheduler: Scheduler, *, can_start: bool) -> Choice:
    return START if next(shared) % 2 else Wait("for nothing")


@pytest.mark.parametrize(
    ("scheduler", "test"),
    [
        (
            without(Plain, on_report=pauses),
            lambda suite, new: suite.test_every_trial_is_tried_and_ends(new, "failures"),
        ),
        (Gambles, lambda suite, new: suite.test_the_same_reports_give_the_same_decisions(new, "slow")),
        (Gambles, lambda suite, new: suite.test_the_next_driver_decides_as_the_first_would_have(new, "slow", "loss")),
        (without(Plain, choose=wavers), lambda suite, new: suite.test_every_trial_is_tried_and_ends(new, "slow")),
    ],
)
def test_a_broken_scheduler_is_found(scheduler: type[Scheduler], test: Callable[..., None]) -> None:
    with pytest.raises((AssertionError, MqtuneError)):
        test(SchedulerContract(), scheduler)


def test_a_scheduler_that_nothing_can_write_down_is_found() -> None:
    with pytest.raises(TypeError, match="is not a number, string, list or dict"):
        SchedulerContract().test_its_description_is_plain_and_never_changes(
            without(Plain, describe=lambda _: {"scheduler": object()})
        )


class Counts(Searcher):
    """Suggests a number of its own each time."""

    def __init__(self) -> None:
        self.numbers = itertools.count()

    def suggest(self, trial: TrialId) -> Config | None:
        return {"lr": next(self.numbers) / 1000, "momentum": 0.5}

    def describe(self) -> dict[str, Any]:
        return {"searcher": "counts"}


def suggests(config: Callable[[], Config]) -> type:
    return without(Counts, suggest=lambda searcher, trial: config())


LENT: Config = {"lr": 0.5, "momentum": 0.5}
Draws = suggests(lambda: {"lr": next(shared) / 1e6, "momentum": 0.5})
#: It learns something else from the same trials each time.
Confuses = without(Counts, learn=lambda searcher, _: setattr(searcher, "numbers", itertools.count(next(shared))))


@pytest.mark.parametrize(
    ("searcher", "test"),
    [
        (Draws, lambda suite, new: suite.test_the_same_reports_give_the_same_suggestions(new)),
        (Draws, lambda suite, new: suite.test_reports_change_nothing_unless_it_is_adaptive(new)),
        (
            suggests(lambda: dict(LENT)),
            lambda suite, new: suite.test_a_config_that_was_given_up_is_not_suggested_again(new),
        ),
        (suggests(lambda: LENT), lambda suite, new: suite.test_a_suggestion_belongs_to_who_asked(new)),
        (
            Confuses,
            lambda suite, new: suite.test_after_the_same_learning_it_suggests_the_same_configs(new),
        ),
        (Confuses, lambda suite, new: suite.test_the_next_driver_has_learnt_what_the_first_one_did(new)),
        (suggests(lambda: {"lr": 7.0}), lambda suite, new: suite.test_it_suggests_configs_of_the_space(new)),
    ],
)
def test_a_broken_searcher_is_found(searcher: type[Searcher], test: Callable[..., None]) -> None:
    with pytest.raises((AssertionError, MqtuneError)):
        test(SearcherContract(), searcher)


class Moody(StopRule):
    def stops_trial(self, trial: Trial, report: Report) -> str:
        return "enough" if not next(shared) % 7 else ""

    def describe(self) -> dict[str, Any]:
        return {"rule": "moody"}


Naive = without(Moody, stops_trial=lambda rule, trial, report: "enough" if report.metrics["loss"] > 1 else "")
Late = without(Moody, due=lambda rule, experiment, now: now - 1)


@pytest.mark.parametrize(
    ("rule", "test"),
    [
        (Moody, lambda suite, new: suite.test_the_same_reports_give_the_same_answers(new)),
        (Naive, lambda suite, new: suite.test_it_gives_reasons_or_an_empty_text(new)),
        (Late, lambda suite, new: suite.test_time_alone_ends_an_experiment_in_the_future(new)),
    ],
)
def test_a_broken_stop_rule_is_found(rule: type[StopRule], test: Callable[..., None]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        test(StopRuleContract(), rule)


def trips(callback: mqtune.Callback, trial: Trial, report: Report) -> None:
    raise KeyError(report.metrics["loss"])


def meddles(callback: mqtune.Callback, trial: Trial, report: Report) -> None:
    trial.config["lr"] = 0.0


@pytest.mark.parametrize("callback", [without(mqtune.Callback, on_report=how) for how in (trips, meddles)])
def test_a_broken_callback_is_found(callback: type[mqtune.Callback], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        CallbackContract().test_no_event_makes_it_fail_or_change_a_trial(lambda _: callback(), "failures", tmp_path)
