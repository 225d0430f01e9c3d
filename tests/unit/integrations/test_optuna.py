"""Optuna's samplers as searchers: their trials and values, and no repeated questions."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from searcher_story import DOMAINS, Story

import mqtune
from mqtune import Space
from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import Objective
from mqtune.core.registry import described
from mqtune.core.trial import Config, Report, Trial, TrialId, TrialStatus
from mqtune.integrations import OptunaSearcher, distributions_of, storage_of
from mqtune.search import Searcher, searcher_named, searcher_of

UNIT = mqtune.uniform(0, 1)
SPACE = Space(DOMAINS)
ADAM = {"name": "adam", "lr": mqtune.loguniform(1e-5, 1e-1), "eps": mqtune.sample_from(lambda c: c["opt"]["lr"])}
SGD = {"name": "sgd", "lr": mqtune.randint(1, 9), "nesterov": mqtune.choice([None, mqtune.normal(0, 1)])}
LAYERS = [mqtune.lograndint(8, 512), {"momentum": mqtune.reverseloguniform(0.9, 0.999)}]
CONDITIONAL = Space({"opt": mqtune.choice([ADAM, SGD]), "layers": LAYERS})
LIMITED = Space({"x": UNIT, "y": UNIT}, constraint=lambda config: config["x"] + config["y"] < 0.5)


def bound(
    sampler: optuna.samplers.BaseSampler | None = None, seed: int = 1, space: Space = SPACE, *, several: bool = False
) -> OptunaSearcher:
    searcher = OptunaSearcher(sampler)
    if several:
        searcher.check_objective(Objective.of(["loss", "speed"], ["min", "max"]))
    searcher.bind(space, seed, metric="loss", mode="min")
    return searcher


class Study(Story):
    """A story, and the sampler's view of it."""

    @property
    def model(self) -> list[optuna.trial.FrozenTrial]:
        trials: list[optuna.trial.FrozenTrial] = self.searcher.study.trials
        return trials


@pytest.fixture
def story() -> Study:
    return Study(bound())


def test_once_trials_are_stopped_early_chance_has_a_third_of_the_configs(story: Study) -> None:
    def at_random() -> int:
        samplers = []
        for _ in range(45):
            story.end(story.report(story.begin(), 0.5))
            samplers.append(type(story.searcher.study.sampler))
        return samplers.count(optuna.samplers.RandomSampler)

    assert at_random() == 0
    story.end(story.report(story.begin(), 0.5), TrialStatus.EARLY_STOPPED)
    assert 9 <= at_random() <= 21


def test_where_parameters_hang_on_a_choice_two_suggestions_of_three_draw_that_alone() -> None:
    model = mqtune.choice([{"name": "quick", "y": UNIT}, {"name": "slow", "z": UNIT}])
    story = Study(bound(space=Space({"x": UNIT, "model": model})))

    def try_(config: Config | None = None) -> Config:
        trial = story.begin(config)
        slowness = 5 * (trial.config["model"]["name"] == "slow")
        story.report(trial, abs(trial.config["x"] - 0.3) + slowness)
        return story.end(trial, TrialStatus.EARLY_STOPPED).config

    for number in range(40):
        x = number / 40
        try_({"x": x, "model": {"name": "quick", "y": x} if number % 2 else {"name": "slow", "z": x}})
    suggested = [try_() for _ in range(60)]

    slow = [abs(config["x"] - 0.3) < 0.1 for config in suggested if config["model"]["name"] == "slow"]
    # Half of two thirds, which no model would try. Of those whose other parameters are left to chance too, a fifth is near.
    assert 0.2 * len(suggested) < len(slow) < 0.5 * len(suggested)
    assert sum(slow) > 0.3 * len(slow)


