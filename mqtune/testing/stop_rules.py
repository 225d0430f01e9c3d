"""The tests for stop rules of your own: subclass ``StopRuleContract``."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import Attempt, Metrics, Report, Trial, TrialId, TrialStatus
from mqtune.results.results import Results
from mqtune.schedulers.stopping.rule import Scope, StopRule
from mqtune.testing.worlds import WORLDS, InVirtualTime, check_plain, happened

#: Returns a new stop rule, with the same arguments each time.
NewRule = Callable[[], StopRule]

_REPORTS: Final = 60
_ODD: Final = (float("nan"), float("inf"), -float("inf"), 0, True)


class StopRuleContract(InVirtualTime):
    """The tests that a stop rule must pass, by itself and in experiments in virtual time.

    A subclass overrides one fixture::

        class TestMine(StopRuleContract):
            @pytest.fixture
            def new_rule(self) -> NewRule:
                return lambda: Mine(patience=3)
    """

    @pytest.fixture
    def new_rule(self) -> NewRule:
        """Return a function that makes a stop rule. A subclass must override this fixture."""
        raise NotImplementedError("override the fixture new_rule: it returns a function that makes a stop rule")

    def test_it_stops_trials_or_the_experiment(self, new_rule: NewRule) -> None:
        scopes = new_rule().scopes

        assert scopes
        assert scopes <= set(Scope)

    def test_it_gives_reasons_or_an_empty_text(self, new_rule: NewRule) -> None:
        assert {type(answer) for answer in _answers(_bound(new_rule()))} == {str}

    def test_the_same_reports_give_the_same_answers(self, new_rule: NewRule) -> None:
        first, second = (_answers(_bound(new_rule())) for _ in range(2))

        assert first == second

    def test_combined_with_another_of_its_kind_it_answers_the_same(self, new_rule: NewRule) -> None:
        one = _answers(_bound(new_rule()))

        assert _answers(_bound(new_rule() | new_rule())) == one
        assert [bool(reason) for reason in _answers(_bound(new_rule() & new_rule()))] == [bool(r) for r in one]

    def test_its_description_is_plain_and_never_changes(self, new_rule: NewRule) -> None:
        rule = _bound(new_rule())
        before = check_plain(rule.describe())
        _answers(rule)

        assert check_plain(rule.describe()) == before == check_plain(_bound(new_rule()).describe())

    def test_it_is_for_one_experiment(self, new_rule: NewRule) -> None:
        rule = _bound(new_rule())

        assert (rule.metric, rule.mode) == ("loss", "min")
        with pytest.raises(ConfigurationError):
            rule.bind("loss", "min")

    @pytest.mark.parametrize("world", ["slow", "failures", "odd values"])
    def test_the_next_driver_stops_what_the_first_would_have(self, new_rule: NewRule, world: str) -> None:
        uncut, cut = _run(world, new_rule), _run(world, new_rule, 20)

        assert happened(cut) == happened(uncut)
        assert [result.id for result in uncut if not result.status.is_terminal] == []

    def test_time_alone_ends_an_experiment_in_the_future(self, new_rule: NewRule) -> None:
        rule = _bound(new_rule())
        experiment = WORLDS["failures"].run(dict).experiment
        now = (experiment.created_at or 0.0) + 1.0

        assert isinstance(rule.stops_experiment(experiment, now), str)
        assert rule.stops_experiment(experiment, now) == rule.stops_experiment(experiment, now)
        assert rule.due(experiment, now) > now


def _bound(rule: StopRule) -> StopRule:
    rule.bind("loss", "min")
    return rule


def _answers(rule: StopRule) -> list[str]:
    rng = random.Random(0)
    trials = [Trial(TrialId(f"{n:04d}"), {}, TrialStatus.RUNNING, [Attempt(1, 0.0, {})]) for n in (1, 2, 3)]
    answers = []
    for number in range(_REPORTS):
        trial = trials[number % 3]
        metrics: Metrics = {}
        for key in sorted({"loss", "training_iteration", *rule.reads}):
            if rng.random() < 0.9:
                metrics[key] = rng.choice(_ODD) if rng.random() < 0.1 else rng.random() / (number + 1)
        trial.reports += 1
        answers.append(rule.stops_trial(trial, Report(trial.id, 1, trial.reports, float(number), metrics)))
    for trial in trials:
        rule.on_abandon(trial)
        rule.on_trial_end(trial)
    return answers


def _run(world: str, new_rule: NewRule, *cut_after: int) -> Results:
    return WORLDS[world].run(lambda: {"stop": new_rule()}, cut_after=cut_after)
