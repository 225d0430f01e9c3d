"""ASHA: compares trials at the same training times, and stops or pauses bad ones.

After Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, section 3. ``ASHA`` stops bad
trials. ``PromotionASHA`` pauses every trial at each rung, and resumes the best.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from fractions import Fraction
from typing import ClassVar, Final

from mqtune.core.checks import name, optional_count
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import names_in_words
from mqtune.core.trial import CONTINUE, ITERATION, Action, Decision, Report, Trial, is_number
from mqtune.schedulers.base import START, Choice, Release, Resume, Wait
from mqtune.schedulers.halving import Bracket, CostRung, InBracket, Rung, RungHalving
from mqtune.schedulers.timed import AnyRank, Rank, exact


class ASHA(RungHalving[InBracket]):
    """Asynchronous successive halving: stops trials early, and completes them at *max_t*.

    **Rungs.** A rung is a time at which trials are compared. The rungs are ``grace_period * reduction_factor**k`` for k
    = 0, 1, … as long as this is less than *max_t*, and *max_t*. Arithmetic is exact: a float counts as the decimal
    number that it is written as. With *grace_period* 1, *max_t* 243 and factor 3, the rungs are 1, 3, 9, 27, 81 and
    243.

    **Brackets.** With *brackets* above 1, some trials are first judged at a higher rung. That helps if early values of
    the metric say little. It is as in Hyperband (Li et al., JMLR 18 (2018), Algorithm 1), but no trial waits for
    another. Bracket b = 0, 1, … uses the rungs from number b on, and compares only its own trials. With K rungs,
    brackets get trials in proportion to ceil(K / (K - b) * reduction_factor**(K - b - 1)). At its first report a trial
    joins the bracket that is furthest behind its share, the first of several. With *max_t* 27 and 4 brackets, of 49
    trials 27 are judged from time 1 on, 12 from 3 on, 6 from 9 on, and 4 never.

    **The rule.** A trial enters a rung with the metric of its first report at or after the rung's time. Let n be the
    number of trials that have entered the rung, with this one. The trial continues if it is among the best
    ``max(1, floor(n / reduction_factor))``, else it is stopped. Earlier trials are not judged again. At *max_t* every
    trial completes.

    - *Ties*: a trial with the same value as the last of the best continues too.
    - *NaN* is worse than every number and equal to itself. Infinities are numbers.
    - *Outcome constraints*: a report that violates one is worse than any report without a violation, and better than
      NaN. A smaller violation is better (``Objective.violation``). A missing constrained metric violates nothing. The
      report's own values count here, not those of *scope*.
    - *A report without the metric*, or with None, enters no rung. The next report with the metric does. At *max_t* the
      trial completes anyway.
    - *A report that skips rungs* enters the highest of them. The trial never enters the rungs below.
    - *Each trial enters a rung once*, even if it runs again. A late or repeated report changes nothing, and the trial's
      last decision is returned.
    - *A failed trial's scores* still count. If it runs again from scratch or from an older checkpoint, it is next
      judged at the first rung above those that it has entered.
    - *An abandoned trial's scores* are removed, and n decreases. Earlier decisions stay.

    **Cost.** A report that reaches no rung costs two dict look-ups, and any other report O(log n). Memory is one score
    for each trial in each rung.

    Args:
        max_t: the time at which a trial completes.
        grace_period: the time of the lowest rung. No trial stops earlier.
        reduction_factor: one in this many trials of a rung continues. Above 1, usually 3 or 4; fractions are allowed.
        brackets: number of brackets, at most the number of rungs. With 1, most trials are stopped early.
        stop_last_trials: whether a trial is ended as COMPLETED at *max_t*. If false, it runs until it ends by itself or
            by a stop rule.
        scope: which value of the metric counts: "last": the report's own; "avg": the mean of all values so far;
            "last-N-avg" with a number N: the mean of the last N values; "all": the best value so far.
        time_attr: the reports' key of the time. Its value must never decrease within an attempt.
    """

    asks_ahead = True
    kind = "asha"
    _least = 1

    def _enrol(self, trial: Trial) -> InBracket:
        bracket = self._next_bracket()
        return InBracket(bracket, self._levels[bracket.lowest])

    def _reach(self, trial: Trial, report: Report, progress: InBracket) -> Decision:
        index = bisect_right(self._levels, progress.time) - 1
        is_top = index == len(self._levels) - 1
        rank = self._rank(report)
        if rank is not None:
            self._enter(progress, progress.bracket.rungs[index], rank)
        if is_top:
            if rank is not None or self._stop_last_trials:
                # A late report must not enter the rung after completion.
                progress.next_level = math.inf
            return self._at_max_t
        if rank is None:
            return CONTINUE
        rung = progress.bracket.rungs[index]
        reason = self._why_stopped(trial, rung, rank)
        if not reason:
            progress.next_level = self._levels[index + 1]
            return CONTINUE
        progress.next_level = math.inf
        return Decision(Action.STOP, f"{rung.name}: {self._in_words(report)} {reason}")

    def _in_words(self, report: Report) -> str:
        values = ", ".join(f"{self._judged(name)}={float(report.metrics[name]):g}" for name in self.metrics)
        violated = [] if self.objective is None else self.objective.violated(report.metrics)
        return f"{values} (violates {' and '.join(map(str, violated))})" if violated else values

    def _rank(self, report: Report) -> AnyRank | None:
        return self._rank_of(report)

    def _why_stopped(self, trial: Trial, rung: Rung, rank: AnyRank) -> str:
        return "" if rung.is_among_best(rank) else f"is not among the best {rung.places} of {rung.entered}"


_WAIT: Final = Wait("no new trial can start, and no paused trial can be promoted before others reach its rung")


class Climb(InBracket):
    """A trial's progress through the rungs, with its rank in the rung that it has entered last."""

    __slots__ = ("index", "is_under_way", "rank")

    def __init__(self, bracket: Bracket, next_level: float) -> None:
        super().__init__(bracket, next_level)
        #: The number of the rung that the trial goes to, or has entered.
        self.index = bracket.lowest
        #: Its rank in that rung. None before it enters.
        self.rank: Rank | None = None
        #: Whether it is queued, running or to be retried. Otherwise it is paused.
        self.is_under_way = True

    @property
    def rung(self) -> Rung:
        return self.bracket.rungs[self.index]


