"""The courses of searchers whose suggestions are recorded: what each suggests, and what its trials report and come to.

    python tests/recorded/suggested.py record|check [NAME …]

``record`` writes ``suggestions/NAME.json``: of each ten configs a hash, the first ten themselves, and the versions of the libraries that
they come from. Floats are rounded to ten digits, as machines differ in the last ones. ``check`` plays the courses to their ends and
compares; the tests play their beginnings.

A course depends on nothing but its seed and on what is suggested. Now and then another searcher takes over, which replays the calls.
"""

from __future__ import annotations

import copy
import json
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import mqtune
from mqtune import RandomSearcher, Space
from mqtune.core.objective import Objective
from mqtune.core.trial import Attempt, Config, Report, Trial, TrialId, TrialStatus
from mqtune.search import WAIT, PastTrial, Searcher

FOLDER: Final = Path(__file__).parent / "suggestions"
#: How many configs have one hash, and stand in the file themselves.
_BLOCK: Final = 10
_DIGITS: Final = 10
#: After how many configs another searcher takes over.
_TAKEN_OVER: Final = (16, 100)
#: After how many steps another driver takes over.
_STEPS: Final = 60
#: The most trials that run at once.
_SLOTS: Final = 6
#: The experiment's seed.
_SEED: Final = 11

PLAIN: Final[dict[str, Any]] = {
    "lr": mqtune.loguniform(1e-5, 1),
    "net": {"width": mqtune.lograndint(8, 512), "drop": mqtune.uniform(0, 0.5)},
    "depth": mqtune.randint(1, 9),
    "q": mqtune.quniform(0, 1, 0.05),
    "noise": mqtune.normal(0, 1),
    "decay": mqtune.reverseloguniform(0.9, 0.999),
    "act": mqtune.choice(["relu", "tanh", None]),
    "size": mqtune.ordinal([1, 2, 4, 8]),
    "epochs": 9,
}
CONDITIONAL: Final[dict[str, Any]] = {
    "opt": mqtune.choice(
        [
            {"name": "sgd", "momentum": mqtune.uniform(0, 1)},
            {"name": "adam", "beta": mqtune.uniform(0.8, 1), "eps": mqtune.loguniform(1e-9, 1e-3)},
        ]
    ),
    "lr": mqtune.loguniform(1e-5, 1),
    "layers": [mqtune.randint(1, 4), mqtune.choice(["relu", None])],
}
SMALL: Final[dict[str, Any]] = {
    "a": mqtune.choice(list("abcdefgh")),
    "b": mqtune.randint(1, 9),
    "c": mqtune.finrange(0, 1, 3),
}
GRID: Final[dict[str, Any]] = {
    "a": mqtune.grid_search([1, 2, 3, 4, 5]),
    "b": {"c": mqtune.grid_search([0.1, 0.2, 0.3, 0.4]), "d": mqtune.grid_search(list("abcdefghij"))},
    "x": mqtune.uniform(0, 1),
}
FEW: Final[dict[str, Any]] = {
    "x": mqtune.uniform(0, 1),
    "lr": mqtune.loguniform(1e-5, 1),
    "n": mqtune.randint(1, 9),
    "act": mqtune.choice(["relu", "tanh", None]),
}
#: What may become of a trial, with the odds of each: where all run to their ends, and where a scheduler stops and pauses some.
WHOLE: Final = {"report": 60, "complete": 30, "fail": 4, "lose": 3, "abandon": 3}
STOPPING: Final = {"report": 60, "complete": 8, "stop": 16, "pause": 8, "fail": 3, "lose": 2, "abandon": 3}
_ENDS: Final = {
    "complete": TrialStatus.COMPLETED,
    "stop": TrialStatus.EARLY_STOPPED,
    "fail": TrialStatus.FAILED,
    "abandon": TrialStatus.ABANDONED,
}


@dataclass(frozen=True, slots=True)
class Course:
    """How a searcher is recorded: its space, how many configs, what becomes of trials, and whose versions matter."""

    new: Callable[[], Any]
    space: Mapping[str, Any] = field(default_factory=lambda: PLAIN)
    configs: int = 200
    odds: Mapping[str, int] = field(default_factory=lambda: WHOLE)
    metrics: tuple[str, ...] = ("loss",)
    libraries: tuple[str, ...] = ("numpy",)
    #: How many trials it learns from before.
    learns: int = 0
    #: Whether somebody adds trials, and mutates configs.
    is_quiet: bool = False
    #: Whether another searcher takes over; not from one that is reseeded by chance then.
    is_taken_over: bool = True
    #: How many configs the tests play.
    tested: int = 30

    def run(self, configs: int) -> list[Config]:
        """Return so many configs that are suggested."""
        return _Play(self).run(min(configs, self.configs))


