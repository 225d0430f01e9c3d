"""Base of searchers that ask another library's model."""

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

#: The tail of a normal distribution that is cut off, as models need bounds.
_TAIL: Final = 1e-6


MODELLED: Final = (Interval, Multiples, Normal, Choice, Entries)


class Kind(Enum):
    """Whether a model's parameter is an interval, whole steps, or an index into a list."""

    INTERVAL = "interval"
    STEPS = "steps"
    #: Indexes into a list, from 0, whose order means something, or does not.
    ORDERED = "ordered"
    UNORDERED = "unordered"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A domain as a model's parameter, with conversions.

    Attributes:
        high: the upper bound, included.
        log: whether the model should use a log scale.
        to_value: converts the model's value to the space's.
        to_param: converts the space's value to the model's.
    """

    kind: Kind
    low: Any
    high: Any
    log: bool
    to_value: Callable[[Any], object]
    to_param: Callable[[Any], Any]


def parameter(searcher: str, library: str, domain: Domain) -> Parameter:
    """Return a domain as a parameter of a model.

    Multiples become numbers of steps, and choices become indexes. A reversed interval becomes the distance from 1, and
    a normal distribution the share of samples below a value, without its tails.

    Args:
        searcher: the asking searcher, for error texts.
        library: the model's library, for error texts.

    Raises:
        ConfigurationError: the domain is a class of the user's own.
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
                Kind.STEPS,
                domain.first,
                domain.last,
                domain.log,
                lambda step: domain.value(int(step)),
                domain.steps,
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
    """Return an interval as a parameter of plain numbers."""
    low, high = domain.low, domain.high
    return Parameter(Kind.INTERVAL, low, high, domain.log, lambda param: _between(low, float(param), high), float)


def shares(domain: Domain, tail: float = 0.0) -> Parameter:
    """Return a domain as a parameter: the share of samples below a value.

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
    """A trial's current config in the form of its model."""

    config: Config


R = TypeVar("R", bound=Record)


class ModelSearcher(Searcher, Generic[R]):
    """A searcher that asks a model for configs, and feeds it the trials' results.

    If a trial continues with another config, the model sees its old trial stopped early and a new trial. A resumed
    driver feeds the model from the journal, and requests nothing twice.

    Args:
        seed: None for the experiment's.
    """

    takes_several = True
    adaptive = True
    is_slow = True

    def __init__(self, seed: int | None) -> None:
        self._seed = seed
        self._bound: tuple[Space, int] | None = None
        self._records: dict[TrialId, R] = {}
        #: Suggestions whose trial is not queued yet, oldest first.
        self._asked: deque[R] = deque()

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Make the model.

        Raises:
            ConfigurationError: this searcher belongs to another experiment.
        """
        if self._bound is not None:
            if self._bound != (space, seed):
                raise ConfigurationError(f"this {type(self).__name__} is another experiment's; make another one")
            return
        self._bound, self._space = (space, seed), space
        self._objective = self.objective or Objective.of(metric, cast("Mode", mode))
        self._begin_model(self._seed if self._seed is not None else seed)

    @abstractmethod
    def _begin_model(self, seed: int) -> None:
        """Make the model from ``_space`` and ``_objective``."""

    @abstractmethod
    def _ask(self) -> R | Literal[Later.WAIT] | None:
        """Return the record of the model's suggestion, WAIT or None."""

    @abstractmethod
    def _begin(self, config: Config) -> R:
        """Return the record of a config that the model did not suggest."""

    @abstractmethod
    def _hear(self, record: R, step: int | None, metrics: Metrics) -> None:
        """Add a report. *step* is None if it has no step."""

    @abstractmethod
    def _tell(self, record: R, status: TrialStatus) -> None:
        """Record the end of a trial, or its pause, after which it is not pending."""

    def _go_on(self, record: R) -> None:
        """Record that a trial continues with the same config."""

    def suggest(self, trial: TrialId) -> Suggestion:
        record = self._ask()
        if record is None or record is WAIT:
            return record
        self._asked.append(record)
        return copy.deepcopy(record.config)

    def replay(self, trial: TrialId, config: Config) -> Config:
        """Adopt the earlier suggestion, without asking the model."""
        self.adopt(trial, config)
        return config

    def adopt(self, trial: TrialId, config: Config) -> None:
        self._records[trial] = self._begin(config)

    def on_queue(self, trial: Trial) -> None:
        """Assign a suggestion to its trial, or begin a new one for the model if the config changed."""
        record = self._records.get(trial.id)
        if record is None:
            self._records[trial.id] = self._suggested(trial.config)
        elif fingerprint(record.config) != fingerprint(trial.config):
            self._tell(record, TrialStatus.EARLY_STOPPED)
            self.adopt(trial.id, trial.config)
        else:
            self._go_on(record)

    def _suggested(self, config: Config) -> R:
        record = next(asked for asked in self._asked if fingerprint(asked.config) == fingerprint(config))
        self._asked.remove(record)
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
        """Return the model's part of the description."""
