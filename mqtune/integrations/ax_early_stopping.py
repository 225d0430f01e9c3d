"""Ax's early stopping as a scheduler."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from inspect import signature
from itertools import chain
from typing import Any, Final

from mqtune import TrialStatus
from mqtune.extend import (
    CONTINUE,
    ITERATION,
    BackgroundDecisions,
    ConfigurationError,
    Description,
    Objective,
    Report,
    Trial,
    TrialId,
    checks,
    importing,
    is_number,
)
from mqtune.integrations.ax import STATUSES, quiet
from mqtune.schedulers import Action, Decision, Scheduler

with importing("Ax", "ax"):
    from ax.api.utils.instantiation.from_string import optimization_config_from_string
    from ax.core.arm import Arm
    from ax.core.data import Data, DataRow
    from ax.core.experiment import Experiment
    from ax.core.map_metric import MapMetric
    from ax.core.parameter import ParameterType, RangeParameter
    from ax.core.search_space import SearchSpace
    from ax.early_stopping.strategies import (
        AndEarlyStoppingStrategy,
        BaseEarlyStoppingStrategy,
        LogicalEarlyStoppingStrategy,
        OrEarlyStoppingStrategy,
        PercentileEarlyStoppingStrategy,
        ThresholdEarlyStoppingStrategy,
    )

#: Strategies that can be restored from a definition. Ax's own serialization loses some arguments.
_KNOWN: Final[dict[str, Any]] = {
    strategy.__name__: strategy
    for strategy in (
        PercentileEarlyStoppingStrategy,
        ThresholdEarlyStoppingStrategy,
        AndEarlyStoppingStrategy,
        OrEarlyStoppingStrategy,
    )
}
#: The only parameter. It differs in each trial, as Ax refuses curves of equal trials.
_NUMBER: Final = "number"
_MOST_TRIALS: Final = 2**31


class AxEarlyStopping(Scheduler):
    """Stops trials by an early stopping strategy of Ax, with any searcher.

    The strategy gets each trial's values over time, in an Ax experiment without configs. It is copied, so the given one
    may serve other experiments.

    - *Timing*: it decides after each report. In real time, a thread asks it about all trials with new reports, which
      takes milliseconds to seconds. The trials keep running meanwhile. A resumed driver takes past decisions from the
      journal, and asks about newer reports. The state of an ``interval`` is lost.
    - *Several metrics*: it uses its ``metric_signatures``, or else the first metric.
    - *Skipped reports*: reports without a finite value of each metric, and reports whose time the trial had reached
      before.
    - *Abandoned trials* are ignored.

    Requires ax-platform 1.3 or later.

    Args:
        strategy: as for ``Client.set_early_stopping_strategy``. Ax's default stops a trial from time 10 on, after 5
            trials have completed, if it is worse than the median of all trials at its time.
        time_attr: the key of the time in reports, Ax's progression.

    Raises:
        ConfigurationError: *strategy* is invalid, or uses a metric that is not optimised.
    """

    kind = "ax_early_stopping"
    takes_several = True
    asks_ahead = True

    def __init__(self, strategy: Any = None, *, time_attr: str = ITERATION) -> None:
        if strategy is not None and not isinstance(strategy, BaseEarlyStoppingStrategy):
            raise ConfigurationError(
                f"AxEarlyStopping: strategy={strategy!r:.80} is not an early stopping strategy of Ax; give one as for "
                "client.set_early_stopping_strategy, such as PercentileEarlyStoppingStrategy(…)"
            )
        checks.name("AxEarlyStopping", "time_attr", time_attr, "the key of the time in the reports")
        self._strategy = PercentileEarlyStoppingStrategy() if strategy is None else copy.deepcopy(strategy)
        self._time_attr = time_attr
        #: The latest time that each trial has reported.
        self._reached: dict[TrialId, float] = {}

    @property
    def time_attr(self) -> str:
        return self._time_attr

    def check_objective(self, objective: Objective) -> None:
        """Check that all metrics of the strategy are optimised, as Ax must know their directions."""
        super().check_objective(objective)
        unknown = [name for name in _metrics_of(self._strategy) if name not in objective.metrics]
        if unknown:
            raise ConfigurationError(
                f"AxEarlyStopping: metric_signatures={unknown!r} of the strategy are not among the metrics of the "
                f"experiment, {objective}"
            )

    def bind(self, metric: str, mode: str) -> None:
        super().bind(metric, mode)
        assert self.objective is not None  # noqa: S101 - it is bound
        self._curves = _Curves(self.objective, self._strategy)

    def decide_in_background(self) -> None:
        self.background = BackgroundDecisions(self._curves.decisions)

    def on_report(self, trial: Trial, report: Report) -> Decision:
        assert self.objective is not None  # noqa: S101 - it is bound
        values = self.objective.values(report.metrics)
        time = report.metrics.get(self._time_attr, report.sequence if self._time_attr == ITERATION else None)
        if values is None or not is_number(time) or time <= self._reached.get(trial.id, -math.inf):
            return CONTINUE
        if not all(map(math.isfinite, (time, *values))):
            return CONTINUE
        self._reached[trial.id] = time
        self._run_or_queue(partial(self._curves.add, trial.id, float(time), values))
        return CONTINUE if self.background else self._curves.decisions().get(trial.id, CONTINUE)

    def on_abandon(self, trial: Trial) -> None:
        self._run_or_queue(partial(self._curves.end, trial.id, TrialStatus.ABANDONED))

    def on_trial_end(self, trial: Trial) -> None:
        self._run_or_queue(partial(self._curves.end, trial.id, trial.status))

    def _run_or_queue(self, call: partial[None]) -> None:
        if self.background is None:
            call()
        else:
            self.background.tell(call)

    def describe(self) -> Description:
        """Return the strategy and its arguments. A user's own strategy can't be restored from them."""
        return {self.role: self.kind, "strategy": _describe_strategy(self._strategy), "time_attr": self._time_attr}

    @classmethod
    def from_arguments(cls, arguments: Description) -> AxEarlyStopping:
        """Return a scheduler with one of Ax's strategies. Refuse a strategy of the user's own."""
        return cls(_strategy_of(arguments["strategy"]), time_attr=arguments["time_attr"])


def _describe_strategy(strategy: object) -> Description:
    kind = type(strategy)
    names = signature(kind).parameters if _KNOWN.get(kind.__name__) is kind else ()
    return {"class": kind.__name__, **{name: _plain_argument(getattr(strategy, name)) for name in names}}


def _plain_argument(argument: Any) -> object:
    if isinstance(argument, BaseEarlyStoppingStrategy):
        return _describe_strategy(argument)
    return argument if argument is None or isinstance(argument, int | float) else list(argument)


def _strategy_of(description: Description) -> object:
    """Restore a strategy."""
    kind = _KNOWN.get(description["class"])
    if kind is None:
        raise ConfigurationError(
            f"the scheduler had the early stopping strategy {description['class']}, which only your code can make: "
            "give scheduler=AxEarlyStopping(…)"
        )
    arguments = {name: value for name, value in description.items() if name != "class"}
    return kind(
        **{
            name: _strategy_of(argument) if isinstance(argument, dict) else argument
            for name, argument in arguments.items()
        }
    )


def _metrics_of(strategy: Any) -> Iterator[str]:
    """Yield a strategy's metrics."""
    if isinstance(strategy, LogicalEarlyStoppingStrategy):
        yield from chain(_metrics_of(strategy.left), _metrics_of(strategy.right))
    yield from strategy.metric_signatures or ()


