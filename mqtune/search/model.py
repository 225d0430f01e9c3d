"""Base class of searchers that get configs from another library's model."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, Literal, TypeVar, cast

from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import Mode, Objective
from mqtune.core.registry import Description
from mqtune.core.trial import ITERATION, Config, Metrics, Report, Trial, TrialId, TrialStatus
from mqtune.search.base import WAIT, Later, Searcher, Suggestion, fingerprint
from mqtune.search.kinds import Choice, Domain, Entries, Interval, Multiples, Normal, Ordinal, ReverseInterval
from mqtune.search.space import Space

#: The share of a normal distribution that is cut off at each end, because models need bounds.
_TAIL: Final = 1e-6

#: The domains that models support.
MODELLED: Final = (Interval, Multiples, Normal, Choice, Entries)


class Kind(Enum):
    """The kinds of a model's parameters."""

    #: Floats.
    INTERVAL = "interval"
    #: Integers.
    STEPS = "steps"
    #: Indexes into a list, from 0, in a meaningful order.
    ORDERED = "ordered"
    #: Indexes into a list, from 0, without a meaningful order.
    UNORDERED = "unordered"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a model that stands for a domain of the space.

    Attributes:
        low: the lower bound, included.
        high: the upper bound, included.
        log: whether the model should use a log scale.
        to_value: converts a value of the parameter to a value of the domain.
        to_param: converts a value of the domain to a value of the parameter.
    """

    kind: Kind
    low: Any
    high: Any
    log: bool
    to_value: Callable[[Any], object]
    to_param: Callable[[Any], Any]


def parameter(searcher: str, library: str, domain: Domain) -> Parameter:
    """Return a model's parameter for a domain.

    A multiple becomes its number of steps, and a choice the index of its value. A reversed interval becomes the
    difference from 1. A normal distribution becomes the share of lower samples, without the tails.

    Args:
        searcher: the searcher's name, for errors.
        library: the name of the model's library, for errors.

    Raises:
        ConfigurationError: the domain's class is not in ``MODELLED``.
    """
    match domain:
        case ReverseInterval():
            return Parameter(
                Kind.INTERVAL,
                1 - domain.high,
                1 - domain.low,
                True,
                lambda distance: _between(domain.low, 1 - distance, domain.high),
                lambda value: 1 - value,
            )
        case Interval():
            return interval(domain)
        case Normal():
            return shares(domain, _TAIL)
        case Multiples():
            return Parameter(
                Kind.STEPS, domain.first, domain.last, domain.log, lambda step: domain.value(int(step)), domain.steps
            )
        case Choice():
            kind = Kind.ORDERED if isinstance(domain, Ordinal) else Kind.UNORDERED
            return Parameter(
                kind, 0, len(domain.options) - 1, False, lambda place: domain.options[int(place)], domain.place
            )
        case Entries():
            return Parameter(Kind.UNORDERED, 0, domain.size - 1, False, int, int)
        case _:
            raise ConfigurationError(f"{searcher}: {domain} is a domain that {library} has nothing like")


def interval(domain: Interval) -> Parameter:
    """Return a parameter with the same values as an interval."""
    low, high = domain.low, domain.high
    return Parameter(Kind.INTERVAL, low, high, domain.log, lambda param: _between(low, float(param), high), float)


def shares(domain: Domain, tail: float = 0.0) -> Parameter:
    """Return a parameter whose value is the share of the domain's samples that are lower.

    Args:
        domain: a domain with an order.
        tail: the share that is cut off at each end.
    """
    low, high = tail, 1 - tail
    return Parameter(
        Kind.INTERVAL,
        low,
        high,
        False,
        lambda share: domain.at(float(share)),
        lambda value: _between(low, domain.share(value), high),
    )


def _between(low: float, value: float, high: float) -> float:
    return min(max(value, low), high)


@dataclass(slots=True)
class Record:
    """A trial's config, as the model knows it. Subclasses add the model's own data."""

    config: Config


R = TypeVar("R", bound=Record)


class ModelSearcher(Searcher, Generic[R]):
    """A searcher that asks a model for configs, and tells it the trials' results.

    If a trial continues with another config, the model sees two trials: the first is stopped early, and a second one
    begins. A resumed driver tells the model all results in the journal, without asking for the configs again.

    Args:
        seed: the model's seed. None: the experiment's seed.
    """

    takes_several = True
    adaptive = True
    is_slow = True

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._bound: tuple[Space, int] | None = None
        self._records: dict[TrialId, R] = {}
        #: Suggestions whose trial is not queued yet, oldest first.
        self._suggested: deque[R] = deque()

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Create the model."""
        if self._bound is not None:
            if self._bound != (space, seed):
                raise ConfigurationError(f"this {type(self).__name__} is another experiment's; make another one")
            return
        self._bound, self._space = (space, seed), space
        self._objective = self.objective or Objective.of(metric, cast("Mode", mode))
        self._begin_model(self._seed if self._seed is not None else seed)

    @abstractmethod
    def _begin_model(self, seed: int) -> None:
        """Create the model from ``_space`` and ``_objective``."""

    @abstractmethod
    def _ask(self) -> R | Literal[Later.WAIT] | None:
        """Ask the model for a config. Return its record, WAIT, or None if there are no more."""

    @abstractmethod
    def _begin(self, config: Config) -> R:
        """Tell the model of a config that it has not suggested, and return its record."""

    @abstractmethod
    def _hear(self, record: R, step: int | None, metrics: Metrics) -> None:
        """Tell the model of a report.

        *step* is its ``training_iteration``, None if that is not an integer.
        """

    @abstractmethod
    def _tell(self, record: R, status: TrialStatus) -> None:
        """Tell the model that a trial has ended or is paused. It is no longer pending then."""

    def _go_on(self, record: R) -> None:
        """Tell the model that a trial continues with the same config."""

    def suggest(self, trial: TrialId) -> Suggestion:
        record = self._ask()
        if record is None or record is WAIT:
            return record
        self._suggested.append(record)
        return copy.deepcopy(record.config)

    def replay(self, trial: TrialId, config: Config) -> Config:
        """Tell the model of the earlier suggestion, without asking for it again."""
        self.adopt(trial, config)
        return config

    def adopt(self, trial: TrialId, config: Config) -> None:
        self._records[trial] = self._begin(config)

    def on_queue(self, trial: Trial) -> None:
        """Link a queued trial to the model's trial with its config.

        The first time, that is one of the model's suggestions. If the config has changed since then, the model's trial
        is ended as stopped early, and another one begins in the model, with the new config.
        """
        record = self._records.get(trial.id)
        if record is None:
            self._records[trial.id] = self._take_suggested(trial.config)
        elif fingerprint(record.config) != fingerprint(trial.config):
            self._tell(record, TrialStatus.EARLY_STOPPED)
            self.adopt(trial.id, trial.config)
        else:
            self._go_on(record)

    def _take_suggested(self, config: Config) -> R:
        record = next(record for record in self._suggested if fingerprint(record.config) == fingerprint(config))
        self._suggested.remove(record)
        return record

    def on_report(self, trial: Trial, report: Report) -> None:
        step = report.metrics.get(ITERATION, trial.reports)
        self._hear(self._records[trial.id], step if isinstance(step, int) else None, report.metrics)

    def on_trial_pause(self, trial: Trial) -> None:
        self._tell(self._records[trial.id], TrialStatus.PAUSED)

    def on_trial_end(self, trial: Trial) -> None:
        self._tell(self._records[trial.id], trial.status)

    def describe(self) -> Description:
        return {self.role: self.kind, **self._model(), "seed": "" if self._seed is None else self._seed}

    @abstractmethod
    def _model(self) -> Description:
        """Return the searcher's own arguments, for its description."""