def test_a_parameter_that_hangs_on_another_one_is_asked_for_where_it_is_there() -> None:
    story = Study(bound(space=CONDITIONAL))
    for _ in range(40):
        trial = story.begin()
        CONDITIONAL.check(trial.config, partial=False)
        opt, params = trial.config["opt"], story.model[-1].params
        own = {"opt/0/lr"} if opt["name"] == "adam" else {"opt/1/lr", "opt/1/nesterov"}
        own |= {"opt/1/nesterov/1"} if opt.get("nesterov") is not None else set()
        assert params.keys() == {"opt", "layers/0", "layers/1/momentum", *own}
        assert not story.model[-1].system_attrs, "it is not taken to have tried what was not chosen"
        story.end(story.report(trial, opt["lr"] if opt["name"] == "adam" else 9 + opt["lr"]))

    later = [trial.params["opt"] for trial in story.model[-15:]]
    assert later.count(0) > 10


def test_what_the_constraint_refuses_is_asked_for_again_and_teaches_nothing() -> None:
    story = Study(bound(space=LIMITED))
    for _ in range(15):
        trial = story.begin()
        assert trial.config["x"] + trial.config["y"] < 0.5
        story.end(story.report(trial, -trial.config["x"]))

    refused = [seen for seen in story.model if seen.params["x"] + seen.params["y"] >= 0.5]
    assert refused
    assert all(seen.state is TrialState.FAIL for seen in refused)


def test_a_sampler_that_finds_nothing_allowed_leaves_it_to_chance() -> None:
    class Stubborn(optuna.samplers.RandomSampler):
        def sample_independent(self, *arguments: Any) -> float:
            return 1.0

    config = bound(Stubborn(), space=LIMITED).suggest(TrialId("0001"))

    assert config is not None
    LIMITED.check(config, partial=False)


def test_a_config_that_is_adopted_teaches_what_its_entry_has() -> None:
    story = Study(bound(space=CONDITIONAL))
    config = {"opt": {"name": "sgd", "lr": 3, "nesterov": None}, "layers": [8, {"momentum": 0.95}]}
    story.end(story.report(story.begin(config), 0.5))

    params = {"opt": 1, "opt/1/lr": 3, "opt/1/nesterov": 0, "layers/0": 8, "layers/1/momentum": pytest.approx(0.05)}
    assert story.model[0].params == params
    story.begin()


@pytest.mark.parametrize(
    ("status", "losses", "state", "value"),
    [
        (TrialStatus.COMPLETED, [3.0, 2.0], TrialState.COMPLETE, 2.0),
        (TrialStatus.COMPLETED, [], TrialState.FAIL, None),
        (TrialStatus.COMPLETED, ["text", None], TrialState.FAIL, None),
        (TrialStatus.PAUSED, [], TrialState.FAIL, None),
        (TrialStatus.EARLY_STOPPED, [3.0, 2.5], TrialState.PRUNED, 2.5),
        (TrialStatus.PAUSED, [3.0], TrialState.PRUNED, 3.0),
        (TrialStatus.FAILED, [3.0], TrialState.FAIL, None),
        (TrialStatus.ABANDONED, [3.0], TrialState.FAIL, None),
        (TrialStatus.RUNNING, [3.0], TrialState.RUNNING, None),
    ],
)
@pytest.mark.parametrize("several", [False, True])
def test_a_sampler_sees_each_trial_with_its_state_and_its_values(
    status: TrialStatus, losses: list[Any], state: TrialState, value: float | None, *, several: bool
) -> None:
    story = Study(bound(several=several))
    assert [each.name for each in story.searcher.study.directions] == ["MINIMIZE", "MAXIMIZE"][: 1 + several]
    trial = story.report(story.begin(), *losses)
    if status is not TrialStatus.RUNNING:
        story.end(trial, status)

    (seen,) = story.model
    assert seen.state is state
    if several:
        # Such a study has no steps, and the values of a completed trial alone.
        assert (seen.values, seen.intermediate_values) == ([value] * 2 if state is TrialState.COMPLETE else None, {})
    else:
        assert seen.value == value
        assert seen.intermediate_values.keys() == {i for i, loss in enumerate(losses, 1) if isinstance(loss, float)}
    assert story.begin().config


