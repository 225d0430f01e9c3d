"""Optuna's samplers as searchers; needs the extra ``optuna``."""

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
    install_command,
    is_number,
    with_hints,
)
from mqtune.search import PastTrial

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    from mqtune.integrations.optuna_level import LevelStorage, ModelStudy
    from mqtune.integrations.optuna_private import OneSplitTPESampler, named_parameters
    from mqtune.integrations.optuna_space import distributions_of, is_in, shown_to_sampler
except ImportError as error:  # pragma: no cover - the tests have it
    raise ConfigurationError(f"Optuna can't be imported ({error}); {install_command('optuna')}") from error

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

DIRECTIONS: Final = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}
#: How often a sampler is asked for a config that was not abandoned and that the space's constraint allows, and how many are drawn at
#: random then: mostly the first will do.
_SUGGESTIONS: Final = 25
_SAMPLES: Final = 1000
#: The share of configs that TPE leaves to chance once trials are stopped early; the "random fraction" of BOHB.
_AT_RANDOM: Final = 1 / 3
#: The same where parameters hang on choices, of which alone chance has the choices then: else what learns slowly is dropped before a good
#: config of it was seen. Found by trial: of 1/3, 1/2, 2/3 and 1, those below lose a slow model, and 1 wastes trials on bad ones of many.
_CHOICES_AT_RANDOM: Final = 2 / 3
#: Samplers whose suggestions depend on nothing but the trials and random numbers.
_MEMORYLESS: Final = (optuna.samplers.TPESampler, optuna.samplers.GPSampler)
#: Samplers that try each config of a set once, and then repeat themselves.
_EXHAUSTIVE: Final = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
#: Where CMA-ES with margin keeps the generation of a trial, and the point that it learns of in place of the trial's parameters.
_GENERATION: Final = "cmawm:generation"
_POINT: Final = "x_for_tell"
#: Where Optuna has by how much a trial violates each constraint.
EXCESSES: Final = "constraints"
#: What a trial has that ``GridSampler`` was not asked for, else that takes it for a point of the grid.
_NOT_IN_GRID: Final[dict[str, Any]] = {"grid_id": -1, "search_space": {}}
#: What a trial that has ended, or is paused, is for the study. Optuna's samplers learn nothing from one that is FAIL.
_STATES: Final = {
    TrialStatus.COMPLETED: TrialState.COMPLETE,
    TrialStatus.EARLY_STOPPED: TrialState.PRUNED,
    TrialStatus.PAUSED: TrialState.PRUNED,
    TrialStatus.FAILED: TrialState.FAIL,
    TrialStatus.ABANDONED: TrialState.FAIL,
}

#: The values of a trial by step, one of each metric.
_Values = Mapping[int, tuple[float, ...]]


@dataclass(slots=True)
class _Record(Record):
    """What the study has of a trial's current config: a running trial, until that has ended or is paused."""

    #: Empty for a config outside the space.
    params: dict[str, Any]
    #: Its number in the study while it runs there.
    running: int | None
    #: The values by step, one of each metric.
    values: dict[int, tuple[float, ...]] = field(default_factory=dict)
    #: The last value of everything that it has reported.
    reported: dict[str, object] = field(default_factory=dict)
    #: How many of the values it had when the study was last told that it had ended, and the number of the trial that was told so.
    told: int = 0
    number: int | None = None