class _Curves:
    """Trials' values over time, in an Ax experiment with a strategy. Not thread-safe."""

    def __init__(self, objective: Objective, strategy: Any) -> None:
        self._strategy = strategy
        # Ax gets other names, as some metrics have names that are invalid in its objectives.
        self._names = [f"metric{number}" for number in range(len(objective.metrics))]
        self._signatures = objective.metrics
        signs = ["-" if mode == "min" else "" for mode in objective.modes]
        self._experiment = Experiment(
            SearchSpace([RangeParameter(_NUMBER, ParameterType.INT, 0, _MOST_TRIALS)]),
            name="mqtune",
            tracking_metrics=[
                MapMetric(name, lower_is_better=bool(sign), signature_override=signature)
                for name, sign, signature in zip(self._names, signs, self._signatures, strict=True)
            ],
        )
        self._experiment.optimization_config = optimization_config_from_string(
            ", ".join(sign + name for sign, name in zip(signs, self._names, strict=True))
        )
        self._trials: dict[TrialId, Any] = {}
        self._rows: dict[TrialId, list[DataRow]] = {}
        #: Trials with new reports.
        self._news: set[TrialId] = set()

    def add(self, id_: TrialId, time: float, values: Iterable[float]) -> None:
        """Add the values that a trial has reported for a time."""
        trial = self._trials.get(id_) or self._begin_trial(id_)
        self._rows[id_] += [
            DataRow(trial.index, trial.arm.name, name, signature, float(value), math.nan, step=time)
            for name, signature, value in zip(self._names, self._signatures, values, strict=True)
        ]
        self._news.add(id_)

    def _begin_trial(self, id_: TrialId) -> Any:
        begun = self._experiment.new_trial().add_arm(Arm({_NUMBER: len(self._trials)}))
        self._trials[id_] = begun.mark_running(no_runner_required=True)
        self._rows[id_] = []
        return begun

    def end(self, id_: TrialId, status: TrialStatus) -> None:
        """Record a trial's end. An abandoned trial loses its values."""
        if id_ not in self._trials:
            return
        self._trials[id_].mark_as(STATUSES[status], unsafe=True)
        self._news.discard(id_)
        if status is TrialStatus.ABANDONED:
            self._rows[id_] = []

    def decisions(self) -> Mapping[TrialId, Decision]:
        """Return decisions to stop by trial, for trials with new reports."""
        asked = {self._trials[id_].index: id_ for id_ in self._news}
        self._news.clear()
        if not asked:
            return {}
        self._experiment.data = Data(data_rows=chain.from_iterable(self._rows.values()))
        with quiet():
            reasons = self._strategy.should_stop_trials_early(set(asked), self._experiment)
        return {asked[index]: Decision(Action.STOP, self._reason(why)) for index, why in reasons.items()}

    def _reason(self, why: str | None) -> str:
        said = (why or "it says so").splitlines()[0].strip()
        return f"Ax's {type(self._strategy).__name__}: {said}"