class _Play:
    """One course under way: makes a driver's calls, and notes them for who takes over."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._space = Space(dict(course.space))
        self._rng = random.Random(_SEED)
        optimised = [each for each in course.metrics if "<=" not in each]
        self._objective = Objective.of(course.metrics, ("min", "max")[: len(optimised)])
        self._calls: list[tuple[str, tuple[Any, ...]]] = []
        self._searcher = self._made()
        self._running: list[Trial] = []
        self._paused: list[Trial] = []
        self._number = 0
        self._found: list[Config] = []

    def _made(self) -> Searcher:
        searcher: Searcher = self._course.new()
        searcher.check_objective(self._objective)
        searcher.check_space(self._space)
        searcher.bind(self._space, _SEED, metric="loss", mode="min")
        if self._course.learns:
            drawn = RandomSearcher(self._space, seed=5)
            for number in range(self._course.learns):
                config = drawn.suggest(TrialId(f"{number + 1:04d}"))
                assert config is not None
                status = TrialStatus.EARLY_STOPPED if number % 3 else TrialStatus.COMPLETED
                value = math.nan if number % 7 == 6 else _score(config, 3)
                searcher.learn(PastTrial(config, value, 1 + number % 4, status))
        return searcher

    def _call(self, method: str, *arguments: Any) -> Any:
        self._calls.append((method, copy.deepcopy(arguments)))
        return getattr(self._searcher, method)(*arguments)

    def run(self, configs: int) -> list[Config]:
        taken_over = set(_TAKEN_OVER if self._course.is_taken_over else ())
        while len(self._found) < configs:
            if len(self._running) < _SLOTS:
                if not self._start() and not self._running:
                    break
            else:
                self._go_on()
            if len(self._found) in taken_over:
                taken_over.discard(len(self._found))
                self._take_over()
        return self._found

    def _take_over(self) -> None:
        """Have a new searcher come to where the one before is."""
        self._searcher, calls = self._made(), copy.deepcopy(self._calls)
        for method, arguments in calls:
            getattr(self._searcher, method)(*arguments)

    def _start(self) -> bool:
        id_ = TrialId(f"{self._number + 1:04d}")
        if self._paused and self._rng.random() < 0.3:
            self._resume(self._paused.pop(0))
            return True
        if not self._course.is_quiet and self._rng.random() < 0.04:
            config = self._space.sample(self._rng)
            self._call("adopt", id_, copy.deepcopy(config))
        else:
            suggested = self._searcher.suggest(id_)
            if suggested is None or suggested is WAIT:
                if self._running:
                    self._go_on()
                return False
            config = suggested
            self._calls.append(("replay", (id_, copy.deepcopy(config))))
            self._found.append(copy.deepcopy(config))
        trial = Trial(id_, config, TrialStatus.QUEUED, [Attempt(1, 0.0, config)])
        self._number += 1
        self._call("on_queue", trial)
        self._running.append(trial)
        return True

    def _resume(self, trial: Trial) -> None:
        if not self._course.is_quiet and self._rng.random() < 0.3:
            trial.config = self._space.sample(self._rng)
        trial.status = TrialStatus.QUEUED
        trial.attempts.append(Attempt(len(trial.attempts) + 1, 0.0, trial.config))
        self._call("on_queue", trial)
        self._running.append(trial)

    def _go_on(self) -> None:
        trial = self._rng.choice(self._running)
        (act,) = self._rng.choices([*self._course.odds], [*self._course.odds.values()])
        if act == "report" or (not trial.reports and act != "fail"):
            self._report(trial)
            return
        if act == "lose":
            self._call("on_attempt_end", trial)
            trial.attempts.append(Attempt(len(trial.attempts) + 1, 0.0, trial.config))
            trial.status = TrialStatus.QUEUED
            self._call("on_queue", trial)
            return
        self._running.remove(trial)
        if act == "pause":
            trial.status = TrialStatus.PAUSED
            self._call("on_trial_pause", trial)
            self._paused.append(trial)
            return
        trial.status = _ENDS[act]
        if act == "abandon":
            self._call("on_abandon", trial)
        self._call("on_trial_end", trial)

    def _report(self, trial: Trial) -> None:
        trial.status = TrialStatus.RUNNING
        trial.reports += 1
        loss = math.nan if self._rng.random() < 0.02 else _score(trial.config, trial.reports)
        metrics = {
            "training_iteration": trial.reports,
            "loss": loss,
            "size": _score(trial.config, 1) + 1,
            "latency": loss * 4,
        }
        trial.last_metrics = dict(metrics)
        self._call(
            "on_report", trial, Report(trial.id, len(trial.attempts), trial.reports, float(trial.reports), metrics)
        )


def _score(config: object, step: int) -> float:
    """Return the loss of a config at a step: sums and products alone, which are the same on each machine."""
    numbers = [*_numbers(config)]
    weights = [1 + (index % 3) for index in range(len(numbers))]
    return (
        sum(weight * (each - 0.3) ** 2 for weight, each in zip(weights, numbers, strict=True)) / len(numbers) + 1 / step
    )


def _numbers(value: object) -> Iterator[float]:
    """Yield a number from -1 to 1 for each value of a config."""
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float):
        yield value / (1 + abs(value))
    else:
        yield (len(str(value)) % 5) / 5


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def kept(configs: list[Config], libraries: tuple[str, ...]) -> dict[str, Any]:
    """Return what a file keeps of suggestions."""
    plain = [_rounded(config) for config in configs]
    blocks = [plain[start : start + _BLOCK] for start in range(0, len(plain), _BLOCK)]
    return {
        "versions": versions(libraries),
        "first": plain[:_BLOCK],
        "hashes": [
            sha256(json.dumps(each, sort_keys=True).encode()).hexdigest()[:16] for each in blocks if len(each) == _BLOCK
        ],
    }


def versions(libraries: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of these libraries that are here; empty for one that isn't."""
    return {name: _version(name) for name in libraries}


