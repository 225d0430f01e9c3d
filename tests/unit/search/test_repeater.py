"""Repeater: each config with each value of one entry, and the mean as its score."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from simulation import tuner_on

import mqtune
from mqtune import Space
from mqtune.core.errors import ConfigurationError, SpaceError
from mqtune.core.trial import Attempt, Config, Report, Trial, TrialId, TrialStatus
from mqtune.search import Searcher

NAN = math.nan
COMPLETED, STOPPED, FAILED, ABANDONED = list(TrialStatus)[4:]
#: A constraint sees the first seed where the other searcher asks it.
PLAIN = {"x": mqtune.randint(1, 1000), "twice": mqtune.sample_from(lambda c: 2 * c["x"])}
SPACE = Space({"seed": mqtune.choice([7, 8, 9]), **PLAIN})


class Noting(mqtune.RandomSearcher):
    """Notes what it is told."""

    def __init__(self, space: Space) -> None:
        super().__init__(space, 1)
        self.told: list[Any] = []

    def adopt(self, trial: TrialId, config: Config) -> None:
        self.told.append(("adopt", trial, config))

    def on_queue(self, trial: Trial) -> None:
        self.told.append(("stage", trial.id, copy.deepcopy(trial.config)))

    def on_report(self, trial: Trial, report: Report) -> None:
        self.told.append(("report", trial.id, report.metrics))

    def on_trial_pause(self, trial: Trial) -> None:
        raise AssertionError

    on_attempt_end = on_trial_pause

    def on_abandon(self, trial: Trial) -> None:
        self.told.append(("abandon", trial.id))

    def on_trial_end(self, trial: Trial) -> None:
        self.told.append(("end", trial.id, trial.status))


class Story:
    """A Repeater, and trials that it is told of as a driver would."""

    def __init__(self, searcher: Searcher | None = None, over: str = "seed") -> None:
        self.repeater = mqtune.Repeater(over, searcher)
        self.inner: Any = searcher
        self.repeater.check_space(SPACE)
        self.repeater.bind(SPACE, 1, metric="loss", mode="min")
        self.trials: list[Trial] = []

    @property
    def told(self) -> list[Any]:
        """The last call of the other searcher."""
        told: list[Any] = self.inner.told[:]
        self.inner.told.clear()
        return told

    def begin(self, *, replays: Config | None = None, adds: Config | None = None) -> Trial:
        name = TrialId(f"{len(self.trials) + 1:04d}")
        if adds is not None:
            self.repeater.adopt(name, copy.deepcopy(adds))
        config: Any = adds or replays or self.repeater.suggest(name)
        if replays is not None:
            assert self.repeater.replay(name, copy.deepcopy(replays)) == replays
        trial = Trial(name, config, TrialStatus.QUEUED, [Attempt(1, 0.0, config)])
        self.trials.append(trial)
        self.repeater.on_queue(trial)
        return trial

    def end(self, trial: Trial, status: TrialStatus, *losses: float | None) -> None:
        for number, loss in enumerate(losses, 1):
            metrics = {} if loss is None else {"loss": loss}
            self.repeater.on_report(trial, Report(trial.id, 1, number, 0.0, metrics))
        trial.status = status
        if status is ABANDONED:
            self.repeater.on_abandon(trial)
        self.repeater.on_trial_end(trial)


def noting() -> Story:
    return Story(Noting(Space({"seed": 7, **PLAIN})))


def test_each_config_is_tried_with_each_value_and_the_mean_is_told_once() -> None:
    story = noting()

    trials = [story.begin() for _ in range(4)]

    x = trials[0].config["x"]
    assert [trial.config for trial in trials[:3]] == [{"x": x, "seed": seed, "twice": 2 * x} for seed in (7, 8, 9)]
    assert trials[3].config["x"] != x
    assert [told[:2] for told in story.told] == [("stage", "0001"), ("stage", "0004")]
    story.end(trials[1], COMPLETED, 9.0, 1.0)
    story.repeater.on_attempt_end(trials[0])
    story.repeater.on_queue(trials[0])
    story.end(trials[0], COMPLETED, 9.0, 3.0, None)
    assert not story.told
    story.end(trials[2], COMPLETED, 5.0)
    assert story.told == [("report", "0001", {"training_iteration": 1, "loss": 3.0}), ("end", "0001", COMPLETED)]


@pytest.mark.parametrize(
    ("ends", "mean", "status"),
    [
        ([(FAILED, 0.0), (COMPLETED, 2.0), (COMPLETED, 4.0)], 3.0, COMPLETED),
        ([(STOPPED, 0.0), (ABANDONED, 1.0), (COMPLETED, 4.0)], 4.0, COMPLETED),
        ([(COMPLETED, 1.0), (COMPLETED, NAN), (COMPLETED, 1.0)], NAN, COMPLETED),
        ([(COMPLETED, None), (COMPLETED, None), (COMPLETED, None)], None, COMPLETED),
        ([(ABANDONED, 1.0), (FAILED, 1.0), (STOPPED, 1.0)], None, STOPPED),
        ([(ABANDONED, 1.0), (FAILED, 1.0), (FAILED, 1.0)], None, FAILED),
        ([(ABANDONED, 1.0)] * 3, None, ABANDONED),
    ],
)
def test_the_mean_is_of_those_that_completed(ends: list[Any], mean: float | None, status: TrialStatus) -> None:
    story = noting()
    for end in ends:
        story.end(story.begin(), *end)

    told = story.told
    assert told[-1] == ("end", "0001", status)
    assert (("abandon", "0001") in told) == (status is ABANDONED)
    assert [each[2]["loss"] for each in told if each[0] == "report"] == pytest.approx(
        [] if mean is None else [mean], nan_ok=True
    )


def test_a_repetition_that_goes_on_with_another_config_has_no_part_any_more() -> None:
    story = noting()
    trials = [story.begin() for _ in range(3)]
    trials[0].config = {**trials[0].config, "x": 1001}
    story.repeater.on_queue(trials[0])
    story.repeater.on_queue(trials[0])
    for trial, loss in zip(trials, (0.0, 2.0, 4.0), strict=True):
        story.end(trial, COMPLETED, loss)

    assert story.told[-2:] == [("report", "0001", {"training_iteration": 1, "loss": 3.0}), ("end", "0001", COMPLETED)]


def test_an_abandoned_repetition_is_not_suggested_again_and_the_others_are() -> None:
    space = Space({"x": mqtune.choice([1]), "seed": mqtune.choice([7, 8])})
    repeater = mqtune.Repeater("seed")
    repeater.bind(space, 1, metric="loss", mode="min")
    first = repeater.suggest(TrialId("0001"))
    trial = Trial(TrialId("0001"), {"x": 1, "seed": 7}, ABANDONED, [Attempt(1, 0.0)])
    repeater.on_queue(trial)
    repeater.on_abandon(trial)
    repeater.on_trial_end(trial)

    assert first == trial.config
    assert [repeater.suggest(TrialId("0002")) for _ in range(3)] == [{"x": 1, "seed": 8}] * 3


steps = st.lists(
    st.tuples(st.sampled_from(["begin", "add", "end"]), st.integers(0, 9), st.sampled_from(list(TrialStatus)[4:]))
)


#: A repetition that somebody has added, and abandoned, before it was suggested.
ADDED = [
    ("begin", 0, COMPLETED), ("begin", 0, COMPLETED), ("add", 8, COMPLETED), ("end", 0, COMPLETED), ("end", 1, ABANDONED),
    ("begin", 0, COMPLETED), ("end", 0, COMPLETED),
]  # fmt: skip


@given(steps=steps)
@example(steps=ADDED)
@settings(max_examples=2 * settings.default.max_examples)
def test_a_resumed_driver_is_suggested_what_the_first_would_have_been(steps: list[Any]) -> None:
    live, resumed = noting(), noting()
    for step, number, status in steps:
        if step == "begin":
            config = live.begin().config
            resumed.begin(replays=config)
        elif step == "add":
            for story in (live, resumed):
                # Often one that was suggested, or is going to be.
                added = live.trials[0].config if live.trials and number > 5 else {"x": 5, "twice": 10}
                story.begin(adds={**added, "seed": 7 + number % 3})
        elif under_way := [each.id for each in live.trials if not each.status.is_terminal]:
            chosen = under_way[number % len(under_way)]
            for story in (live, resumed):
                story.end(next(each for each in story.trials if each.id == chosen), status, float(number))

    assert live.told == resumed.told
    assert [live.begin().config for _ in range(4)] == [resumed.begin().config for _ in range(4)]


@pytest.mark.parametrize(
    ("key", "entries", "error"),
    [
        ("seed", {}, r"has no 'seed' to choose; add 'seed': mqtune.choice"),
        ("seed", {"seed": 3}, r"has no 'seed' to choose"),
        ("x", {}, r"'x' is uniform\(0.0, 1.0\), and each config is tried with each of its values"),
        ("seed", {"seed": mqtune.randint(0, 2**31)}, r"at most 1,000, such as"),
        ("seed/0", {"seed": [mqtune.choice([1, 2])]}, r"seed/0 is not a domain outside of lists and choices"),
        ("a", {"a": mqtune.choice([{"b": mqtune.choice([1])}])}, r"a is not a domain outside"),
    ],
)
def test_an_entry_whose_values_can_not_be_counted_is_refused(key: str, entries: dict[str, Any], error: str) -> None:
    with pytest.raises(SpaceError, match=error):
        mqtune.Repeater(key).check_space(Space({"x": mqtune.uniform(0, 1), **entries}))


def test_bad_arguments_and_another_experiments_searcher_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="over=3 is not the name"):
        mqtune.Repeater(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="searcher='best' is not a searcher"):
        mqtune.Repeater("seed", "best")
    with pytest.raises(ConfigurationError, match="Repeater supports one metric"):
        mqtune.Tuner(
            curve, {"seed": mqtune.choice([1])}, metric=["loss", "x"], mode="min", searcher=mqtune.Repeater("seed")
        )
    with pytest.raises(ConfigurationError, match="another experiment's"):
        noting().repeater.check_space(Space({"seed": mqtune.choice([1])}))


def test_a_searcher_whose_own_space_has_the_entry_is_refused_when_it_suggests() -> None:
    story = Story(mqtune.InitialPoints([{"seed": 8}], Noting(SPACE), space=SPACE))

    with pytest.raises(ConfigurationError, match=r"InitialPoints proposes .* 'seed' is the constant 7"):
        story.begin()


@pytest.mark.parametrize("around", [False, True])
def test_a_scheduler_that_ends_trials_early_is_refused_when_the_tuner_is_made(around: bool) -> None:
    space = {"x": mqtune.uniform(0, 1), "seed": mqtune.choice([1, 2])}
    repeater = mqtune.Repeater("seed")
    searcher = mqtune.InitialPoints([{"x": 0.5}], repeater) if around else repeater

    with pytest.raises(ConfigurationError, match=r"scheduler=ASHA\(…\): .* trials that have run to their own end"):
        mqtune.Tuner(curve, space, metric="loss", mode="min", searcher=searcher, scheduler=mqtune.ASHA(9))


def curve(config: Config) -> Any:
    if config["x"] == 2 and config["data"]["seed"] == 3:
        yield 1.0, RuntimeError("failed as planned")
    yield 1.0, {"loss": 100.0}
    yield 1.0, {"loss": config["x"] + 0.1 * config["data"]["seed"]}


def test_results_show_the_means_the_best_first() -> None:
    space = {"x": mqtune.grid_search([3, 2, 1]), "data": {"seed": mqtune.choice([1, 2, 3])}}
    results = tuner_on(mqtune.Simulated(curve), curve, space, searcher=mqtune.Repeater("data/seed")).run()

    found = results.repeated()

    assert len(results) == 9
    assert [(each.config, round(each.mean, 9)) for each in found] == [
        ({"x": 1, "data": {}}, 1.2),
        ({"x": 3, "data": {}}, 3.2),
        # One of its trials has failed.
        ({"x": 2, "data": {}}, 2.15),
    ]
    assert found[0].std == pytest.approx(0.1)
    assert [len(each.trials) for each in found] == [3, 3, 3]
