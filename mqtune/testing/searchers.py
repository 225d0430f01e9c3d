"""The tests for searchers of your own: subclass ``SearcherContract``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar, Final

import pytest

from mqtune.core.objective import Metric
from mqtune.core.trial import Attempt, Config, Report, Trial, TrialId, TrialStatus
from mqtune.results.warm_start import WarmStart
from mqtune.search.base import WAIT, PastTrial, Searcher
from mqtune.search.space import Space
from mqtune.testing.waiting import eventually
from mqtune.testing.worlds import REPLACED, SPACE, WORLDS, InVirtualTime, check_plain, happened

#: Returns a new searcher over the contract's space, with the same arguments each time.
NewSearcher = Callable[[], Searcher]

_SEED: Final = 1
_SUGGESTIONS: Final = 30
#: Number of trials to learn from. Most models need fewer before their first suggestion.
_LEARNT: Final = 12
#: Reported losses: numbers, None for a missing one, and values that no searcher can use.
_LOSSES: Final = (0.5, float("nan"), None, float("inf"), -1.0, -float("inf"), 0.25)


class SearcherContract(InVirtualTime):
    """The tests that a searcher must pass, by itself and in experiments in virtual time.

    A subclass overrides one fixture, and may set another ``space``::

        class TestMine(SearcherContract):
            @pytest.fixture
            def new_searcher(self) -> NewSearcher:
                return lambda: Mine(Space(self.space), seed=0)
    """

    #: The search space of the experiments.
    space: ClassVar[Mapping[str, Any]] = SPACE

    @pytest.fixture
    def new_searcher(self) -> NewSearcher:
        """Return a function that makes a searcher. A subclass must override this fixture."""
        raise NotImplementedError("override the fixture new_searcher: it returns a function that makes a searcher")

    def _story(self, new_searcher: NewSearcher) -> _Story:
        searcher = new_searcher()
        searcher.bind(Space(self.space), _SEED, metric="loss", mode="min")
        return _Story(searcher)

    def test_it_suggests_configs_of_the_space(self, new_searcher: NewSearcher) -> None:
        suggested = self._story(new_searcher).begin_all()

        assert suggested
        for config in suggested:
            Space(self.space).check(config, partial=False)

    def test_the_same_reports_give_the_same_suggestions(self, new_searcher: NewSearcher) -> None:
        first, second = (self._story(new_searcher).run_all(_LOSSES) for _ in range(2))

        assert first == second

    def test_reports_change_nothing_unless_it_is_adaptive(self, new_searcher: NewSearcher) -> None:
        story = self._story(new_searcher)
        if not story.searcher.adaptive:
            assert story.run_all(_LOSSES) == self._story(new_searcher).run_all([0.0])

    def test_a_suggestion_belongs_to_who_asked(self, new_searcher: NewSearcher) -> None:
        spoilt, kept = self._story(new_searcher), self._story(new_searcher).begin_all()

        configs: list[Config] = []
        while len(configs) < len(kept) and (config := spoilt.suggest()) is not None:
            configs.append(deepcopy(config))
            spoilt.begin(deepcopy(config))
            config.clear()

        assert configs == kept

    def test_after_the_last_suggestion_there_is_none(self, new_searcher: NewSearcher) -> None:
        story = self._story(new_searcher)
        if len(story.begin_all()) < _SUGGESTIONS:
            assert [story.suggest() for _ in range(3)] == [None] * 3

    def test_a_config_that_was_given_up_is_not_suggested_again(self, new_searcher: NewSearcher) -> None:
        story = self._story(new_searcher)
        trial = story.begin(story.suggest() or {})
        story.searcher.on_abandon(trial)
        story.end(trial, TrialStatus.ABANDONED)

        assert trial.config not in story.begin_all()

    def test_a_config_that_is_tried_anyway_may_be_avoided_or_adopted(self, new_searcher: NewSearcher) -> None:
        story, other = self._story(new_searcher), self._story(new_searcher)
        config = other.suggest() or {}
        story.searcher.avoid(deepcopy(config))
        story.adopt(config)

        for config in story.begin_all():
            Space(self.space).check(config, partial=False)

    def test_it_accepts_notifications_of_all_changes_of_a_trial(self, new_searcher: NewSearcher) -> None:
        story = self._story(new_searcher)
        trial = story.begin(story.suggest() or {})
        story.report(trial, 0.5)
        story.searcher.on_attempt_end(trial)
        story.searcher.on_queue(trial)
        trial.status = TrialStatus.PAUSED
        story.searcher.on_trial_pause(trial)
        trial.status = TrialStatus.QUEUED
        story.searcher.on_queue(trial)
        story.report(trial, 0.25)
        story.end(trial, TrialStatus.COMPLETED)

        for config in story.begin_all():
            Space(self.space).check(config, partial=False)

    def _past(self, new_searcher: NewSearcher) -> list[PastTrial]:
        if not new_searcher().can_learn:
            pytest.skip("this searcher learns nothing from trials of other experiments")
        values = itertools.cycle(loss for loss in _LOSSES if loss is not None)
        statuses = itertools.cycle([TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED, TrialStatus.COMPLETED])
        configs = self._story(new_searcher).begin_all()[:_LEARNT]
        return [PastTrial(config, next(values), 3, next(statuses)) for config in configs]

    def test_after_the_same_learning_it_suggests_the_same_configs(self, new_searcher: NewSearcher) -> None:
        first, second = self._story(new_searcher), self._story(new_searcher)
        for trial in self._past(new_searcher):
            first.searcher.learn(trial)
            second.searcher.learn(deepcopy(trial))

        configs = first.run_all(_LOSSES)
        for config in configs:
            Space(self.space).check(config, partial=False)
        assert configs == second.run_all(_LOSSES)

    def test_the_next_driver_has_learnt_what_the_first_one_did(self, new_searcher: NewSearcher) -> None:
        pairs = [(trial.config, trial.value) for trial in self._past(new_searcher)]

        def arguments() -> dict[str, Any]:
            return {"searcher": WarmStart(pairs, new_searcher()), "space": self.space}

        cut, uncut = WORLDS["slow"].run(arguments, cut_after=[20]), WORLDS["slow"].run(arguments)

        assert happened(cut) == happened(uncut)

    def test_its_description_is_plain_and_never_changes(self, new_searcher: NewSearcher) -> None:
        story = self._story(new_searcher)
        before = check_plain(story.searcher.describe())
        story.run_all(_LOSSES)

        assert check_plain(story.searcher.describe()) == before
        assert check_plain(self._story(new_searcher).searcher.describe()) == before

    @pytest.mark.parametrize(("world", "metric"), REPLACED)
    def test_the_next_driver_tries_what_the_first_would_have(
        self, new_searcher: NewSearcher, world: str, metric: Metric
    ) -> None:
        def arguments() -> dict[str, Any]:
            return {"searcher": new_searcher(), "space": self.space, "metric": metric}

        cut, uncut = WORLDS[world].run(arguments, cut_after=[20]), WORLDS[world].run(arguments)

        assert happened(cut) == happened(uncut)


class _Story:
    """Calls a searcher as a driver would, for trials of its suggestions."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self._number = 0

    @property
    def _next(self) -> TrialId:
        return TrialId(f"{self._number + 1:04d}")

    def suggest(self) -> Config | None:
        suggestion = eventually(lambda: (suggestion := self.searcher.suggest(self._next)) is not WAIT and (suggestion,))
        assert suggestion
        return suggestion[0]

    def begin(self, config: Config) -> Trial:
        trial = Trial(self._next, config, TrialStatus.QUEUED, [Attempt(1, 0.0, config)])
        self._number += 1
        self.searcher.on_queue(trial)
        return trial

    def adopt(self, config: Config) -> Trial:
        self.searcher.adopt(self._next, deepcopy(config))
        return self.begin(config)

    def report(self, trial: Trial, loss: object) -> None:
        trial.status = TrialStatus.RUNNING
        trial.reports += 1
        metrics = {"training_iteration": trial.reports} | ({} if loss is None else {"loss": loss})
        self.searcher.on_report(trial, Report(trial.id, 1, trial.reports, float(trial.reports), metrics))

    def end(self, trial: Trial, status: TrialStatus) -> None:
        trial.status = status
        self.searcher.on_trial_end(trial)

    def begin_all(self) -> list[Config]:
        """Begin trials with up to 30 suggestions, and return the configs."""
        configs: list[Config] = []
        while len(configs) < _SUGGESTIONS and (config := self.suggest()) is not None:
            configs.append(deepcopy(config))
            self.begin(config)
        return configs

    def run_all(self, losses: Sequence[float | None]) -> list[Config]:
        """Begin trials as ``begin_all`` does.

        Each reports one of *losses* in turn, and every third one ends. Return the configs.
        """
        configs: list[Config] = []
        while len(configs) < _SUGGESTIONS and (config := self.suggest()) is not None:
            configs.append(deepcopy(config))
            trial = self.begin(config)
            self.report(trial, losses[len(configs) % len(losses)])
            if not len(configs) % 3:
                self.end(trial, TrialStatus.COMPLETED)
        return configs