def _version(name: str) -> str:
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""


# The searchers.


def _optuna(**options: Any) -> Searcher:
    from mqtune.integrations.optuna import OptunaSearcher

    return OptunaSearcher(**options)


def _sampled(name: str, **options: Any) -> Searcher:
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return _optuna(sampler=getattr(optuna.samplers, name)(**options))


def _ax(strategy: str = "fast", **options: Any) -> Searcher:
    from mqtune.integrations.ax import AxSearcher

    return AxSearcher(strategy, **options)


def _ax_client() -> Searcher:
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    from mqtune.integrations.ax import AxSearcher

    client = Client(random_seed=3)
    client.configure_experiment(
        [
            RangeParameterConfig("x", (0.0, 1.0), "float"),
            RangeParameterConfig("lr", (1e-5, 1.0), "float", scaling="log"),
            RangeParameterConfig("n", (1, 9), "int"),
            ChoiceParameterConfig("act", ["relu", "tanh", "none"], "str", is_ordered=False),
        ],
        name="of-a-client",
    )
    client.configure_optimization("-loss")
    return AxSearcher(client)


@dataclass(frozen=True, slots=True)
class TunedCourse:
    """How a scheduler of Syne Tune's is recorded, which suggests configs and decides: an experiment in virtual time."""

    new: Callable[[], Any]
    configs: int = 200
    libraries: tuple[str, ...] = ("numpy", "syne-tune")
    space: Mapping[str, Any] = field(default_factory=lambda: PLAIN)
    tested: int = 30

    def run(self, configs: int) -> list[Config]:
        """Return the configs of so many trials."""
        configs = min(configs, self.configs)
        backend = mqtune.Simulated(_curve, slots=_SLOTS, seed=_SEED, keep_journal=True)
        with closing(self._tuner(backend, configs)) as tuner:
            for _ in range(_STEPS):
                tuner.step(1.0)
        with closing(self._tuner(backend, configs)) as tuner:
            return [trial.attempts[0].config for trial in tuner.run()][:configs]

    def _tuner(self, backend: mqtune.Simulated, configs: int) -> mqtune.Tuner:
        return mqtune.Tuner(
            _stand_in,
            dict(self.space),
            scheduler=self.new(),
            metric="loss",
            mode="min",
            max_trials=configs,
            seed=_SEED,
            backend=backend,
            name="recorded",
            run=mqtune.RunOptions(progress=False),
        )


def _stand_in(config: Config) -> None:
    """Stand for a trainable: the simulated backend doesn't call it."""


def _curve(config: Config) -> Iterator[tuple[float, dict[str, Any]]]:
    for epoch in range(1, 10):
        yield 1.0 + _score(config, 1), {"loss": _score(config, epoch), "epoch": epoch}


def _syne_tune(name: str, **options: Any) -> Any:
    import numpy as np
    from syne_tune.optimizer import baselines
    from syne_tune.optimizer.schedulers.pbt import PopulationBasedTraining

    from mqtune.integrations.syne_tune import SyneTuneScheduler, config_space

    # 0.16 draws from NumPy's own generator, whatever its seed.
    np.random.seed(7)  # noqa: NPY002 - Syne Tune draws from this one
    space = config_space(PLAIN)
    if name == "RandomSearch":
        return SyneTuneScheduler(baselines.RandomSearch(space, metrics=["loss"], random_seed=1))
    usual = {"metric": "loss", "time_attr": "epoch", "max_t": 9, "random_seed": 1}
    new = PopulationBasedTraining if name == "PBT" else getattr(baselines, name)
    return SyneTuneScheduler(new(space, **usual, **options))