@pytest.mark.parametrize("last", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("status", [TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED])
def test_a_trial_that_has_diverged_counts_as_worse_than_all_others(story: Study, status: TrialStatus, last: float):
    x = story.end(story.report(story.begin(), 0.1, last), status).config["x"]
    story.end(story.report(story.begin(), 9.0), TrialStatus.EARLY_STOPPED)

    live, ranked, other = story.model
    assert live.state is TrialState.FAIL
    assert (ranked.state, ranked.intermediate_values, ranked.params["x"]) == (TrialState.PRUNED, {}, x)
    assert other.intermediate_values == {1: 9.0}


def test_a_step_that_is_reported_again_keeps_its_first_value(story: Study) -> None:
    trial = story.report(story.begin(), 3.0, 2.0)
    trial.reports = 1
    story.report(trial, 9.0)

    assert story.model[0].intermediate_values == {1: 3.0, 2: 2.0}


def test_a_paused_trial_that_goes_on_counts_once_more_when_it_ends(story: Study) -> None:
    trial = story.end(story.report(story.begin(), 3.0), TrialStatus.PAUSED)
    trial.status = TrialStatus.QUEUED
    story.searcher.on_queue(trial)
    story.end(story.report(trial, 1.0))

    assert [(seen.state, seen.value) for seen in story.model] == [(TrialState.PRUNED, 3.0), (TrialState.COMPLETE, 1.0)]
    assert story.model[0].params == story.model[1].params


def stopped(story: Study, times: int, *losses: object) -> list[Trial]:
    """Trials that are stopped early, each after the same losses."""
    return [story.end(story.report(story.begin(), *losses), TrialStatus.EARLY_STOPPED) for _ in range(times)]


def at_one_time(story: Study) -> list[tuple[str, object]]:
    study = story.searcher.study
    storage = storage_of(study)
    study_id = storage.get_study_id_from_name(study.study_name)
    with storage.at_one_time(study_id, {}):
        shown = study.get_trials(deepcopy=False)
    assert len(study.trials) == storage.get_n_trials(study_id)
    return [(each.state.name, each.value if each.state is TrialState.COMPLETE else None) for each in shown]


def test_trials_that_were_stopped_are_compared_at_the_latest_time_that_ten_have_come_to(story: Study) -> None:
    stopped(story, 20, 5.0)
    stopped(story, 6, 5.0, 3.0)
    story.end(story.report(story.begin(), 9.0, 8.0, 7.0))
    story.end(story.report(story.begin(), 6.0))
    story.report(story.begin(), 4.0, 2.0, 1.0)
    story.report(story.begin(), 4.0)

    # Nine have a second report, so that the first counts. A completed trial has come to all times.
    assert at_one_time(story) == [("COMPLETE", 5.0)] * 26 + [("COMPLETE", each) for each in (9.0, 6.0, 4.0, 4.0)]

    stopped(story, 1, 5.0, 2.5)
    running, later = ("RUNNING", None), [("COMPLETE", each) for each in (*[3.0] * 6, 8.0, 6.0, 2.0)]
    assert at_one_time(story) == [*[running] * 20, *later, running, ("COMPLETE", 2.5)]


def test_a_trial_that_goes_on_with_another_config_is_another_one_for_the_sampler(story: Study) -> None:
    trial = story.report(story.begin(), 3.0)
    trial.config = {**trial.config, "x": 0.125, "half": 0.0625}
    story.searcher.on_queue(trial)
    story.end(story.report(trial, 1.0))

    assert [(seen.state, seen.params["x"]) for seen in story.model][1] == (TrialState.COMPLETE, 0.125)
    assert story.model[0].state is TrialState.PRUNED


def test_a_config_outside_the_space_teaches_nothing_and_breaks_nothing(story: Study) -> None:
    config = {**bound(seed=9).suggest(TrialId("0001")), "x": 1.2, "half": 0.6}
    trial = story.end(story.report(story.begin(config), 0.25), TrialStatus.PAUSED)
    story.end(story.report(trial, 0.125))

    assert story.model == []
    assert story.begin().config["x"] <= 1


def test_an_abandoned_config_is_not_suggested_again() -> None:
    story = Study(bound(space=Space({"depth": mqtune.grid_search([1, 2, 3])})))
    while (best := story.begin()).config["depth"] != 2:
        story.end(story.report(best, 9.0))
    story.end(story.report(best, 0.0), TrialStatus.ABANDONED)

    assert {story.end(story.report(story.begin(), 1.0)).config["depth"] for _ in range(20)} == {1, 3}

    for depth in (1, 3):
        story.end(story.begin({"depth": depth}), TrialStatus.ABANDONED)
    assert story.searcher.suggest(TrialId("9999")) is None


BOWL = Space({f"x{number}": mqtune.uniform(-5, 5) for number in range(4)})
STEPS = Space({"n": mqtune.randint(0, 40), "q": mqtune.quniform(0, 4, 0.25), "z": mqtune.uniform(0, 1)})
COUNTED = Space({"a": mqtune.randint(0, 3), "b": mqtune.choice(["s", "m", "l"])})


def cma_es(**arguments: Any) -> optuna.samplers.BaseSampler:
    pytest.importorskip("cmaes")
    return optuna.samplers.CmaEsSampler(**arguments)


def bowl(config: Config) -> float:
    return sum((value - 1) ** 2 for value in config.values() if isinstance(value, (int, float)))


def continued(first: Study, again: OptunaSearcher, *, slots: int = 1, trials: int = 48) -> Study:
    """Run trials that end in turn, and return another driver's story of the same trials."""
    second, running = Study(again), []
    for _ in range(trials):
        trial = first.begin()
        running.append((trial, second.begin(replays=copy.deepcopy(trial.config))))
        for story, each in zip((first, second), running.pop(0), strict=True) if len(running) == slots else ():
            story.end(story.report(each, bowl(each.config)))
    return second


@pytest.mark.parametrize(
    ("sampler", "space"),
    [
        (lambda: optuna.samplers.NSGAIISampler(seed=3, population_size=8), SPACE),
        (lambda: cma_es(seed=3, with_margin=True), STEPS),
        (lambda: optuna.samplers.QMCSampler(seed=3, scramble=True), BOWL),
        (lambda: optuna.samplers.RandomSampler(seed=3), CONDITIONAL),
        (lambda: optuna.samplers.GridSampler({f"x{number}": [-1, 1, 2] for number in range(4)}, seed=3), BOWL),
    ],
    ids=["evolution", "cma-es", "sequence", "random", "grid"],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_resumed_sampler_continues(sampler: Callable[[], optuna.samplers.BaseSampler], space: Space) -> None:
    first = Study(bound(sampler(), space=space))
    second = continued(first, bound(sampler(), space=space), slots=4)

    for _ in range(12):
        mine, others = first.begin(), second.begin()
        assert others.config == mine.config
        for story, trial in ((first, mine), (second, others)):
            story.end(story.report(trial, bowl(trial.config)))


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: optuna.samplers.GridSampler({"a": [0, 1, 2, 3], "b": ["s", "m", "l"]}),
        lambda: optuna.samplers.BruteForceSampler(seed=1),
        lambda: optuna.samplers.BruteForceSampler(seed=1, avoid_premature_stop=True),
    ],
    ids=["grid", "brute force", "brute force to the last"],
)
@pytest.mark.parametrize("slots", [3, 20])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_an_exhausted_sampler_says_so(sampler: Callable[[], optuna.samplers.BaseSampler], slots: int) -> None:
    stories = story, again = Study(bound(sampler(), space=COUNTED)), Study(bound(sampler(), space=COUNTED))
    configs, running = [], list[tuple[Trial, Trial]]()

    def end_one() -> None:
        for each, trial in zip(stories, running.pop(0), strict=True):
            each.end(each.report(trial, 0.5))

    for _ in range(12):
        trial = story.begin()
        configs.append((trial.config["a"], trial.config["b"]))
        running.append((trial, again.begin(replays=copy.deepcopy(trial.config))))
        if len(running) == slots:
            end_one()

    assert story.searcher.suggest(TrialId("0013")) is None
    assert sorted(configs) == sorted((a, b) for a in range(4) for b in "sml")
    while running:
        end_one()
    assert [each.searcher.suggest(TrialId("0013")) for each in stories] == [None] * 2


