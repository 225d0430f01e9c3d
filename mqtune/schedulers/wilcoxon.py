"""Stops trials that are worse than the best trial on the same tasks, by a signed-rank test.

After Wilcoxon, "Individual Comparisons by Ranking Methods", Biometrics Bulletin 1, 1945. A difference of 0 counts half
as positive and half as negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mqtune.core.checks import name, number, whole_number
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import CONTINUE, ITERATION, Action, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers.timed import Progress, TimedScheduler

#: The smallest number of pairs that can be tested.
_FEWEST: Final = 2
#: Up to this number of pairs the p-value is exact, as in SciPy, if no two differences are equal and none is 0.
_EXACT: Final = 50
#: The same number if some differences are equal or 0.
_EXACT_WITH_TIES: Final = 13


class WilcoxonStopping(TimedScheduler["_Values"]):
    """Stops a trial that is worse than the best completed one on the same tasks, such as folds.

    Each report has the metric of one task. *paired_by* is the key of the task. Values need not converge, and tasks may
    come in any order. At each report, a trial's values are compared task by task with those of the best trial so far.
    The trial is stopped if the one-sided signed-rank test gives a p-value below *p_threshold*, and its mean is worse
    than the best trial's.

    - *The best trial* is the COMPLETED trial with the best mean. Of equal ones, it is the first that completed.
    - *The p-value* is exact for up to 50 pairs, or up to 13 if some differences are equal or 0. For more pairs it is a
      normal approximation, as in SciPy. Each report is a test, so an equally good trial is stopped more often than
      ``p_threshold`` says. For many tasks, use a lower threshold.
    - *A task that only one of the two trials has* is left out. If a trial reports a task twice, even in a retry, the
      first value counts.
    - *NaN and infinities*: a trial that has reported one is neither stopped nor the best.
    - *Outcome constraints*: a trial with a report that violates one is not the best. Whether it is stopped depends only
      on its values. A missing constrained metric violates nothing.
    - *A report without the metric*, or with None, is skipped.

    The decisions are those of Optuna's ``WilcoxonPruner`` if the objective returns the mean of its values.

    **Cost.** A report of a trial with n tasks costs O(n log n): less than a millisecond for 1,000 tasks. Memory is one
    number for each task of each running trial.

    Args:
        p_threshold: the p-value below which a trial is stopped, from 0 to 1. With a higher one, more trials are
            stopped.
        min_samples: smallest number of pairs for a test, at least 2.
        paired_by: the reports' key of the task's name or number.
    """

    kind = "wilcoxon_stopping"
    asks_ahead = True

    def __init__(self, *, p_threshold: float = 0.1, min_samples: int = _FEWEST, paired_by: str = ITERATION) -> None:
        super().__init__(ITERATION)
        self._p_threshold = number(self._name, "p_threshold", p_threshold, least=0)
        if self._p_threshold > 1:
            raise ConfigurationError(f"{self._name}: p_threshold={p_threshold!r} must be from 0 to 1")
        self._min_samples = whole_number(self._name, "min_samples", min_samples, _FEWEST)
        self._paired_by = name(self._name, "paired_by", paired_by, "the key of the task in the reports")
        self._best: tuple[TrialId, _Values] | None = None

    def _enrol(self, trial: Trial) -> _Values:
        return _Values()

    def _reach(self, trial: Trial, report: Report, progress: _Values) -> Decision:
        value = report.metrics.get(self.metric)
        if value is None or progress.decision is not CONTINUE:
            return progress.decision
        progress.add(self._task(report, progress.time), self._score(report, value))
        progress.is_feasible = progress.is_feasible and not self._violation(report)
        if self._best is None or not progress.is_finite:
            return CONTINUE
        id_, best = self._best
        differences = [own - best.values[task] for task, own in progress.values.items() if task in best.values]
        if len(differences) < self._min_samples or best.mean >= progress.mean:
            return CONTINUE
        p_value = p_of_larger(differences)
        if not p_value < self._p_threshold:
            return CONTINUE
        comparison = f"{self.metric} is worse than that of trial {id_}, the best one, in {len(differences)} pairs"
        return Decision(Action.STOP, f"{comparison}: p={p_value:.2g}")

    def on_trial_end(self, trial: Trial) -> None:
        """Forget *trial*, unless it is the best completed one."""
        progress = self._progress.get(trial.id)
        counts = trial.status is TrialStatus.COMPLETED and progress is not None and progress.may_be_best
        if progress is not None and counts and (self._best is None or progress.mean < self._best[1].mean):
            self._best = trial.id, progress
        super().on_trial_end(trial)

    def _task(self, report: Report, time: float) -> object:
        task = time if self._paired_by == ITERATION else report.metrics.get(self._paired_by)
        if not isinstance(task, str | int | float):
            raise ConfigurationError(
                f"{self._name}: report {report.sequence} of trial {report.trial} has {self._paired_by}={task!r}, which "
                "names no task; give a text or a number"
            )
        return task


class _Values(Progress):
    __slots__ = ("is_feasible", "is_finite", "values")

    def __init__(self) -> None:
        super().__init__(-math.inf)
        self.values: dict[object, float] = {}
        self.is_finite = True
        self.is_feasible = True

    def add(self, task: object, value: float) -> None:
        self.is_finite = self.is_finite and math.isfinite(value)
        self.values.setdefault(task, value)

    @property
    def may_be_best(self) -> bool:
        """Whether it has values, all are finite, and no report violates an outcome constraint."""
        return bool(self.values) and self.is_finite and self.is_feasible

    @property
    def mean(self) -> float:
        return sum(self.values.values()) / len(self.values)


def p_of_larger(differences: Sequence[float]) -> float:
    """Return the one-sided p-value of the signed-rank test of these differences.

    It is small if they are mostly positive. It is the probability of a rank sum of positive differences at least as
    large, if each sign is equally likely.
    """
    signed = np.asarray(differences, dtype=float)
    count = len(signed)
    _, group, sizes = np.unique(np.abs(signed), return_inverse=True, return_counts=True)
    # Twice the mean rank of each difference: these are integers.
    ranks = (2 * np.cumsum(sizes) - sizes + 1)[group]
    zeros = int(ranks[signed == 0].sum()) // 2
    above = int(ranks[signed > 0].sum())
    has_ties = len(sizes) < count or bool(zeros)
    if count <= (_EXACT_WITH_TIES if has_ties else _EXACT):
        return _share_above(ranks[signed != 0], above)
    mean = count * (count + 1) / 4
    variance = (count * (count + 1) * (2 * count + 1) - float((sizes**3 - sizes).sum()) / 2) / 24
    return NormalDist().cdf((mean - (above + zeros) / 2) / math.sqrt(variance))


def _share_above(ranks: NDArray[np.int64], least: int) -> float:
    """Return the share of all subsets of *ranks* whose sum is at least *least*."""
    ways = np.zeros(int(ranks.sum()) + 1)
    ways[0] = 1
    for rank in ranks:
        ways[rank:] += ways[:-rank].copy()
    return float(ways[least:].sum() / 2 ** len(ranks))