class OptunaSearcher(ModelSearcher[_Record]):
    """Proposes what a sampler of Optuna suggests, by default its tree-structured Parzen estimator (TPE).

    The study is held in memory, and is a model only: a driver that resumes an experiment fills it from the journal. With the default
    sampler it then suggests what it would have suggested without the break. TPE and GP samplers of your own are asked again for some
    seconds, and then reseeded. Any other is asked again for each trial, in the order of the journal, so that it has learnt what it had (CMA-ES, evolution)
    and goes on where it was (grids, sequences); where it now suggests another config, the journal's counts.

    What the sampler learns of a trial: each report's metric (the first of each step); completed: its last value; stopped early
    or paused: PRUNED at its last step; failed, abandoned, or without a value: FAIL, from which samplers learn nothing. None of
    them is pending any more. A trial whose last value is not finite has diverged: it counts as worse than all others. Pruning
    itself is what mqtune's schedulers do. ``trial.user_attrs`` has the last value of all that the trial has reported, for a sampler's
    ``constraints_func``.

    It is exhausted when the sampler stops the study, as ``GridSampler`` and ``BruteForceSampler`` do when they are through.

    Where the experiment has outcome constraints, TPE and other samplers that know constraints learn by how much a trial violates each
    (before Optuna 5, samplers of your own by their ``constraints_func`` alone), by the last value of each constrained metric. A
    trial that lacks one teaches nothing.

    With several metrics the study has several directions. It knows no steps then: of a trial that was stopped early or paused it
    learns that it was, and not its values.

    Where trials are stopped early or paused, TPE compares them at one time, the latest that at least ten trials have come to, by what they
    had then, running ones included; all others are bad ones. It proposes two configs of three, and chance the others: what it learns
    is mostly how trials begin, which may mislead. Both after Falkner et al., "BOHB: Robust and Efficient Hyperparameter Optimization
    at Scale", ICML 2018, section 3. A sampler of your own, and TPE with several metrics, has all trials as they have ended.

    In a space with conditions the sampler is asked for each parameter after those that it hangs on, and learns of those that a config
    has; TPE then has a model for each group of parameters that always come together (``group=True``). Chance has the choices alone
    there, of two configs of three, and TPE suggests the rest of what trials with the same choices have reported, if there are ten.

    Requires Optuna 4.3 to 5. Source of TPE: Bergstra et al., "Algorithms for Hyper-Parameter Optimization", 2011, section 4.

    Args:
        sampler: an Optuna sampler; None for TPE, which takes running trials for bad ones (constant liar), so that many slots
            don't try the same.
        seed: of the default sampler; None for the experiment's.

    Raises:
        ConfigurationError: Optuna is not installed, or the space has nothing that a sampler could choose.
    """

    kind = "optuna"
    #: For how many seconds in all a driver that resumes asks a sampler again that depends on the trials and random numbers
    #: alone, so that a seed counts. An earlier driver loses its lock after 20 s.
    replay_limit_s = 10.0

    @with_hints(OF_OBJECTIVE, {})
    def __init__(
        self,
        sampler: BaseSampler | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        if sampler is not None and not isinstance(sampler, optuna.samplers.BaseSampler):
            raise ConfigurationError(f"OptunaSearcher: sampler={sampler!r} is not a sampler of Optuna")
        self._sampler = sampler
        #: How many configs were suggested or adopted: the default sampler's random numbers depend on it, so that a driver that
        #: resumes goes on with others than those that were used.
        self._count = 0
        #: For how long a sampler was asked again, in seconds.
        self._replay_s = 0.0
        #: Whether the sampler would suggest again what it has suggested to the driver before.
        self._is_behind = False
        #: Whether a trial was stopped early or paused.
        self._has_pruned = False
        #: The choices of the next suggestion that are not the sampler's.
        self._drawn: dict[str, object] = {}
        self._abandoned: set[str] = set()

    @property
    def study(self) -> optuna.Study:
        """The study in memory that the sampler learns from."""
        return self._study

    def check_space(self, space: Space) -> None:
        """Check that there is something to choose."""
        if not distributions_of(space):
            raise ConfigurationError("OptunaSearcher: the space has no domain to choose from, only constants")

    def _begin_model(self, seed: int) -> None:
        self._own_seed = seed
        named = named_parameters(self._sampler)
        self._shown = {
            path: shown_to_sampler(each, is_named=path in named) for path, each in self._space.domains.items()
        }
        self._distributions = {path: each.distribution for path, each in self._shown.items()}
        self._storage = LevelStorage()
        # For good, as it is said in another thread later; here of arguments that the user has not given.
        warnings.filterwarnings(
            "ignore",
            "Argument ``(group|multivariate|constant_liar|constraints_func)``",
            optuna.exceptions.ExperimentalWarning,
        )
        # A value out of range is an error here.
        warnings.filterwarnings("ignore", "(The value `|Fixed parameter ').* is out of range", UserWarning)
        # A name that is drawn would give a sampler that goes by it other suggestions each time.
        name, directions = f"mqtune-{seed}", [DIRECTIONS[each] for each in self._objective.modes]
        with quiet():
            self._study_id = self._storage.create_new_study(directions, name)
            self._study = ModelStudy(name, self._storage, self._tpe() if self._sampler is None else self._sampler)

    def _tpe(self) -> BaseSampler:
        """Return the default sampler for the next suggestion, whose random numbers depend on nothing but how many came before."""
        numbers = self._numbers()
        seed, chance = numbers.getrandbits(32), numbers.random()
        self._drawn = {}
        if self._has_pruned and not self._space.has_conditions and chance < _AT_RANDOM:
            return optuna.samplers.RandomSampler(seed)
        if self._has_pruned and self._space.has_conditions and chance < _CHOICES_AT_RANDOM:
            choices = {path: each for path, each in self._space.domains.items() if isinstance(each, Entries)}
            self._drawn = {path: each.sample(numbers) for path, each in choices.items()}
        others: dict[str, Any] = {"group": True} if self._space.has_conditions else {}
        if self._objective.constraints and not hasattr(optuna.trial.Trial, "set_constraint"):
            # Before Optuna 5 a sampler looks at constraints only if it is to make them.
            others["constraints_func"] = lambda trial: trial.system_attrs[EXCESSES]
        return OneSplitTPESampler(seed=seed, constant_liar=True, multivariate=self._space.has_conditions, **others)

    @property
    def _is_by_level(self) -> bool:
        """Whether the sampler is shown all trials at one time; with several metrics nothing is known of theirs."""
        return self._sampler is None and self._has_pruned and self._objective.is_single

    def _numbers(self) -> random.Random:
        return random.Random(f"{self._own_seed} {self._count}")

    def learn(self, trial: PastTrial) -> None:
        """Add a trial that has ended to the study."""
        params, state = self._params(trial.config), _STATES[trial.status]
        if math.isfinite(trial.value):
            last = (trial.value,)
            self._has_pruned = self._has_pruned or state is TrialState.PRUNED
            ended = self._trial(state, params, {trial.step: last}, last if state is TrialState.COMPLETE else None)
        else:
            ended = self._trial(TrialState.PRUNED, params)
        self._study.add_trial(ended)

    def _ask(self) -> _Record | None:
        """Return the sampler's next config; None if the sampler is through, or all that can be found were abandoned."""
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

    def _new_from_sampler(self) -> _Record | None:
        """Return a suggestion that was not abandoned and is allowed, if the sampler has one soon."""
        is_exhaustive = isinstance(self._sampler, _EXHAUSTIVE)
        # With conditions TPE notes parameters of entries that are not chosen then, and would take them for tried.
        is_noted = self._sampler is None and self._space.has_conditions
        # A sampler that tries each config once comes to an end.
        for _ in itertools.count() if is_exhaustive else range(_SUGGESTIONS):
            if self._study.is_stopped:
                return None
            asked = self._study.ask()
            config = self._space.config_of(self._chosen(asked))
            is_new = fingerprint(config) not in self._abandoned and self._space.allows(config)
            if is_exhaustive and self._repeats(asked):
                # What runs has no other place in the set; once told, the sampler goes on, or stops the study.
                is_new = False
            if is_new and not is_noted:
                return _Record(config, asked.params, asked.number)
            self._study.tell(asked, state=TrialState.FAIL)
            if is_new:
                return self._record(config)
        return None

    def _repeats(self, asked: optuna.trial.Trial) -> bool:
        """Whether a sampler that tries each config once has suggested one that runs: it leaves these out as long as it can."""
        own, *others = reversed(self._study.get_trials(deepcopy=False))
        return _place(own) in map(_place, others)

    def _chosen(self, asked: optuna.trial.Trial) -> dict[str, object]:
        """Return the values of a trial of the study; the sampler is asked for those that hang on others after these."""
        values: dict[str, object] = {}
        for path in self._space.walk(values):
            if path in self._drawn:
                values[path] = self._drawn[path]
            elif path in self._shown:
                values[path] = self._value(asked, path)
        return values

    def _value(self, asked: optuna.trial.Trial, path: str) -> object:
        """Return the value that the sampler suggests at a path.

        Raises:
            ConfigurationError: it is not one of its domain, or the sampler was made for another domain.
        """
        shown, domain = self._shown[path], self._space.domains[path]
        sampler, wanted = type(self._study.sampler).__name__, shown.distribution
        try:
            param = _suggested(asked, path, wanted)
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
            f"{sampler} suggested {path}={param!r}, which is not in {domain}; give it values of that, as samplers see it: {wanted}"
        )

    def _new_at_random(self) -> _Record | None:
        numbers = self._numbers()
        for _ in range(_SAMPLES):
            config = self._space.sample(numbers)
            if fingerprint(config) not in self._abandoned:
                return self._record(config)
        return None

    def _record(self, config: Config) -> _Record:
        """Begin a trial with a config without asking the sampler."""
        params = self._params(config)
        return _Record(config, params, self._begun(params))

    def replay(self, trial: TrialId, config: Config) -> Config:
        """Come to where the sampler was that suggested *config*, which is returned."""
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

    def _correct(self, record: _Record, number: int, config: Config) -> None:
        """Have a trial that was asked for again try the journal's config."""
        record.config, record.params = config, self._params(config)
        self._storage.correct(number, record.params, self._distributions)
        if _POINT in self._storage.get_trial_system_attrs(number):
            # The point is another config's, and the sampler must not learn of it.
            self._storage.set_trial_system_attr(number, _GENERATION, -1)

    def _begin(self, config: Config) -> _Record:
        self._count += 1
        try:
            return self._record(config)
        except SpaceError:
            # A scheduler that mutates configs may leave the space, of which the sampler can learn nothing then.
            return _Record(config, {}, None)

    def _params(self, config: Config) -> dict[str, Any]:
        values = self._space.values(config)
        return {path: each.to_param(values[path]) for path, each in self._shown.items() if path in values}

    def _hear(self, record: _Record, step: int | None, metrics: Metrics) -> None:
        """Learn a report's metrics; of several reports at the same step only the first counts."""
        values = self._objective.values(metrics)
        record.reported.update(metrics)
        if values is not None and step is not None and step not in record.values:
            record.values[step] = tuple(map(float, values))
            if record.running is not None and self._objective.is_single:
                # A study with several directions has no steps.
                self._storage.set_trial_intermediate_value(record.running, step, float(values[0]))
        if record.running is not None:
            self._constrain(record, record.running)

    def _constrain(self, record: _Record, number: int) -> bool:
        """Say by how much a trial violates constraints; return whether that is known of all.

        The excesses are relative to their bounds, as samplers add them up. A metric that is NaN violates its bound infinitely.
        """
        constraints = self._objective.constraints
        if not all(is_number(record.reported.get(each.metric)) for each in constraints):
            return False
        if constraints:
            excesses = [each.relative_excess(record.reported) for each in constraints]
            told = [math.inf if math.isnan(each) else each for each in excesses]
            self._storage.set_trial_system_attr(number, EXCESSES, told)
        return True

    def on_abandon(self, trial: Trial) -> None:
        """Never suggest its config again."""
        self._abandoned.add(fingerprint(trial.config))

    def _tell(self, record: _Record, status: TrialStatus) -> None:
        """Tell the study how a trial has ended; one that it took for ended before, and that went on, becomes one more."""
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
            running = self._begun(record.params, values)
        if running is not None:
            record.number = running
            if self._sampler is not None:
                for name, value in record.reported.items():
                    self._storage.set_trial_user_attr(running, name, value)
            if not self._constrain(record, running):
                # Samplers would take it for one that keeps to the constraints.
                ended = TrialState.FAIL
            self._study.tell(running, last if ended is TrialState.COMPLETE else None, ended)
        if has_diverged and state is not TrialState.FAIL:
            # Without a step it ranks behind all that were pruned at one.
            self._study.add_trial(self._trial(TrialState.PRUNED, record.params))

    def _begun(self, params: dict[str, Any], values: _Values = MappingProxyType({})) -> int:
        """Begin a trial of the study without asking its sampler, and return its number."""
        trial = self._trial(TrialState.RUNNING, params, values)
        if isinstance(self._sampler, optuna.samplers.GridSampler):
            trial.system_attrs = copy.deepcopy(_NOT_IN_GRID)
        return self._storage.create_new_trial(self._study_id, trial)

    def _trial(
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
            intermediate_values={step: each for step, (each, *others) in values.items() if not others},
        )

    def _model(self) -> Description:
        """Return the sampler's class; only the default sampler can be made again from that."""
        return {"sampler": "" if self._sampler is None else type(self._sampler).__name__}

    @classmethod
    def from_arguments(cls, arguments: Description) -> OptunaSearcher:
        """Return one with the default sampler.

        Raises:
            ConfigurationError: it had a sampler of its own.
        """
        if sampler := arguments.get("sampler"):
            raise ConfigurationError(
                f"the searcher had the sampler {sampler}, which only your code can make: "
                f"give searcher=OptunaSearcher({sampler}(…))"
            )
        return super().from_arguments(arguments)


def _place(trial: optuna.trial.FrozenTrial) -> object:
    """Return the same for two trials at one place of the set that a sampler goes through: a grid's point, or the parameters."""
    return trial.system_attrs.get("grid_id", trial.params)


def _suggested(asked: optuna.trial.Trial, name: str, distribution: BaseDistribution) -> Any:
    """Return a trial's value, which the sampler is asked for unless it has given it already."""
    match distribution:
        case FloatDistribution():
            return asked.suggest_float(
                name, distribution.low, distribution.high, log=distribution.log, step=distribution.step
            )
        case IntDistribution():
            return asked.suggest_int(
                name, distribution.low, distribution.high, log=distribution.log, step=distribution.step
            )
        case CategoricalDistribution():
            return asked.suggest_categorical(name, distribution.choices)
    raise TypeError(distribution)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Have Optuna not say that there is a study, which is of no use to a user who never sees it; for the main thread alone."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)
