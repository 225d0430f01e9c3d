"""Syne Tune's schedulers inside a Tuner: their calls and decisions, also after a resume."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from importlib.metadata import version
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from searcher_story import train
from simulation import tuner_on

import mqtune
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import Config, TrialStatus
from mqtune.schedulers import Scheduler
from mqtune.testing.schedulers import NewScheduler, SchedulerContract
from mqtune.testing.worlds import SPACE as PLAIN_SPACE

# Passes over the warnings of an import, which includes 0.13's: its strings have invalid escapes.
pytest.importorskip(
    "syne_tune.optimizer.baselines", reason="its dependencies take some 800 MB; pip install 'mqtune[syne-tune]'"
)

from syne_tune.optimizer.baselines import ASHA, RandomSearch
from syne_tune.optimizer.scheduler import SchedulerDecision, TrialScheduler, TrialSuggestion
from syne_tune.optimizer.schedulers.median_stopping_rule import MedianStoppingRule
from syne_tune.optimizer.schedulers.pbt import PopulationBasedTraining

from mqtune.integrations import SyneTuneScheduler, config_space

#: Whether it is 0.13, which has schedulers that pause trials.
IS_OLD = "trial_id" in inspect.signature(TrialScheduler.suggest).parameters
TIME = "resource_attr" if IS_OLD else "time_attr"
METRICS: dict[str, Any] = {"metric": "loss"} if IS_OLD else {"metrics": ["loss"]}

SPACE: dict[str, Any] = {
    "lr": mqtune.loguniform(1e-4, 1e-1),
    "net": {
        "width": mqtune.lograndint(8, 512),
        "act": mqtune.choice(["relu", None]),
        "bias": mqtune.choice([True, False]),
    },
    "q": mqtune.quniform(0.25, 1, 0.1),
    "depth": mqtune.ordinal([2, 4, 8]),
    "momentum": mqtune.reverseloguniform(0.5, 0.999),
    "noise": mqtune.normal(0, 1),
    "bias": mqtune.qrandn(0, 1, 0.25),
    "buffer": mqtune.qlograndint(8, 512, 8),
    "half": mqtune.sample_from(lambda config: config["lr"] / 2),
    "epochs": 9,
}


def kinds(space: Any, end: int = 9) -> dict[str, Callable[[], TrialScheduler]]:
    usual: dict[str, Any] = {"metric": "loss", TIME: "epoch", "max_t": end, "random_seed": 1}
    theirs = config_space(space)
    found: dict[str, Callable[[], TrialScheduler]] = {
        "random": lambda: RandomSearch(theirs, **METRICS, random_seed=1),
        "asha": lambda: ASHA(theirs, **usual),
        "pbt": lambda: PopulationBasedTraining(theirs, perturbation_interval=2, **usual),
        "median": lambda: MedianStoppingRule(
            RandomSearch(theirs, **METRICS, random_seed=1), metric="loss", grace_population=3, **{TIME: "epoch"}
        ),
    }
    if IS_OLD:
        from syne_tune.optimizer.baselines import DEHB, SyncHyperband

        synchronous = {**{name: usual[name] for name in usual if name != "max_t"}, "max_resource_level": end}
        found |= {
            "promotion": lambda: ASHA(theirs, type="promotion", **usual),
            "synchronous": lambda: SyncHyperband(theirs, **synchronous),
            "dehb": lambda: DEHB(theirs, **synchronous),
        }
    return found


KINDS = [*kinds(SPACE)]
PAUSING = ("promotion", "synchronous", "dehb")


def seeded(new: Callable[[], TrialScheduler]) -> SyneTuneScheduler:
    # 0.16 draws from NumPy's own generator, with any seed.
    np.random.seed(7)  # noqa: NPY002 - Syne Tune draws from this one
    return SyneTuneScheduler(new())


_names = itertools.count(1)


def curve(config: Config) -> Any:
    for epoch in range(1, 10):
        yield 1.0 + config["lr"], {"loss": abs(math.log10(config["lr"]) + 2.5) + 1 / epoch, "epoch": epoch}


def tune(scheduler: Scheduler, **options: Any) -> mqtune.Tuner:
    backend, name = mqtune.Simulated(curve, slots=4), f"syne-{next(_names)}"
    usual: dict[str, Any] = {"backend": backend, "space": SPACE, "max_trials": 20, "name": name, **options}
    return tuner_on(usual.pop("backend"), train, usual.pop("space"), scheduler=scheduler, **usual)


class TestContract(SchedulerContract):
    @pytest.fixture(params=KINDS)
    def new_scheduler(self, request: pytest.FixtureRequest) -> NewScheduler:
        if "odd values" in request.node.name and request.param in PAUSING:
            pytest.skip("Syne Tune's schedulers that pause want the metric at each rung")
        is_old = request.param == "synchronous" and version("syne_tune").startswith("0.13")
        if is_old and "next_driver" in request.node.name and "failures" in request.node.name:
            pytest.skip("0.13's takes a place in its rung for failed each time that it is asked and no trial can start")
        return lambda: seeded(kinds(PLAIN_SPACE)[request.param])

    def test_it_decides_for_one_experiment(self, new_scheduler: NewScheduler) -> None:
        scheduler = new_scheduler()
        scheduler.bind("loss", "min")
        with pytest.raises(ConfigurationError, match="another one"):
            scheduler.bind("loss", "min")


class Notes(TrialScheduler):
    """A scheduler of 0.14 or later that records its calls, and resumes its paused trials."""

    def __init__(self, *, pauses_at: int = 0, stops_at: int = 0) -> None:
        self.config_space = config_space({"x": mqtune.uniform(0, 1)})
        self.pauses_at, self.stops_at = pauses_at, stops_at
        self.told: list[Any] = []
        self.paused: list[int] = []
        # It knows one config.
        self.searcher = Mock(**{"suggest.return_value": {"x": 0.25}})

    time_attr = "training_iteration"

    def metric_names(self) -> list[str]:
        return ["loss"]

    def metric_mode(self) -> str:
        return "min"

    def suggest(self) -> TrialSuggestion | None:
        if self.paused:
            return TrialSuggestion.resume_suggestion(self.paused.pop(0))
        return TrialSuggestion.start_suggestion(self.searcher.suggest())

    def on_trial_add(self, trial: Any) -> None:
        self.told.append(("add", trial.trial_id, trial.config["x"]))

    def on_trial_result(self, trial: Any, result: dict[str, Any]) -> str:
        step = result["training_iteration"]
        self.told.append((trial.trial_id, step))
        if step == self.stops_at:
            return SchedulerDecision.STOP
        return SchedulerDecision.PAUSE if step == self.pauses_at else SchedulerDecision.CONTINUE

    def on_trial_remove(self, trial: Any) -> None:
        self.told.append(("remove", trial.trial_id))
        if self.pauses_at:
            self.paused.append(trial.trial_id)

    def on_trial_complete(self, trial: Any, result: dict[str, Any]) -> None:
        self.told.append(("complete", trial.trial_id, result["loss"]))

    def on_trial_error(self, trial: Any) -> None:
        self.told.append(("error", trial.trial_id))


def noted(notes: Notes, *losses: Any, **options: Any) -> list[Any]:
    def reports(config: Config) -> Any:
        return [(1.0, loss if isinstance(loss, Exception) else {"loss": loss}) for loss in losses]

    usual = {"space": {"x": mqtune.uniform(0, 1)}, "max_trials": 1, "backend": mqtune.Simulated(reports, slots=1)}
    tune(SyneTuneScheduler(notes), **{**usual, **options}).run()
    return notes.told


def test_it_hears_what_syne_tunes_own_tuner_would_tell() -> None:
    begin = ("add", 0, 0.25)
    assert noted(Notes(), 3.0, 2.0) == [begin, (0, 1), (0, 2), ("complete", 0, 2.0)]
    assert noted(Notes(stops_at=2), 3.0, 2.0, 1.0) == [begin, (0, 1), (0, 2), ("remove", 0)]
    assert noted(Notes(), 3.0, RuntimeError("bad luck")) == [begin, (0, 1), ("error", 0)]
    assert noted(Notes(), 3.0, 2.0, 1.0, stop={"training_iteration": 2})[-1] == ("complete", 0, 2.0)


def test_what_its_models_can_not_take_ends_the_trial_as_a_failure() -> None:
    assert noted(Notes(), 3.0, math.nan, 1.0) == [("add", 0, 0.25), (0, 1), ("error", 0)]
    assert noted(Notes(), -math.inf, 1.0) == [("add", 0, 0.25), ("error", 0)]
    assert noted(Notes(), 3.0, None, 1.0)[1:3] == [(0, 1), (0, 3)]


def test_a_paused_trial_goes_on_from_where_that_was_decided() -> None:
    # The decision takes long, and meanwhile the trial saves twice more.
    notes = Notes(pauses_at=2)
    reports = [(1.0, {"loss": 1.0})] * 6
    backend = mqtune.Simulated(lambda config: reports, slots=1, decision_delay_s=2.5)
    told = noted(notes, backend=backend)

    steps = [each for each in told if each[0] == 0]
    assert steps == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)]


def test_a_trial_that_is_never_resumed_is_stopped_in_the_end() -> None:
    class Forgets(Notes):
        def on_trial_remove(self, trial: Any) -> None:
            """Resume none."""

    backend = mqtune.Simulated(lambda config: [(1.0, {"loss": 1.0})] * 3, slots=2)
    forgets = SyneTuneScheduler(Forgets(pauses_at=2))
    results = tune(forgets, space={"x": mqtune.uniform(0, 1)}, max_trials=3, backend=backend).run()

    assert [trial.status for trial in results] == [TrialStatus.EARLY_STOPPED] * 3
    assert {trial.reason for trial in results} == {"Forgets does not resume it, and no other trial is under way"}


def test_what_does_not_fit_the_tuner_is_said_when_it_is_made() -> None:
    def random_search() -> SyneTuneScheduler:
        return SyneTuneScheduler(RandomSearch(config_space(SPACE), **METRICS))

    with pytest.raises(ConfigurationError, match="mode='min', and the Tuner by metric='accuracy'"):
        tune(random_search(), metric="accuracy")
    with pytest.raises(ConfigurationError, match="mode='max'; give both the same"):
        tune(random_search(), mode="max")
    with pytest.raises(ConfigurationError, match=r"the Tuner by metric=\['loss', 'cost'\], mode=\['min', 'min'\]"):
        tune(random_search(), metric=["loss", "cost"])
    another = r"another space than the Tuner's: bias, buffer, depth, lr, net/act.*make it with .*config_space"
    with pytest.raises(ConfigurationError, match=another):
        tune(random_search(), space={"x": mqtune.uniform(0, 1), "momentum": SPACE["momentum"]})
    with pytest.raises(ConfigurationError, match="proposes the configs itself; leave searcher out"):
        tune(random_search(), searcher="tpe")
    with pytest.raises(
        ConfigurationError, match="has conditions, which Syne Tune does not support; OptunaSearcher does"
    ):
        config_space({"kind": mqtune.choice([{"sgd": mqtune.uniform(0, 1)}, "adam"])})
    with pytest.raises(ConfigurationError, match="has a constraint"):
        config_space(mqtune.Space({"x": mqtune.uniform(0, 1)}, constraint=lambda config: config["x"] < 0.5))
    with pytest.raises(ConfigurationError, match="is not a scheduler of Syne Tune"):
        SyneTuneScheduler(mqtune.ASHA(9))  # type: ignore[arg-type]


def test_a_definition_names_it_and_only_code_can_make_it_again() -> None:
    results = tune(SyneTuneScheduler(kinds(SPACE)["asha"]())).run()

    assert results.definition["scheduler"] == {"scheduler": "syne_tune", "of": "ASHA"}
    with pytest.raises(ConfigurationError, match=r"was Syne Tune's ASHA, .*: give scheduler=SyneTuneScheduler\(ASHA\("):
        Scheduler.rebuild(results.definition["scheduler"])