@pytest.mark.parametrize("status", [TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED, TrialStatus.PAUSED])
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning", "ignore:`constraints_func`:FutureWarning")
def test_constraints_on_what_trials_report_reach_the_sampler(status: TrialStatus, *, several: bool) -> None:
    def limit(trial: optuna.trial.FrozenTrial) -> list[float]:
        return [trial.user_attrs["latency"] - 10]

    searcher = bound(optuna.samplers.NSGAIISampler(constraints_func=limit), several=several)
    story = Study(searcher)
    for config in (None, bound(seed=9).suggest(TrialId("0001"))):
        trial = story.begin(config)
        for number, latency in enumerate((30.0, 12.0), 1):
            metrics = {"loss": 1.0, "speed": 1.0, "latency": latency, "training_iteration": number}
            searcher.on_report(trial, Report(trial.id, 1, number, 0.0, metrics))
        story.end(trial, status)
        if status is TrialStatus.PAUSED:
            searcher.on_queue(trial)
            searcher.on_report(trial, Report(trial.id, 1, 3, 0.0, {**metrics, "latency": 8.0, "training_iteration": 3}))
            story.end(trial)

    went_on = [(12.0, 2.0), (8.0, -2.0)] if status is TrialStatus.PAUSED else [(12.0, 2.0)]
    assert [(seen.user_attrs["latency"], *seen.system_attrs["constraints"]) for seen in story.model] == went_on * 2


