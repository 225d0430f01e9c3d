"""The tests for schedulers of your own: subclass ``SchedulerContract``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import Metric, Objective
from mqtune.core.trial import Action, Decision, Report, Trial, TrialId
from mqtune.results.results import Results
from mqtune.schedulers.base import Choice, Scheduler
from mqtune.search.space import Space
from mqtune.testing.worlds import REPLACED, SPACE, WORLDS, InVirtualTime, check_plain, happened

#: Returns a new scheduler, with the same arguments each time.
NewScheduler = Callable[[], Scheduler]


class Watched(Scheduler):
    """Wraps a scheduler, and checks that calls and results follow the rules of ``Scheduler``."""

    def __init__(self, inner: Scheduler) -> None:
        self.inner = inner
        self.asks_ahead = inner.asks_ahead
        self.searcher = inner.searcher
        self.log: list[tuple[Report, Decision]] = []
        self.ended: set[TrialId] = set()
        self._last: dict[TrialId, Report] = {}
        self._decided: dict[TrialId, int] = {}

    @property
    def time_attr(self) -> str:
        return self.inner.time_attr

    def check_objective(self, objective: Objective) -> None:
        super().check_objective(objective)
        self.inner.check_objective(objective)

    def bind(self, metric: str, mode: str) -> None:
        super().bind(metric, mode)
        self.inner.bind(metric, mode)

    def check_space(self, space: Space) -> None:
        self.inner.check_space(space)

    def on_queue(self, trial: Trial) -> None:
        assert trial.id not in self.ended, "queued after the trial's end"
        self.inner.on_queue(trial)

    def on_report(self, trial: Trial, report: Report) -> Decision:
        assert trial.id not in self.ended, "shown after the trial's end"
        assert self._decided.get(trial.id) != report.attempt, "shown after the decision"
        last = self._last.get(trial.id)
        assert last is None or (last.attempt, last.sequence) < (report.attempt, report.sequence), "shown twice"
        self._last[trial.id] = report
        decision = self.inner.on_report(trial, report)
        assert isinstance(decision, Decision), f"on_report returned {decision!r}, and not a Decision"
        if decision.action is not Action.CONTINUE:
            self._decided[trial.id] = report.attempt
        self.log.append((report, decision))
        return decision

    def on_trial_pause(self, trial: Trial) -> None:
        self.inner.on_trial_pause(trial)

    def choose(self, *, can_start: bool) -> Choice:
        choice = self.inner.choose(can_start=can_start)
        assert isinstance(choice, Choice), f"choose returned {choice!r}, and not a Choice"
        assert self.inner.choose(can_start=can_start) == choice, "choose has changed something"
        return choice

    def on_abandon(self, trial: Trial) -> None:
        self.inner.on_abandon(trial)

    def on_trial_end(self, trial: Trial) -> None:
        assert trial.id not in self.ended, "ended twice"
        self.ended.add(trial.id)
        self.inner.on_trial_end(trial)

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()


class SchedulerContract(InVirtualTime):
    """The tests that a scheduler must pass, in virtual time.

    A subclass overrides one fixture, and may set another ``space``::

        class TestMine(SchedulerContract):
            @pytest.fixture
            def new_scheduler(self) -> NewScheduler:
                return lambda: Mine(max_t=9)

    Trials report the metric "loss" and an "accuracy", up to 12 times. Some experiments have an outcome constraint on
    the accuracy.
    """

    #: The search space of the experiments.
    space: ClassVar[Mapping[str, Any]] = SPACE

    @pytest.fixture
    def new_scheduler(self) -> NewScheduler:
        """Return a function that makes a scheduler. A subclass must override this fixture."""
        raise NotImplementedError("override the fixture new_scheduler: it returns a function that makes a scheduler")

    def _run(self, world: str, new_scheduler: NewScheduler, *cut_after: int, metric: Metric = "loss") -> Results:
        return WORLDS[world].run(
            lambda: {"scheduler": Watched(new_scheduler()), "space": self.space, "metric": metric},
            cut_after=cut_after,
            time_attr=new_scheduler().time_attr,
        )

    @pytest.mark.parametrize("world", WORLDS)
    def test_every_trial_is_tried_and_ends(self, new_scheduler: NewScheduler, world: str) -> None:
        results = self._run(world, new_scheduler)

        assert len(results) >= WORLDS[world].trials
        assert {result.id: result.status.name for result in results if not result.status.is_terminal} == {}

    @pytest.mark.parametrize("world", ["slow", "odd values", "lost workers"])
    def test_the_same_reports_give_the_same_decisions(self, new_scheduler: NewScheduler, world: str) -> None:
        first, second = (self._run(world, new_scheduler) for _ in range(2))

        assert happened(first) == happened(second)

    @pytest.mark.parametrize(("world", "metric"), REPLACED)
    def test_the_next_driver_decides_as_the_first_would_have(
        self, new_scheduler: NewScheduler, world: str, metric: Metric
    ) -> None:
        uncut = happened(self._run(world, new_scheduler, metric=metric))

        assert happened(self._run(world, new_scheduler, 7, 20, metric=metric)) == uncut

    def test_its_description_is_plain_and_never_changes(self, new_scheduler: NewScheduler) -> None:
        used, other = new_scheduler(), new_scheduler()
        before = check_plain(used.describe())
        self._run("slow", lambda: used)

        assert check_plain(used.describe()) == before == check_plain(other.describe())

    def test_it_decides_for_one_experiment(self, new_scheduler: NewScheduler) -> None:
        scheduler = new_scheduler()
        scheduler.bind("loss", "max")

        assert (scheduler.metric, scheduler.mode) == ("loss", "max")
        with pytest.raises(ConfigurationError):
            scheduler.bind("loss", "max")

    @pytest.mark.parametrize(("metric", "mode"), [("", "min"), ("loss", "least")])
    def test_an_empty_metric_or_unknown_mode_is_refused(
        self, new_scheduler: NewScheduler, metric: str, mode: str
    ) -> None:
        with pytest.raises(ConfigurationError):
            new_scheduler().bind(metric, mode)
