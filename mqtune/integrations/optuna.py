"""Optuna's samplers as searchers."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import random
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from mqtune import Space, TrialStatus
from mqtune.extend import (
    OF_OBJECTIVE,
    Config,
    ConfigurationError,
    Description,
    Entries,
    Metrics,
    ModelSearcher,
    Record,
    SpaceError,
    Trial,
    TrialId,
    fingerprint,
    importing,
    is_number,
    with_hints,
)
from mqtune.search import PastTrial

with importing("Optuna", "optuna"):
    import optuna
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    from mqtune.integrations.optuna_level import LevelStorage, ModelStudy
    from mqtune.integrations.optuna_private import OneSplitTPESampler, named_parameters
    from mqtune.integrations.optuna_space import distributions_of, is_in, shown_to_sampler, suggested

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

DIRECTIONS: Final = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}
#: Maximum attempts to get a config that is neither abandoned nor forbidden: from the sampler, and then at random.
_SUGGESTIONS: Final = 25
_SAMPLES: Final = 1000
#: TPE's share of random configs once trials are stopped early: BOHB's "random fraction".
_AT_RANDOM: Final = 1 / 3
#: The share of configs with random choices, in spaces with conditions. Without it, choices whose trials learn slowly
#: are given up before a good config is seen. In tests with 1/3, 1/2, 2/3 and 1, lower shares lost a slow model, and 1
#: wasted trials on bad choices.
_CHOICES_AT_RANDOM: Final = 2 / 3
#: Samplers that depend on trials and random numbers alone.
_MEMORYLESS: Final = (optuna.samplers.TPESampler, optuna.samplers.GPSampler)
#: Samplers that try each config of a set once, and then repeat themselves.
_EXHAUSTIVE: Final = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
#: CMA-ES with margin: the keys of a trial's generation, and of the point that the sampler learns from.
_GENERATION: Final = "cmawm:generation"
_POINT: Final = "x_for_tell"
#: Optuna's key for constraint violations.
EXCESSES: Final = "constraints"
#: Attributes of added trials, so that ``GridSampler`` does not take them for grid points.
_NOT_IN_GRID: Final[dict[str, Any]] = {"grid_id": -1, "search_space": {}}
#: The states of ended and paused trials in the study. Samplers learn nothing from FAIL.
_STATES: Final = {
    TrialStatus.COMPLETED: TrialState.COMPLETE,
    TrialStatus.EARLY_STOPPED: TrialState.PRUNED,
    TrialStatus.PAUSED: TrialState.PRUNED,
    TrialStatus.FAILED: TrialState.FAIL,
    TrialStatus.ABANDONED: TrialState.FAIL,
}

_Values = Mapping[int, tuple[float, ...]]


@dataclass(slots=True)
class _OptunaRecord(Record):
    """A trial's current config and values, and its running trial in the study."""

    #: Empty for a config outside the space.
    params: dict[str, Any]
    #: The number of its running trial in the study.
    running: int | None
    values: dict[int, tuple[float, ...]] = field(default_factory=dict)
    #: The last value of each reported metric.
    reported: dict[str, object] = field(default_factory=dict)
    #: How many values the trial had when it last ended in the study, and the number of that trial; None before.
    told: int = 0
    number: int | None = None