def test_the_default_can_be_made_again_from_a_definition_and_a_sampler_of_the_users_can_not() -> None:
    description = OptunaSearcher(seed=7).describe()
    assert description == {"searcher": "optuna", "sampler": "", "seed": 7}

    again = searcher_of(description, SPACE)
    assert isinstance(again, OptunaSearcher)
    assert again.describe() == description
    with pytest.raises(ConfigurationError, match=r"sampler QMCSampler, which only your code can make: give searcher="):
        Searcher.rebuild({"searcher": "optuna", "sampler": "QMCSampler", "seed": ""})


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ConfigurationError, match="sampler='tpe' is not a sampler of Optuna"):
        OptunaSearcher("tpe")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no domain to choose from"):
        OptunaSearcher().check_space(Space({"a": 1}))
    searcher = bound()
    searcher.bind(SPACE, 1, metric="loss", mode="min")
    with pytest.raises(ConfigurationError, match="another experiment's"):
        searcher.bind(SPACE, 2, metric="loss", mode="min")


def tried(sampler: optuna.samplers.BaseSampler, domain: object, trials: int) -> list[object]:
    """Return the values of a domain that a sampler suggests while its trials complete."""
    story = Study(bound(sampler, space=Space({"x": domain})))
    found = []
    for _ in range(trials):
        trial = story.end(story.report(story.begin(), 0.5))
        found.append(trial.config["x"])
    assert story.searcher.suggest(TrialId("9999")) is None or not isinstance(sampler, optuna.samplers.GridSampler)
    return found


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (mqtune.qrandint(16, 128, 16), [32, 64, 128]),
        (mqtune.randint(1, 9), [2, 3]),
        (mqtune.qlograndint(16, 128, 16), [32, 64, 128]),
        (mqtune.lograndint(1, 128), [32, 64]),
        (mqtune.quniform(0, 1, 0.25), [0.25, 0.5, 1.0]),
        (mqtune.quniform(0, 1, 1e-7), [0.3, 0.7]),
        (mqtune.qloguniform(0.1, 1, 0.1), [0.3, 0.7]),
        (mqtune.reverseloguniform(0.9, 0.999), [0.9, 0.99]),
        (mqtune.normal(0, 1), [-2.0, 0.0, 0.5]),
        (mqtune.qrandn(0, 1, 0.5), [-2.0, 0.5]),
        (mqtune.ordinal([0.1, 0.2, 0.3, 0.4]), [0.1, 0.2, 0.3, 0.4]),
        (mqtune.finrange(0, 1, 3), [0.5, 1.0]),
        (mqtune.choice([1, 2, 4]), [1, 2, 4]),
        (mqtune.choice(["relu", "tanh", None]), ["relu", None]),
        (mqtune.choice([1, True, 0]), [1, 0]),
        (mqtune.grid_search([8, 16]), [8, 16]),
    ],
    ids=str,
)
def test_a_value_that_a_sampler_is_given_is_the_one_that_is_tried(domain: object, values: list[Any]) -> None:
    grid = optuna.samplers.GridSampler({"x": values}, seed=1)
    assert sorted(map(repr, tried(grid, domain, len(values)))) == sorted(map(repr, values))

    with pytest.warns(optuna.exceptions.ExperimentalWarning):
        fixed = optuna.samplers.PartialFixedSampler({"x": values[-1]}, optuna.samplers.RandomSampler())
    assert [repr(each) for each in tried(fixed, domain, 2)] == [repr(values[-1])] * 2


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (mqtune.qrandint(16, 128, 16), 40),
        (mqtune.qlograndint(16, 128, 16), 40),
        (mqtune.uniform(0, 1), 2.0),
        (mqtune.uniform(0, 1), "much"),
        (mqtune.reverseloguniform(0.9, 0.999), 0.5),
        (mqtune.qrandn(0, 1, 0.5), 0.3),
        (mqtune.ordinal([0.1, 0.2]), 1),
        (mqtune.choice([1, 2, 4]), 0),
    ],
    ids=str,
)
def test_a_suggestion_outside_its_domain_is_an_error_that_names_it(domain: object, value: object) -> None:
    searcher = bound(optuna.samplers.GridSampler({"x": [value]}), space=Space({"x": domain}))

    with pytest.raises(ConfigurationError, match="x") as raised:
        searcher.suggest(TrialId("0001"))
    assert str(value) in str(raised.value)
    assert str(domain) in str(raised.value)


