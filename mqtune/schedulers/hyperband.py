"""HyperBand: successive halving in brackets whose trials wait for each other.

The brackets differ in their number of trials and in the time that each trial gets. After Li et al., "Hyperband: A Novel
Bandit-Based Approach to Hyperparameter Optimization", JMLR 18 (2018), Algorithm 1.
"""

from __future__ import annotations

import math
from enum import Enum
from fractions import Fraction
from typing import ClassVar, Final, NamedTuple

from mqtune.core.checks import optional_count
from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import CONTINUE, ITERATION, Action, Decision, Report, Trial, TrialId
from mqtune.schedulers.base import START, Choice, Release, Resume, Wait
from mqtune.schedulers.halving import Halving, trials_of_bracket
from mqtune.schedulers.timed import Progress, Rank, Waiting, exact, plain

_WAIT: Final = Wait("no new trial can start, and the rounds of all brackets wait for trials that are under way")


class Round(NamedTuple):
    """One round of a full bracket."""

    #: Number of trials in the round.
    trials: int
    #: The time at which the round ends for a trial.
    time: float


class _Place(Enum):
    UNDER_WAY = "under way"  #: it is queued, running or to be retried
    WAITING = "waiting"  #: it is paused with its score until the round is over
    CHOSEN = "chosen"  #: it is paused and takes part in the next round
    OUT = "out"  #: it is paused and to be released
    LEFT_ALONE = "left alone"  #: a person paused or resumed it, and the bracket continues without it


class _Bracket:
    __slots__ = ("is_filling", "missing", "number", "paused", "plan", "round", "trials")

    def __init__(self, number: int, plan: tuple[Round, ...]) -> None:
        self.number = number
        self.plan = plan
        self.round = 0
        self.trials = 0
        self.is_filling = True
        #: Trials of the round that have neither paused with a score nor ended.
        self.missing = 0
        self.paused: dict[TrialId, Rank] = {}

    @property
    def level(self) -> float:
        """The time at which the current round ends for a trial."""
        return self.plan[self.round].time

    @property
    def best(self) -> TrialId:
        return min(self.paused, key=self.paused.__getitem__)


class _Member(Progress):
    __slots__ = ("bracket", "order", "place", "rank", "reason")

    def __init__(self, bracket: _Bracket, order: int) -> None:
        super().__init__(bracket.level)
        self.bracket = bracket
        self.order = order
        self.place = _Place.UNDER_WAY
        self.rank: Rank | None = None
        self.reason = ""


