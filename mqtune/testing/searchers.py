"""The contract of searchers; subclass ``SearcherContract`` and give it yours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from itertools import islice
from typing import Any, ClassVar, Final

import pytest

from mqtune.core.trial import Attempt, Config, Report, Trial, TrialId, TrialStatus
from mqtune.search.base import Searcher
from mqtune.search.space import Space
from mqtune.testing.worlds import SPACE, WORLDS, InVirtualTime, check_plain, happened

__all__ = ["NewSearcher", "SearcherContract"]

#: Returns a new searcher over the contract's space, made with the same arguments each time.
NewSearcher = Callable[[], Searcher]

#: The number of suggestions that a test asks for.
_SUGGESTIONS: Final = 30
#: The losses that trials report: numbers, none, and values that no searcher can use.
_LOSSES: Final = (0.5, float("nan"), None, float("inf"), -1.0, -float("inf"), 0.25)


class SearcherContract(InVirtualTime):
    """The tests that a searcher must pass, by itself and in experiments in virtual time.

    A subclass whose name pytest collects overrides one fixture; it may set ``space``, if the searcher needs another::

        class TestMine(SearcherContract):
            @pytest.fixture
            def new_searcher(self) -> NewSearcher:
                return lambda: Mine(Space(self.space), seed=0)
    """

    #: The search space of its experiments.
    space: ClassVar[Mapping[str, Any]] = SPACE

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        """Return the function that makes searchers; a subclass must override it."""
        raise NotImplementedError("override the fixture new_searcher: it returns a function that makes a searcher")

    def test_it_suggests_configs_of_the_space(self, new_searcher: NewSearcher) -> None:
        suggested = _suggested(new_searcher())

        assert suggested
        for config in suggested:
            Space(self.space).check(config, partial=False)

    def test_the_same_reports_give_the_same_suggestions(self, new_searcher: NewSearcher) -> None:
        first, second = (_tried(new_searcher(), _LOSSES) for _ in range(2))

        assert first == second

    def test_reports_change_nothing_unless_it_is_adaptive(self, new_searcher: NewSearcher) -> None:
        searcher = new_searcher()
        if not searcher.adaptive:
            assert _tried(searcher, _LOSSES) == _tried(new_searcher(), [0.0])

    def test_a_suggestion_belongs_to_who_asked(self, new_searcher: NewSearcher) -> None:
        spoilt, kept = new_searcher(), _suggested(new_searcher())

        found: list[Config] = []
        while len(found) < len(kept) and (config := spoilt.suggest()) is not None:
            found.append(deepcopy(config))
            config.clear()

        assert found == kept

    def test_after_the_last_suggestion_there_is_none(self, new_searcher: NewSearcher) -> None:
        searcher = new_searcher()
        if len(_suggested(searcher)) < _SUGGESTIONS:
            assert [searcher.suggest() for _ in range(3)] == [None] * 3

    def test_a_config_that_was_given_up_is_not_suggested_again(self, new_searcher: NewSearcher) -> None:
        searcher = new_searcher()
        trial = _trial(1, searcher.suggest() or {})
        searcher.on_abandon(trial)
        searcher.on_trial_end(trial)

        assert trial.config not in _suggested(searcher)

    def test_a_config_that_is_tried_anyway_may_be_avoided(self, new_searcher: NewSearcher) -> None:
        searcher, other = new_searcher(), new_searcher()
        searcher.avoid(other.suggest() or {})

        for config in _suggested(searcher):
            Space(self.space).check(config, partial=False)

    def test_its_description_is_plain_and_never_changes(self, new_searcher: NewSearcher) -> None:
        searcher = new_searcher()
        before = check_plain(searcher.describe())
        _tried(searcher, _LOSSES)

        assert check_plain(searcher.describe()) == before == check_plain(new_searcher().describe())

    @pytest.mark.parametrize("world", ["slow", "failures", "odd values"])
    def test_the_next_driver_tries_what_the_first_would_have(self, new_searcher: NewSearcher, world: str) -> None:
        def arguments() -> dict[str, Any]:
            return {"searcher": new_searcher(), "space": self.space}

        cut, uncut = WORLDS[world].run(arguments, cut_after=[20]), WORLDS[world].run(arguments)

        assert happened(cut) == happened(uncut)


def _suggested(searcher: Searcher) -> list[Config]:
    """Return the next suggestions, as many as there are up to a bound."""
    return list(islice(iter(searcher.suggest, None), _SUGGESTIONS))


def _tried(searcher: Searcher, losses: list[float] | tuple[float | None, ...]) -> list[Config]:
    """Return its suggestions while their trials report these losses by turns, and one in three ends."""
    found: list[Config] = []
    for number in range(1, _SUGGESTIONS + 1):
        config = searcher.suggest()
        if config is None:
            break
        found.append(deepcopy(config))
        trial = _trial(number, config)
        loss = losses[number % len(losses)]
        metrics = {"training_iteration": 1} if loss is None else {"training_iteration": 1, "loss": loss}
        searcher.on_report(trial, Report(trial.id, 1, 1, float(number), metrics))
        if not number % 3:
            searcher.on_trial_end(trial)
    return found


def _trial(number: int, config: Config) -> Trial:
    return Trial(TrialId(f"{number:04d}"), config, TrialStatus.RUNNING, [Attempt(1, 0.0, config)])