class OptunaSearcher(ModelSearcher[_OptunaRecord]):
    """Proposes suggestions of an Optuna sampler, by default its Parzen estimator (TPE).

    **Resume.** The study is only a model in memory, which a resumed driver rebuilds from the journal. The default
    sampler then suggests the same as without the interruption. Your own TPE and GP samplers are asked again for up to
    ``replay_limit_s``, and then reseeded. Any other sampler is asked again for each trial, in the journal's order. So
    it learns the same (CMA-ES, evolution) and keeps its position (grids, sequences). If it now suggests another config,
    the journal's config counts.

    **Trials in the study.** The first value of each step is recorded. A completed trial has its last value. An
    early-stopped or paused one is PRUNED at its last step. Failed, abandoned and valueless trials are FAIL, which
    samplers ignore. A trial whose last value is not finite is worse than all others. Pruning is up to mqtune's
    schedulers. ``trial.user_attrs`` has the last value of each reported metric, for a sampler's ``constraints_func``.

    **Exhaustion.** It ends when the sampler stops the study, as finished ``GridSampler`` and ``BruteForceSampler`` do.

    **Constraints.** TPE and other samplers with constraints learn each violation, by the metric's last value. They
    learn nothing from a trial without a constrained metric. Before Optuna 5, your own samplers use their
    ``constraints_func`` alone.

    **Several metrics.** The study has several directions and no steps: values of early-stopped and paused trials are
    not learned.

    **Early stopping.** TPE compares all trials at the same time: the latest that at least ten have reached, including
    running ones. The others count as bad. One config in three is random, as early values may mislead. Both after
    Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018, section 3. Your own
    samplers, and TPE with several metrics, get all trials as they ended.

    **Conditions.** The sampler is asked for each parameter after its conditions, and learns a config's own parameters.
    TPE has a model for each group of parameters that occur together (``group=True``). Once trials are stopped early,
    two configs in three have random choices. TPE suggests the other parameters, from trials with the same choices if
    there are ten.

    Requires Optuna 4.3 to 5. Source of TPE: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", 2011,
    section 4.

    Args:
        sampler: an Optuna sampler. None for TPE, which counts running trials as bad (constant liar), so that slots
            don't try the same config.
        seed: of the default sampler; None for the experiment's.

    Raises:
        ConfigurationError: Optuna is not installed, or the space has nothing to choose.
    """

    kind = "optuna"
    #: How long a resumed driver asks a sampler again, in seconds, so that its seed counts. The driver's lock lasts 20
    #: s.
    replay_limit_s = 10.0

    @with_hints(OF_OBJECTIVE, {})
    def __init__(self, sampler: BaseSampler | None = None, *, seed: int | None = None) -> None:
        super().__init__(seed)
        if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
            raise ConfigurationError(f"OptunaSearcher: sampler={sampler!r} is not a sampler of Optuna")
        self._sampler = sampler
        #: Number of suggested or adopted configs. It seeds the default sampler, so a resumed driver draws new numbers.
        self._count = 0
        self._replay_s = 0.0
        #: Whether the sampler was not asked again for a past suggestion, and so would repeat it unless reseeded.
        self._is_behind = False
        self._has_pruned = False
        #: The randomly drawn choices of the next suggestion, by path.
        self._drawn: dict[str, object] = {}
        self._abandoned: set[str] = set()

    @property
    def study(self) -> optuna.Study:
        """The study in memory that the sampler learns from."""
        return self._study

    def check_space(self, space: Space) -> None:
        if not distributions_of(space):
            raise ConfigurationError("OptunaSearcher: the space has no domain to choose from, only constants")

    def _begin_model(self, seed: int) -> None:
        self._own_seed = seed
        named = named_parameters(self._sampler)
        self._shown = {
            path: shown_to_sampler(domain, is_named=path in named) for path, domain in self._space.domains.items()
        }
        self._distributions = {path: shown.distribution for path, shown in self._shown.items()}
        self._storage = LevelStorage()
        # Not only for a block, as they come later, from another thread. mqtune gives these arguments, and not the user.
        warnings.filterwarnings(
            "ignore",
            "Argument ``(group|multivariate|constant_liar|constraints_func)``",
            optuna.exceptions.ExperimentalWarning,
        )
        warnings.filterwarnings("ignore", "(The value `|Fixed parameter ').* is out of range", UserWarning)
        # A random name would make some samplers irreproducible.
        name, directions = f"mqtune-{seed}", [DIRECTIONS[mode] for mode in self._objective.modes]
        with quiet():
            self._study_id = self._storage.create_new_study(directions, name)
            self._study = ModelStudy(name, self._storage, self._tpe() if self._sampler is None else self._sampler)

    def _tpe(self) -> BaseSampler:
        """Return the default sampler for the next suggestion, seeded by the number of previous ones."""
        numbers = self._random_numbers()
        seed, chance = numbers.getrandbits(32), numbers.random()
        self._drawn = {}
        if self._has_pruned and not self._space.has_conditions and chance < _AT_RANDOM:
            return optuna.samplers.RandomSampler(seed)
        if self._has_pruned and self._space.has_conditions and chance < _CHOICES_AT_RANDOM:
            choices = {path: domain for path, domain in self._space.domains.items() if isinstance(domain, Entries)}
            self._drawn = {path: choice.sample(numbers) for path, choice in choices.items()}
        others: dict[str, Any] = {"group": True} if self._space.has_conditions else {}
        if self._objective.constraints and not hasattr(optuna.trial.Trial, "set_constraint"):
            # Before Optuna 5 a sampler reads constraints only with this argument.
            others["constraints_func"] = lambda trial: trial.system_attrs[EXCESSES]
        return OneSplitTPESampler(seed=seed, constant_liar=True, multivariate=self._space.has_conditions, **others)

    @property
    def _is_by_level(self) -> bool:
        """Whether the sampler gets all trials as of the same time (``LevelStorage``)."""
        return self._sampler is None and self._has_pruned and self._objective.is_single

    def _random_numbers(self) -> random.Random:
        return random.Random(f"{self._own_seed} {self._count}")

    def learn(self, trial: PastTrial) -> None:
        params, state = self._params(trial.config), _STATES[trial.status]
        if math.isfinite(trial.value):
            last = (trial.value,)
            self._has_pruned = self._has_pruned or state is TrialState.PRUNED
            ended = self._frozen_trial(
                state, params, {trial.step: last}, last if state is TrialState.COMPLETE else None
            )
        else:
            ended = self._frozen_trial(TrialState.PRUNED, params)
        self._study.add_trial(ended)

    def _ask(self) -> _OptunaRecord | None:
        """Return the next config; None if the sampler is finished or has only abandoned ones."""
        if self._sampler is None:
            self._study.sampler = self._tpe()
        elif self._is_behind:
            self._sampler.reseed_rng()
        self._is_behind = False
        self._count += 1
        with self._storage.at_one_time(self._study_id, self._drawn) if self._is_by_level else contextlib.nullcontext():
            record = self._new_from_sampler()
        if record is None and not self._study.is_stopped:
            record = self._new_at_random()
        return record

    def _new_from_sampler(self) -> _OptunaRecord | None:
        """Return an allowed suggestion that was not abandoned, or None."""
        is_exhaustive = isinstance(self._sampler, _EXHAUSTIVE)
        # With conditions, TPE records parameters that are not chosen, and would count them as tried.
        is_noted = self._sampler is None and self._space.has_conditions
        # An exhaustive sampler stops the study by itself.
        for _ in itertools.count() if is_exhaustive else range(_SUGGESTIONS):
            if self._study.is_stopped:
                return None
            asked = self._study.ask()
            config = self._space.config_of(self._suggest_values(asked))
            is_new = fingerprint(config) not in self._abandoned and self._space.allows(config)
            if is_exhaustive and self._repeats(asked):
                # A trial with this point is running. The sampler then continues with another point, or stops the study.
                is_new = False
            if is_new and not is_noted:
                return _OptunaRecord(config, asked.params, asked.number)
            self._study.tell(asked, state=TrialState.FAIL)
            if is_new:
                return self._record(config)
        return None

    def _repeats(self, asked: optuna.trial.Trial) -> bool:
        """Return whether an exhaustive sampler suggests a running point again."""
        own, *others = reversed(self._study.get_trials(deepcopy=False))
        return _point_of(own) in map(_point_of, others)

    def _suggest_values(self, asked: optuna.trial.Trial) -> dict[str, object]:
        """Suggest a trial's values, each after the values of its conditions. Return them by path."""
        values: dict[str, object] = {}
        for path in self._space.walk(values):
            if path in self._drawn:
                values[path] = self._drawn[path]
            elif path in self._shown:
                values[path] = self._value(asked, path)
        return values

    def _value(self, asked: optuna.trial.Trial, path: str) -> object:
        """Return the sampler's suggestion for a path, as a value of the domain."""
        shown, domain = self._shown[path], self._space.domains[path]
        sampler, wanted = type(self._study.sampler).__name__, shown.distribution
        try:
            param = suggested(asked, path, wanted)
        except ValueError as error:
            raise ConfigurationError(
                f"{sampler} has nothing for {path}, which is {domain} and which it sees as {wanted}: {error}"
            ) from error
        own = (asked.relative_search_space or {}).get(path, wanted)
        if own != wanted:
            raise ConfigurationError(
                f"{sampler} was made for {path} as {own}, and it is {domain}, which samplers see as {wanted}; give it "
                "mqtune.integrations.optuna.distributions_of(space)"
            )
        if is_in(wanted, param):
            with contextlib.suppress(SpaceError):
                return domain.check(shown.to_value(param))
        raise ConfigurationError(
            f"{sampler} suggested {path}={param!r}, which is not in {domain}; give it values of that, as samplers see "
            f"it: {wanted}"
        )

    def _new_at_random(self) -> _OptunaRecord | None:
        numbers = self._random_numbers()
        for _ in range(_SAMPLES):
            config = self._space.sample(numbers)
            if fingerprint(config) not in self._abandoned:
                return self._record(config)
        return None

    def _record(self, config: Config) -> _OptunaRecord:
        """Begin a trial without asking the sampler."""
        params = self._params(config)
        return _OptunaRecord(config, params, self._begin_in_study(params))

    def replay(self, trial: TrialId, config: Config) -> Config:
        """Advance the sampler past its suggestion of *config*, and return *config*."""
        is_memoryless = isinstance(self._sampler, _MEMORYLESS)
        if self._sampler is None or (is_memoryless and self._replay_s >= self.replay_limit_s):
            self._is_behind = True
            self.adopt(trial, config)
            return config
        begin = time.monotonic()
        record = self._new_from_sampler()
        self._replay_s += time.monotonic() - begin
        if record is None or record.running is None:
            self.adopt(trial, config)
        else:
            self._count += 1
            if fingerprint(record.config) != fingerprint(config):
                self._correct(record, record.running, config)
            self._records[trial] = record
        return config

    def _correct(self, record: _OptunaRecord, number: int, config: Config) -> None:
        """Replace a repeated suggestion's config by the journal's."""
        record.config, record.params = config, self._params(config)
        self._storage.correct(number, record.params, self._distributions)
        if _POINT in self._storage.get_trial_system_attrs(number):
            # The point belongs to another config, so the sampler must not learn it.
            self._storage.set_trial_system_attr(number, _GENERATION, -1)

    def _begin(self, config: Config) -> _OptunaRecord:
        self._count += 1
        try:
            return self._record(config)
        except SpaceError:
            # A scheduler's mutation may leave the space. The sampler learns nothing from it.
            return _OptunaRecord(config, {}, None)

    def _params(self, config: Config) -> dict[str, Any]:
        values = self._space.values(config)
        return {path: shown.to_param(values[path]) for path, shown in self._shown.items() if path in values}

    def _hear(self, record: _OptunaRecord, step: int | None, metrics: Metrics) -> None:
        """Record a report's metrics. The first value of each step counts."""
        values = self._objective.values(metrics)
        record.reported.update(metrics)
        if values is not None and step is not None and step not in record.values:
            record.values[step] = tuple(map(float, values))
            if record.running is not None and self._objective.is_single:
                self._storage.set_trial_intermediate_value(record.running, step, float(values[0]))
        if record.running is not None:
            self._constrain(record, record.running)

    def _constrain(self, record: _OptunaRecord, number: int) -> bool:
        """Record a trial's constraint violations in the study. Return whether all are known.

        They are relative to their bounds, as samplers add them up. NaN violates a bound infinitely.
        """
        constraints = self._objective.constraints
        if not all(is_number(record.reported.get(constraint.metric)) for constraint in constraints):
            return False
        if constraints:
            excesses = [constraint.relative_excess(record.reported) for constraint in constraints]
            told = [math.inf if math.isnan(excess) else excess for excess in excesses]
            self._storage.set_trial_system_attr(number, EXCESSES, told)
        return True

    def on_abandon(self, trial: Trial) -> None:
        self._abandoned.add(fingerprint(trial.config))

    def _tell(self, record: _OptunaRecord, status: TrialStatus) -> None:
        """Record a trial's end in the study.

        A trial that was paused before and has resumed becomes another trial of the study.
        """
        state = _STATES[status]
        values = record.values
        is_known = record.running is None and state is TrialState.PRUNED and len(values) == record.told
        if not record.params or is_known:
            return
        record.told = len(values)
        last = values[max(values)] if values else ()
        running, record.running = record.running, None
        has_diverged = not all(map(math.isfinite, last))
        ended = TrialState.FAIL if has_diverged or not values else state
        self._has_pruned = self._has_pruned or ended is TrialState.PRUNED
        if record.number is not None and state is not TrialState.FAIL:
            self._storage.outdated.add(record.number)
        if running is None and ended is not TrialState.FAIL:
            running = self._begin_in_study(record.params, values)
        if running is not None:
            record.number = running
            if self._sampler is not None:
                for name, value in record.reported.items():
                    self._storage.set_trial_user_attr(running, name, value)
            if not self._constrain(record, running):
                # Without its violations, samplers would consider it feasible.
                ended = TrialState.FAIL
            self._study.tell(running, last if ended is TrialState.COMPLETE else None, ended)
        if has_diverged and state is not TrialState.FAIL:
            # A pruned trial without a step ranks behind all other pruned trials.
            self._study.add_trial(self._frozen_trial(TrialState.PRUNED, record.params))

    def _begin_in_study(self, params: dict[str, Any], values: _Values = MappingProxyType({})) -> int:
        """Begin a trial in the study without asking the sampler. Return its number."""
        trial = self._frozen_trial(TrialState.RUNNING, params, values)
        if isinstance(self._sampler, optuna.samplers.GridSampler):
            trial.system_attrs = copy.deepcopy(_NOT_IN_GRID)
        return self._storage.create_new_trial(self._study_id, trial)

    def _frozen_trial(
        self,
        state: TrialState,
        params: dict[str, Any],
        values: _Values = MappingProxyType({}),
        last: tuple[float, ...] | None = None,
    ) -> optuna.trial.FrozenTrial:
        return optuna.trial.create_trial(
            state=state,
            values=last,
            params=params,
            distributions={path: self._distributions[path] for path in params},
            intermediate_values={step: value for step, (value, *others) in values.items() if not others},
        )

    def _model(self) -> Description:
        """Return the sampler's class for the definition. It can't restore a sampler of the user's own."""
        return {"sampler": "" if self._sampler is None else type(self._sampler).__name__}

    @classmethod
    def from_arguments(cls, arguments: Description) -> OptunaSearcher:
        """Return a searcher with the default sampler. Refuse one with a sampler of the user's own."""
        if sampler := arguments.get("sampler"):
            raise ConfigurationError(
                f"the searcher had the sampler {sampler}, which only your code can make: "
                f"give searcher=OptunaSearcher({sampler}(…))"
            )
        return super().from_arguments(arguments)


def _point_of(trial: optuna.trial.FrozenTrial) -> object:
    """Return the identity of a trial's point: its number in the grid, or else its parameters."""
    return trial.system_attrs.get("grid_id", trial.params)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within the block, silence Optuna's messages about the internal study.

    It is for the main thread only.
    """
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