def test_a_sampler_that_was_made_for_another_domain_is_refused() -> None:
    class Declared(optuna.samplers.RandomSampler):
        def infer_relative_search_space(self, *_: object) -> dict[str, optuna.distributions.BaseDistribution]:
            return {"size": optuna.distributions.IntDistribution(0, 9)}

        def sample_relative(self, *_: object) -> dict[str, Any]:
            return {"size": 2}

    searcher = bound(Declared(), space=Space({"size": mqtune.ordinal([1, 2, 4, 8])}))

    with pytest.raises(ConfigurationError, match=r"size as IntDistribution\(.*high=9.*distributions_of\(space\)"):
        searcher.suggest(TrialId("0001"))


def test_samplers_see_the_users_own_categories_and_true_steps() -> None:
    for domain, distribution in (
        (mqtune.choice(["relu", None, [1, 2]]), optuna.distributions.CategoricalDistribution(["relu", None, "[1, 2]"])),
        # Optuna can't tell these apart: their places.
        (mqtune.choice([True, 1]), optuna.distributions.CategoricalDistribution([0, 1])),
        (mqtune.qrandint(16, 128, 16), optuna.distributions.IntDistribution(16, 128, step=16)),
        (mqtune.quniform(0.25, 1, 0.25), optuna.distributions.FloatDistribution(0.25, 1.0, step=0.25)),
        # Optuna has no categories with an order: their places.
        (mqtune.ordinal([1, 2, 8]), optuna.distributions.IntDistribution(0, 2)),
    ):
        assert distributions_of(Space({"x": domain})) == {"x": distribution}


def test_the_sampler_of_optunahub_is_a_searcher_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(AutoSampler=optuna.samplers.RandomSampler)
    monkeypatch.setitem(sys.modules, "optunahub", SimpleNamespace(load_module=lambda _: module))  # type: ignore[arg-type]
    searcher, again = searcher_named("auto"), searcher_named("auto")
    assert searcher is not None
    assert again is not None
    for each in (searcher, again):
        each.bind(BOWL, 7, metric="loss", mode="min")

    assert described(searcher) == {"searcher": "auto", "seed": ""}
    first = searcher.suggest(TrialId("0001"))
    assert first is not None
    assert first == again.suggest(TrialId("0001"))
    assert again.replay(TrialId("0002"), first) == first
    # A definition has no code downloaded.
    with pytest.raises(ConfigurationError, match="only your script"):
        searcher_of(described(searcher), BOWL)


def test_without_optunahub_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optunahub", None)

    with pytest.raises(ConfigurationError, match=r"searcher='auto'.*pip install 'mqtune\[auto\]'"):
        mqtune.Tuner(bowl, {"x": mqtune.uniform(0, 1)}, metric="loss", mode="min", searcher="auto")