_OPTUNA: Final = ("numpy", "optuna", "scipy")
#: A Gaussian process takes seconds for a suggestion: the tests play what comes before one.
_BEFORE_MODEL: Final = 5
_AX: Final = ("numpy", "ax-platform", "botorch", "torch", "scipy")

COURSES: Final[dict[str, Course | TunedCourse]] = {
    "random": Course(lambda: RandomSearcher(Space(PLAIN), 3)),
    "random-conditional": Course(lambda: RandomSearcher(Space(CONDITIONAL), 3), CONDITIONAL),
    "random-small": Course(lambda: RandomSearcher(Space(SMALL), 3), SMALL),
    "random-grid": Course(lambda: RandomSearcher(Space(GRID), 3), GRID),
    "grid": Course(lambda: mqtune.GridSearcher(Space(GRID), 3), GRID),
    "points": Course(lambda: mqtune.InitialPoints([{"lr": 0.1}, {"depth": 3, "act": None}, {}])),
    "repeater": Course(lambda: mqtune.Repeater("depth")),
    "tpe": Course(_optuna, libraries=_OPTUNA),
    "tpe-stopping": Course(_optuna, odds=STOPPING, libraries=_OPTUNA),
    "tpe-conditional": Course(_optuna, CONDITIONAL, 100, STOPPING, libraries=_OPTUNA),
    "tpe-several": Course(_optuna, FEW, 60, STOPPING, ("loss", "size"), libraries=_OPTUNA),
    "tpe-constrained": Course(_optuna, FEW, 60, metrics=("loss", "latency <= 6"), libraries=_OPTUNA),
    "tpe-points": Course(lambda: mqtune.InitialPoints([{"lr": 0.1}, {}], _optuna()), FEW, 60, libraries=_OPTUNA),
    "tpe-repeater": Course(lambda: mqtune.Repeater("n", _optuna()), FEW, 100, libraries=_OPTUNA),
    "tpe-learnt": Course(_optuna, FEW, 60, STOPPING, libraries=_OPTUNA, learns=30),
    "own-tpe": Course(
        lambda: _sampled("TPESampler", seed=2), FEW, 60, STOPPING, libraries=_OPTUNA, is_taken_over=False
    ),
    "own-grid": Course(
        lambda: _sampled(
            "GridSampler", search_space={"a": [*"abcdefgh"], "b": [*range(1, 10)], "c": [0.0, 0.5, 1.0]}, seed=2
        ),
        {**SMALL, "c": mqtune.choice([0.0, 0.5, 1.0])},
        60,
        libraries=_OPTUNA,
    ),
    "own-cmaes": Course(
        lambda: _sampled("CmaEsSampler", seed=2, with_margin=True, n_startup_trials=5),
        {name: FEW[name] for name in ("x", "lr", "n")},
        60,
        libraries=(*_OPTUNA, "cmaes"),
    ),
    "own-nsgaii": Course(
        lambda: _sampled("NSGAIISampler", seed=2, population_size=8), FEW, 60, STOPPING, ("loss", "size"), _OPTUNA
    ),
    "own-qmc": Course(lambda: _sampled("QMCSampler", seed=2), FEW, 60, libraries=_OPTUNA),
    "ax-sobol": Course(lambda: _ax("random_search"), PLAIN, 200, STOPPING, libraries=_AX),
    "ax": Course(_ax, FEW, 10, STOPPING, libraries=_AX, tested=_BEFORE_MODEL),
    "ax-learnt": Course(_ax, FEW, 4, libraries=_AX, tested=1, learns=6),
    "ax-client": Course(
        _ax_client,
        {**FEW, "act": mqtune.choice(["relu", "tanh", "none"])},
        8,
        libraries=_AX,
        tested=_BEFORE_MODEL,
        is_quiet=True,
    ),
    "ax-constrained": Course(_ax, FEW, 8, metrics=("loss", "latency <= 6"), libraries=_AX, tested=_BEFORE_MODEL),
    "syne-tune-random": TunedCourse(lambda: _syne_tune("RandomSearch")),
    "syne-tune-asha": TunedCourse(lambda: _syne_tune("ASHA")),
    "syne-tune-bohb": TunedCourse(lambda: _syne_tune("BOHB"), 60),
    "syne-tune-pbt": TunedCourse(lambda: _syne_tune("PBT", perturbation_interval=2), 60),
}


if __name__ == "__main__":
    import os
    import tempfile

    with tempfile.TemporaryDirectory() as home:
        os.environ["MQTUNE_HOME"] = home
        verb, *names = sys.argv[1:]
        for given in names or COURSES:
            course, file = COURSES[given], FOLDER / f"{given}.json"
            found = kept(course.run(course.configs), course.libraries)
            if verb == "record":
                file.write_text(json.dumps(found, sort_keys=True).replace("], ", "],\n") + "\n")
            print(given, verb if found == json.loads(file.read_text()) else "DIFFERS", flush=True)