class PromotionASHA(RungHalving[Climb]):
    """Asynchronous successive halving by promotion: pauses trials, and resumes the best.

    **Rungs and brackets** are those of ``ASHA``, but a trial joins a bracket when it is queued. Its first rung is the
    bracket's lowest.

    **The rule.** A trial enters its rung with the metric of its first report at or after the rung's time, and is
    paused. A paused trial is promotable if it is among the best ``floor(n / reduction_factor)`` of the n trials that
    have entered its rung. A free slot goes to the best promotable trial of the highest rung that has one, of equal
    rungs to the first bracket's: the trial is resumed, and runs to its next rung. If no trial is promotable, a new
    trial starts. At *max_t* every trial completes. A rung with fewer than *reduction_factor* trials promotes none, so
    with few trials none may reach *max_t*.

    **By cost.** With *cost*, a trial is promotable if it and all better trials of the rung together have at most
    ``1 / reduction_factor`` of the rung's cost. So more cheap trials are promoted. After Ivkin et al., "Cost-aware
    Adversarial Best Arm Identification", NAS workshop at ICLR 2021. The report that enters the rung has the cost. A
    report whose cost is missing, negative or not finite enters no rung. Sums are exact.

    - *Scores that count*: those of all trials that have entered the rung, even if they were promoted, failed or ended
      since. Only the scores of abandoned trials are removed, and n decreases.
    - *Ties*: the trial that entered the rung earlier is better.
    - *NaN* is worse than every number. Of several NaN, the earlier is better. Infinities are numbers.
    - *Outcome constraints*: as in ``ASHA``.
    - *A report without the metric*, or with None, enters no rung. The next report with the metric does. At *max_t* the
      trial completes anyway.
    - *A report that skips rungs* enters the highest of them, and no rung below.
    - *A late or repeated report* changes nothing, and the trial's last decision is returned.
    - *A trial that fails before its rung* does not count there, and its retry runs to the same rung. If it had entered
      the rung, its score stays, and the retry is paused at its first report at or after the rung's time.
    - *A resume without a checkpoint*, or from an older one, is next judged at the trial's next rung.
    - *By hand*: a trial that a person resumes counts as promoted. A trial that a person pauses below its rung stays
      paused.

    **The end.** When no new trial can start, the paused trials of a rung are released (stopped early) as soon as none
    of them is promotable and no other trial can reach the rung.

    **Few paused trials.** With *most_paused*, if a rung has more paused trials than that and no trial is promotable,
    the worst paused one is released before a new trial starts. Its score still counts.
    ``Checkpoints(delete="stopped")`` then deletes its checkpoints. With m better trials paused at the rung, the worst
    would be promoted only after about m * *reduction_factor* more trials have entered.

    **Cost.** A report that reaches no rung costs two dict look-ups. Entering a rung, or a choice, costs O(log n).
    Memory is one score for each trial in each rung.

    Args:
        max_t: the time at which a trial completes.
        grace_period: the time of the lowest rung.
        reduction_factor: one in this many trials of a rung is promoted. Above 1, usually 3 or 4; fractions are allowed.
        brackets: number of brackets, at most the number of rungs. With 1, most trials are stopped early.
        stop_last_trials: whether a trial is ended as COMPLETED at *max_t*. If false, it runs until it ends by itself or
            by a stop rule.
        scope: which value of the metric counts: "last": the report's own; "avg": the mean of all values so far;
            "last-N-avg" with a number N: the mean of the last N values; "all": the best value so far.
        cost: the reports' key of a trial's cost so far, such as ``time_total_s``. By default all trials cost the same.
        most_paused: largest number of trials that stay paused at each rung, at least 1. By default there is no limit.
        time_attr: the reports' key of the time. Its value must never decrease within an attempt.
    """

    kind = "promotion_asha"
    later: ClassVar = {**RungHalving.later, "cost": "", "most_paused": ""}
    _least = 0

    def __init__(
        self,
        max_t: float,
        *,
        grace_period: float = 1,
        reduction_factor: float = 3,
        brackets: int = 1,
        stop_last_trials: bool = True,
        scope: str = "last",
        cost: str | None = None,
        most_paused: int | None = None,
        time_attr: str = ITERATION,
    ) -> None:
        self._cost = "" if cost is None else name(self._name, "cost", cost, "the key of the cost in the reports")
        self._has_cost = False
        self._most_paused = optional_count("most_paused", most_paused, 1)
        super().__init__(
            max_t,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            brackets=brackets,
            stop_last_trials=stop_last_trials,
            scope=scope,
            time_attr=time_attr,
        )

    def on_queue(self, trial: Trial) -> None:
        """Let a new trial run to the lowest rung, and a promoted trial to its next rung."""
        climb = self._queued(trial)
        if climb is None:
            return
        if not climb.is_under_way:
            climb.is_under_way = True
            if climb.rank is not None and not self._is_top(climb):
                climb.rung.waiting.discard(trial.id)
                climb.index += 1
                climb.rank = None
            climb.rung.coming += 1
        climb.next_level = self._levels[climb.index]

    def on_trial_pause(self, trial: Trial) -> None:
        """Let a trial that has entered its rung wait there for a promotion.

        A trial that a person paused below its rung does not wait.
        """
        climb = self._progress.get(trial.id)
        if climb is None or not climb.is_under_way:
            return
        climb.is_under_way = False
        climb.rung.coming -= 1
        if climb.rank is not None and not self._is_top(climb):
            climb.rung.waiting.add(trial.id, climb.rank)

    def choose(self, *, can_start: bool) -> Choice:
        """Return a promotion from the highest possible rung, else a start, else a release."""
        for rung in self._rungs_downwards():
            best = rung.waiting.first
            rank = None if best is None else self._progress[best].rank
            if best is not None and rank is not None and rung.is_among_best(rank):
                return Resume(best, f"{rung.name}: among the best {rung.places} of {rung.entered}")
        if self._most_paused is not None and (release := self._release_surplus(self._most_paused)) is not None:
            return release
        if can_start:
            return START
        return next(filter(None, map(self._release, self._all_brackets)), _WAIT)

    def _release_surplus(self, most: int) -> Release | None:
        """Return the release of a rung's worst paused trial if there are more than *most*, or None."""
        for bracket in self._all_brackets:
            for rung in bracket.rungs:
                if len(rung.waiting) > most and (worst := rung.waiting.last) is not None:
                    return Release(worst, f"{rung.name}: not among the best {most} of those that are paused there")
        return None

    def _rungs_downwards(self) -> Iterator[Rung]:
        """Yield the rungs from which trials may be promoted, the highest first."""
        for index in range(len(self._levels) - 2, -1, -1):
            for bracket in self._all_brackets:
                yield bracket.rungs[index]

    def _release(self, bracket: Bracket) -> Release | None:
        for rung in bracket.rungs:
            if rung.coming:
                break
            if rung.waiting.first is not None:
                return Release(rung.waiting.first, f"{rung.name}: {self._why_released(rung)}")
        return None

    def _why_released(self, rung: Rung) -> str:
        return f"not among the best {rung.places} of {rung.entered}, and no other trial comes there"

    def on_trial_end(self, trial: Trial) -> None:
        climb = self._progress.pop(trial.id, None)
        if climb is None:
            return
        if climb.is_under_way:
            climb.rung.coming -= 1
        else:
            climb.rung.waiting.discard(trial.id)

    def _rung(self, name: str, factor: Fraction) -> Rung:
        return CostRung(name, factor) if self._cost else super()._rung(name, factor)

    def _costs_something(self, report: Report) -> bool:
        """Return whether a report has a valid cost."""
        cost = report.metrics.get(self._cost)
        is_valid = is_number(cost) and 0 <= cost < math.inf
        self._has_cost = self._has_cost or is_valid
        if not self._has_cost:
            raise ConfigurationError(
                f"{self._name}: report {report.sequence} of trial {report.trial} has no number of at least 0 for the "
                f"cost {self._cost!r}; it has {names_in_words(report.metrics)}"
            )
        return is_valid

    def _is_top(self, climb: Climb) -> bool:
        return climb.index == len(self._levels) - 1

    def _enrol(self, trial: Trial) -> Climb:
        bracket = self._next_bracket()
        climb = Climb(bracket, self._levels[bracket.lowest])
        climb.rung.coming += 1
        return climb

    def _reach(self, trial: Trial, report: Report, progress: Climb) -> Decision:
        index = bisect_right(self._levels, progress.time) - 1
        has_score = report.metrics.get(self.metric) is not None
        if self._cost and has_score:
            has_score = self._costs_something(report)
        is_top = index == len(self._levels) - 1
        if progress.rank is None and (has_score or is_top):
            progress.rung.coming -= 1
            progress.index = index
            progress.rung.coming += 1
        if progress.rank is None and has_score and (rank := self._rank_of(report, progress.rung.arrivals)) is not None:
            progress.rank = rank
            if isinstance(progress.rung, CostRung):
                progress.rung.costs[progress.rank] = exact(report.metrics[self._cost])
            self._enter(progress, progress.rung, progress.rank)
        if is_top:
            progress.next_level = math.inf
            return self._at_max_t
        if progress.rank is None:
            return CONTINUE
        progress.next_level = math.inf
        return Decision(Action.PAUSE, f"{progress.rung.name}: waits to be promoted")
