"""Searchers that ask the model of another library: the record of each trial, and domains as models know them."""

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

#: The share of a normal distribution that is left out at each end: the domains of models have bounds.
_TAIL: Final = 1e-6


#: The domains that models know.
MODELLED: Final = (Interval, Multiples, Normal, Choice, Entries)


class Kind(Enum):
    """How a model sees a domain."""

    #: All numbers between two.
    INTERVAL = "interval"
    #: All whole numbers from one to another.
    STEPS = "steps"
    #: The places in a list, from 0, whose order means something; and those where it does not.
    ORDERED = "ordered"
    UNORDERED = "unordered"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A domain as a model knows it, and the way there and back.

    Attributes:
        kind: what the model chooses from.
        low: its lower end.
        high: its upper end, included.
        log: whether the model should go by logarithms.
        to_value: returns the value of the space for one of the model's.
        to_param: returns the model's for a value of the space.
    """

    kind: Kind
    low: Any
    high: Any
    log: bool
    to_value: Callable[[Any], object]
    to_param: Callable[[Any], Any]


def parameter(searcher: str, library: str, domain: Domain) -> Parameter:
    """Return a domain as models know it.

    What they can't hold as it is has another form: multiples are numbers of steps, choices places in their list, a reversed interval is
    the distance from 1, and a normal distribution the share of it that lies below, without its tails.

    Args:
        searcher: who asks, for the error's text.
        library: whose model it is, for the error's text.
        domain: the domain.

    Raises:
        ConfigurationError: it is a domain of the user's own.
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
    """Return an interval as the numbers that are in it."""
    low, high = domain.low, domain.high
    return Parameter(Kind.INTERVAL, low, high, domain.log, lambda param: _between(low, float(param), high), float)


def shares(domain: Domain, tail: float = 0.0) -> Parameter:
    """Return a domain as the share of what is sampled that lies below a value.

    Args:
        domain: one with an order.
        tail: the share that is left out at each end.
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
    """A trial's current config, as its model has it."""

    config: Config


R = TypeVar("R", bound=Record)


class ModelSearcher(Searcher, Generic[R]):
    """A searcher that asks a model, and tells it what becomes of trials.

    It keeps a record of each trial, from when its config is asked for, or adopted. A trial that goes on with another config is another
    one for the model, and the one before was stopped early. A driver that resumes feeds the model with what the journal has, and asks for
    nothing again.

    A subclass makes the model (``_begin_model``), asks it (``_ask``), has it learn of a config that it was not asked for (``_begin``),
    of a report (``_hear``) and of an end (``_tell``).

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
        #: Suggestions whose trial is not staged yet, oldest first.
        self._asked: deque[R] = deque()

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Make the model.

        Raises:
            ConfigurationError: this searcher is another experiment's.
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
        """Make the model, of ``_space`` and ``_objective``."""

    @abstractmethod
    def _ask(self) -> R | Literal[Later.WAIT] | None:
        """Return the record of what the model suggests, WAIT or None."""

    @abstractmethod
    def _begin(self, config: Config) -> R:
        """Return the record of a config that the model was not asked for."""

    @abstractmethod
    def _hear(self, record: R, step: int | None, metrics: Metrics) -> None:
        """Learn a report, at a step unless it has none."""

    @abstractmethod
    def _tell(self, record: R, status: TrialStatus) -> None:
        """Tell the model that a trial has ended, or is PAUSED: it may never go on, and is not pending any more."""

    def _go_on(self, record: R) -> None:
        """Tell the model that a trial goes on with its config."""

    def suggest(self, trial: TrialId) -> Suggestion:
        """Return the model's next config, None if there are no more, or WAIT."""
        record = self._ask()
        if record is None or record is WAIT:
            return record
        self._asked.append(record)
        return copy.deepcopy(record.config)

    def replay(self, trial: TrialId, config: Config) -> Config:
        """Adopt what was suggested to an earlier driver; the model is not asked."""
        self.adopt(trial, config)
        return config

    def adopt(self, trial: TrialId, config: Config) -> None:
        """Learn of a config that was not suggested now, as of one that was."""
        self._records[trial] = self._begin(config)

    def on_stage(self, trial: Trial) -> None:
        """Learn which trial a suggestion has become; with another config it is another trial for the model."""
        record = self._records.get(trial.id)
        if record is None:
            self._records[trial.id] = self._suggested(trial.config)
        elif fingerprint(record.config) != fingerprint(trial.config):
            self._tell(record, TrialStatus.EARLY_STOPPED)
            self.adopt(trial.id, trial.config)
        else:
            self._go_on(record)

    def _suggested(self, config: Config) -> R:
        record = next(each for each in self._asked if fingerprint(each.config) == fingerprint(config))
        self._asked.remove(record)
        return record

    def on_report(self, trial: Trial, report: Report) -> None:
        """Learn a report's metrics."""
        step = report.metrics.get(ITERATION, trial.reports)
        self._hear(self._records[trial.id], step if isinstance(step, int) else None, report.metrics)

    def on_trial_pause(self, trial: Trial) -> None:
        """Count it as stopped early."""
        self._tell(self._records[trial.id], TrialStatus.PAUSED)

    def on_trial_end(self, trial: Trial) -> None:
        """Learn how it has ended."""
        self._tell(self._records[trial.id], trial.status)

    def describe(self) -> Description:
        """Return what the model is, and the seed."""
        return {self.role: self.kind, **self._model(), "seed": "" if self._seed is None else self._seed}

    @abstractmethod
    def _model(self) -> Description:
        """Return what a description says of the model."""
