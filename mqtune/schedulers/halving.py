"""What the halving schedulers share: their arguments, and the times of their rungs."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from mqtune.core.trial import Action, Decision, Trial, TrialId
from mqtune.schedulers.arguments import exact, number
from mqtune.schedulers.rungs import Rank, Rung, levels_of
from mqtune.schedulers.timed import ITERATION, Progress, TimedScheduler

__all__ = ["Halving", "RungHalving"]

P = TypeVar("P", bound=Progress)


class Halving(TimedScheduler[P]):
    """A scheduler that lets one trial in *reduction_factor* go on at each rung from *grace_period* to *max_t*.

    Args:
        max_t: the time at which a trial completes.
        grace_period: the time of the lowest rung.
        reduction_factor: one in this many goes on; above 1.
        time_attr: the key of the time in the reports.

    Raises:
        ConfigurationError: an argument makes no sense.
    """

    #: What its description calls it.
    kind: ClassVar[str]

    def __init__(
        self,
        max_t: float,
        *,
        grace_period: float = 1,
        reduction_factor: float = 3,
        time_attr: str = ITERATION,
    ) -> None:
        self._max_t = number(self._name, "max_t", max_t)
        self._grace_period = number(self._name, "grace_period", grace_period)
        self._reduction_factor = number(self._name, "reduction_factor", reduction_factor)
        super().__init__(time_attr)
        self._levels = levels_of(self._name, self._grace_period, self._max_t, self._reduction_factor)
        self._complete = Decision(Action.COMPLETE, f"reached max_t={self._max_t}")

    def describe(self) -> dict[str, Any]:
        """Return its arguments."""
        return {
            "scheduler": self.kind,
            "max_t": self._max_t,
            "grace_period": self._grace_period,
            "reduction_factor": self._reduction_factor,
            "time_attr": self._time_attr,
        }


class RungHalving(Halving[P]):
    """One that measures each trial, as it comes to a rung, against those that came there before."""

    #: How many trials go on at the least, however few have come.
    _least: ClassVar[int]

    def __init__(
        self,
        max_t: float,
        *,
        grace_period: float = 1,
        reduction_factor: float = 3,
        time_attr: str = ITERATION,
    ) -> None:
        super().__init__(max_t, grace_period=grace_period, reduction_factor=reduction_factor, time_attr=time_attr)
        self._rungs = [Rung(exact(self._reduction_factor), least=self._least) for _ in self._levels]
        #: The rungs that each trial has entered, with its rank there, until it ends.
        self._entered: dict[TrialId, list[tuple[Rung, Rank]]] = {}

    @property
    def rung_levels(self) -> tuple[float, ...]:
        """The times of the rungs, upwards; the last is *max_t*."""
        return tuple(self._levels)

    @property
    def rung_sizes(self) -> tuple[int, ...]:
        """How many trials have entered each rung, without those that were abandoned."""
        return tuple(rung.entered for rung in self._rungs)

    def on_abandon(self, trial: Trial) -> None:
        """Take what *trial* scored out of the rungs; nobody is judged again for that."""
        for rung, rank in self._entered.pop(trial.id, ()):
            rung.withdraw(rank)

    def on_trial_end(self, trial: Trial) -> None:
        """Forget where *trial* was; what it scored still counts, unless it was abandoned."""
        super().on_trial_end(trial)
        self._entered.pop(trial.id, None)

    def _enter_rung(self, trial: TrialId, rung: Rung, rank: Rank) -> None:
        rung.enter(rank)
        self._entered.setdefault(trial, []).append((rung, rank))