class HyperBand(Halving[_Member]):
    """Synchronous successive halving: pauses trials at the end of a round, and resumes the best.

    **Brackets.** Let R be *max_t* / *grace_period*, and s_max the largest s for which reduction_factor**s is at most R.
    Bracket s (s_max, …, 1, 0) begins with n = ceil((s_max + 1) / (s + 1) * reduction_factor**s) trials. Its round i (0,
    …, s) has floor(n / reduction_factor**i) trials, which run until time *max_t* * reduction_factor**(i - s).
    Arithmetic is exact: a float counts as the decimal number that it is written as. With *max_t* 729 and factor 3 there
    are seven brackets, and the first one begins with 729 trials that run until time 1. New trials fill one bracket
    after the other, from the bracket with the most trials to bracket 0, and then again from the first. With *brackets*,
    only that many of the first brackets are used. With 1, this is plain successive halving (Jamieson and Talwalkar,
    AISTATS 2016, Algorithm 1): *max_t* 27 and factor 3 give 27 trials at time 1, 9 at 3, 3 at 9 and 1 at 27.

    **The rule.** A trial is paused at its first report at or after the time of its round, and that report's metric is
    its score. The round is over when the bracket is full and each of its trials has paused or ended. Let n be the
    number of the round's trials. The best max(1, floor(n / reduction_factor)) continue in the next round, and the
    others are released (stopped early). At *max_t*, in the last round, each trial completes. A free slot goes to a
    trial that continues, by bracket and rank, or else to a new trial. The same configs with the same curves give the
    same decisions on any number of slots.

    - *Scores that count*: those of trials that are paused when the round is over. A trial that fails, is abandoned or
      ends before that has no score, but still counts in n. So the number of continuing trials does not depend on it, as
      long as enough others have scores.
    - *Ties*: the trial that was queued earlier is better.
    - *NaN* is worse than every number. Of several NaN, the trial queued earlier is better. Infinities are numbers.
    - *Outcome constraints*: as in ``ASHA``.
    - *A report without the metric*, or with None, gives no score. The next report with the metric does. At *max_t* the
      trial completes anyway.
    - *A report that skips several rounds* counts in the current round, and the trial is paused. At *max_t* the trial
      completes in any round.
    - *A late or repeated report* changes nothing, and the trial's last decision is returned.
    - *A failed trial that is retried* stays in its round. If it had a score, the retry is paused at its first report at
      or after the round's time, and keeps that score.
    - *A resume without a checkpoint*, or from an older one, is next judged at its round's time.
    - *When no new trial can start*, a bracket that is not full is closed as soon as all its trials have paused or
      ended. Then n is the number of its trials.
    - *By hand*: a trial that a person pauses or resumes leaves its bracket, which continues without it. When it runs,
      it runs until *max_t*.

    **Cost.** A report before the round's time costs two dict look-ups, a choice O(log n), and the end of a round a
    sort. Ended trials need no memory.

    Args:
        max_t: the time at which a trial completes.
        grace_period: lower limit for the times of rounds. No trial is paused earlier.
        reduction_factor: one in this many trials continues after a round; eta in the paper. Above 1, usually 3 or 4;
            fractions are allowed.
        brackets: number of brackets to use, beginning with the one with the most trials. By default all, s_max + 1.
        stop_last_trials: whether a trial is ended as COMPLETED at *max_t*. If false, it runs until it ends by itself or
            by a stop rule.
        scope: which value of the metric counts: "last": the report's own; "avg": the mean of all values so far;
            "last-N-avg" with a number N: the mean of the last N values; "all": the best value so far.
        time_attr: the reports' key of the time. Its value must never decrease within an attempt.
    """

    kind = "hyperband"
    later: ClassVar = {**Halving.later, "brackets": ""}

    def __init__(
        self,
        max_t: float,
        *,
        grace_period: float = 1,
        reduction_factor: float = 3,
        brackets: int | None = None,
        stop_last_trials: bool = True,
        scope: str = "last",
        time_attr: str = ITERATION,
    ) -> None:
        super().__init__(
            max_t,
            grace_period=grace_period,
            reduction_factor=reduction_factor,
            stop_last_trials=stop_last_trials,
            scope=scope,
            time_attr=time_attr,
        )
        self._factor = exact(self._reduction_factor)
        self._highest = _highest_bracket(exact(self._max_t) / exact(self._grace_period), self._factor)
        self._brackets = optional_count("brackets", brackets, 1)
        if self._brackets is not None and self._brackets > self._highest + 1:
            raise ConfigurationError(
                f"{self._name}: brackets={brackets!r} is too large; with this max_t and grace_period, give at most "
                f"{self._highest + 1}"
            )
        self._opened = 0
        self._open: _Bracket | None = None
        #: Paused trials that continue in the next round, by bracket and rank.
        self._chosen = Waiting()
        #: Paused trials to release, by bracket and rank.
        self._out = Waiting()

    @property
    def brackets(self) -> tuple[tuple[Round, ...], ...]:
        """The rounds of each bracket, in the order in which brackets are filled."""
        return tuple(self._plan(s) for s in self._in_use)

    @property
    def _in_use(self) -> range:
        lowest = 0 if self._brackets is None else self._highest + 1 - self._brackets
        return range(self._highest, lowest - 1, -1)

    def on_queue(self, trial: Trial) -> None:
        member = self._queued(trial)
        if member is None:
            return
        bracket = member.bracket
        if member.place is _Place.WAITING and self._may_close(bracket) and trial.id == bracket.best:
            # This trial was chosen because no new trial could start, so the bracket stays as it is.
            self._close_round(bracket)
        if member.place is _Place.CHOSEN:
            self._chosen.discard(trial.id)
            member.place = _Place.UNDER_WAY
        elif member.place is not _Place.UNDER_WAY:
            self._leave_bracket(trial.id, member)
        member.next_level = self._max_t if member.place is _Place.LEFT_ALONE else bracket.level

    def on_trial_pause(self, trial: Trial) -> None:
        member = self._progress.get(trial.id)
        if member is None or member.place is not _Place.UNDER_WAY:
            return
        if member.rank is None:
            self._leave_bracket(trial.id, member)
            return
        member.place = _Place.WAITING
        member.bracket.paused[trial.id] = member.rank
        self._count_arrival(member.bracket)

    def choose(self, *, can_start: bool) -> Choice:
        """Return a release, else the resume of a trial for its next round, else a start."""
        if self._out.first is not None:
            return Release(self._out.first, self._progress[self._out.first].reason)
        if self._chosen.first is not None:
            return Resume(self._chosen.first, self._progress[self._chosen.first].reason)
        if can_start:
            return START
        if self._open is not None and self._may_close(self._open):
            return Resume(self._open.best, _reason(self._open, self._survivors(self._open), is_chosen=True))
        return _WAIT

    def on_trial_end(self, trial: Trial) -> None:
        member = self._progress.pop(trial.id, None)
        if member is not None:
            self._remove_from_round(trial.id, member)

    def _enrol(self, trial: Trial) -> _Member:
        bracket = self._open
        if bracket is None:
            s = self._in_use[self._opened % len(self._in_use)]
            bracket = self._open = _Bracket(self._opened, self._plan(s))
            self._opened += 1
        member = _Member(bracket, bracket.trials)
        bracket.trials += 1
        bracket.missing += 1
        if bracket.trials == bracket.plan[0].trials:
            bracket.is_filling = False
            self._open = None
        return member

    def _reach(self, trial: Trial, report: Report, progress: _Member) -> Decision:
        if progress.time >= self._max_t:
            progress.next_level = math.inf
            if not self._stop_last_trials:
                self._leave_bracket(trial.id, progress)
            return self._at_max_t
        if progress.rank is None:
            progress.rank = self._rank_of(report, progress.order)
        if progress.rank is None:
            return CONTINUE
        progress.next_level = math.inf
        bracket = progress.bracket
        return Decision(Action.PAUSE, f"bracket {bracket.number}: waits for the others at {bracket.level}")

    def _plan(self, s: int) -> tuple[Round, ...]:
        factor, max_t = self._factor, exact(self._max_t)
        trials = trials_of_bracket(s, self._highest, factor)
        return tuple(Round(math.floor(trials / factor**i), plain(max_t * factor ** (i - s))) for i in range(s + 1))

    def _may_close(self, bracket: _Bracket) -> bool:
        """Return whether a bracket that is not full can end its round if no new trial can start."""
        return bracket.is_filling and bracket.missing == 0 and bool(bracket.paused)

    def _count_arrival(self, bracket: _Bracket) -> None:
        bracket.missing -= 1
        if bracket.missing == 0 and not bracket.is_filling:
            self._close_round(bracket)

    def _survivors(self, bracket: _Bracket) -> int:
        present = math.floor(bracket.trials / self._factor**bracket.round)
        return max(1, math.floor(present / self._factor))

    def _close_round(self, bracket: _Bracket) -> None:
        if bracket.is_filling:
            bracket.is_filling = False
            self._open = None
        survivors = self._survivors(bracket)
        chosen, out = (_reason(bracket, survivors, is_chosen=is_chosen) for is_chosen in (True, False))
        ranked = sorted(bracket.paused, key=bracket.paused.__getitem__)
        bracket.paused.clear()
        bracket.missing = min(survivors, len(ranked))
        if bracket.missing:
            bracket.round += 1
        for position, trial in enumerate(ranked):
            member = self._progress[trial]
            member.rank = None
            is_chosen = position < survivors
            member.place, member.reason = (_Place.CHOSEN, chosen) if is_chosen else (_Place.OUT, out)
            (self._chosen if is_chosen else self._out).add(trial, (bracket.number, position))

    def _leave_bracket(self, trial: TrialId, member: _Member) -> None:
        self._remove_from_round(trial, member)
        member.place = _Place.LEFT_ALONE
        member.rank = None

    def _remove_from_round(self, trial: TrialId, member: _Member) -> None:
        match member.place:
            case _Place.UNDER_WAY:
                self._count_arrival(member.bracket)
            case _Place.WAITING:
                del member.bracket.paused[trial]
            case _Place.CHOSEN:
                self._chosen.discard(trial)
                self._count_arrival(member.bracket)
            case _Place.OUT:
                self._out.discard(trial)


def _reason(bracket: _Bracket, survivors: int, *, is_chosen: bool) -> str:
    among = "among" if is_chosen else "not among"
    return f"bracket {bracket.number}: {among} the best {survivors} of {len(bracket.paused)} at {bracket.level}"


def _highest_bracket(budget: Fraction, factor: Fraction) -> int:
    """Return the largest s for which factor**s is at most *budget*, which is R in the paper."""
    s, power = 0, factor
    while power <= budget:
        s, power = s + 1, power * factor
    return s
