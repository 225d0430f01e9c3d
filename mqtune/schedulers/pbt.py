"""Population-based training: trials that do badly go on from the checkpoints, and near the configs, of those that do well.

After Jaderberg et al., "Population Based Training of Neural Networks", 2017 (arXiv:1711.09846), Algorithm 1, with
truncation selection (section 4.1.1).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mqtune.errors import ConfigurationError
from mqtune.schedulers.arguments import exact, number
from mqtune.schedulers.base import START, Choice, Resume, Wait
from mqtune.schedulers.milestones import Milestones
from mqtune.schedulers.mutations import Exploration, Explore
from mqtune.schedulers.rungs import Rank, Waiting, rank_of
from mqtune.schedulers.timed import ITERATION, Progress, TimedScheduler
from mqtune.space import Space
from mqtune.trial import CONTINUE, Action, Config, Decision, Report, Trial

__all__ = ["PBT"]

_WAIT: Final = Wait("no new trial can start, and none is paused that would go on from another")

#: A quantile may not reach the other one.
_LARGEST_QUANTILE: Final = 0.5


class _Plan(NamedTuple):
    """What a trial goes on with when it is paused: the trial that it copies, and the config."""

    source: Trial
    config: Config
    reason: str


class _Member(Progress):
    """A trial's progress, and its part in the population."""

    __slots__ = ("is_new", "order", "peers", "plan", "rank", "trial")

    def __init__(self, trial: Trial, order: int, next_level: float) -> None:
        super().__init__(next_level)
        self.trial = trial
        self.order = order
        #: How many trials had begun when it came to its first milestone.
        self.peers: int | None = None
        #: Its rank at its last milestone, while it is in the population.
        self.rank: Rank | None = None
        self.plan: _Plan | None = None
        #: Whether it was resumed and has not reported since.
        self.is_new = False


class PBT(TimedScheduler[_Member]):
    """Population-based training: a trial among the worst goes on from one of the best, with a config explored from its.

    **Milestones.** They are the multiples of *perturbation_interval* that are not below *grace_period*, in exact
    arithmetic. A trial comes to a milestone with the first report whose time has reached it; one that skips several
    comes to all of them at once.

    **The rule.** The population are the trials that are under way and have come to a milestone, each with the metric of
    the report with which it came to its last one. When a trial comes to a milestone, q is
    ``floor(n * quantile_fraction)`` of the n in the population, itself included, but at least 1, and at most half of n.
    If it is among the worst q, one of the best q is drawn, each as likely, of those that have a checkpoint and began
    before this trial had come to its first milestone; where there are none, the trial runs on. Otherwise it is paused, leaves
    the population, and is resumed from the newest checkpoint of the one that was drawn, with a config that is explored
    from that one's (see below). It is in the population again at its next milestone, for which its first report does
    not count. Everybody else runs on: a trial ends by itself or by a rule that stops it.

    **Exploring.** Each value that may change is, with *resample_probability*, drawn anew from its domain; otherwise a
    number is multiplied by one of *perturbation_factors* and kept within its domain, and of a list of values one beside
    the present one is taken. Values that a ``sample_from`` computed stay as they are, unless *explore* changes them.

    - *Ties*: who was staged earlier is better.
    - *NaN* is worse than every number; of several, the one staged earlier is better. Infinities are numbers.
    - *A report without the metric*, or with None for it, comes to no milestone; the next one that has it does.
    - *A late or repeated report* changes nothing and gets the decision that stands.
    - *A trial that fails, ends or is abandoned* leaves the population. One that is retried stays in it with the score
      that it has, and comes to its next milestone as if nothing had happened; times that it has passed are ignored.
    - *Who begins later*, when a slot is free, copies its elders but not they it, as each newcomer would throw them back.
    - *A source without a checkpoint* is never drawn; the decision has the checkpoint kept until the copy begins.
    - *By hand*: a trial that a person pauses leaves the population until it runs and comes to its next milestone. One
      that a person resumes while it waits to copy another does not copy it.

    Further trials than there are slots wait until others end, and are no part of the population before.

    The same reports in the same order give the same configs: what is drawn depends on *seed*, the trial, the attempt and
    the report. What happened stands in the journal, attempt by attempt; ``policy_of`` reads it, ``PBTReplay`` repeats
    it.

    **Cost.** A report before a milestone costs two look-ups; one at a milestone O(log n) comparisons in the population of
    n, and one after which a trial copies another a look at each of the best.

    Args:
        perturbation_interval: the time between milestones.
        hyperparam_mutations: what may change: domains of ``mqtune``, or lists of values, under the names that the
            search space gives them, nested as there.
        quantile_fraction: the share of the population that copies, and that is copied; above 0, at most 0.5.
        resample_probability: how likely each value is drawn anew; from 0 to 1.
        perturbation_factors: what numbers are multiplied by, each as likely as the others.
        explore: a function that is called with each explored config and returns the one that counts.
        grace_period: no trial copies earlier.
        seed: the same seed gives the same decisions.
        time_attr: the key of the time in the reports: anything that starts above 0 and never goes down within an
            attempt. Under its default name, a report without it counts by its sequence number.

    Raises:
        ConfigurationError: an argument makes no sense.
    """

    def __init__(
        self,
        perturbation_interval: float,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        *,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        explore: Explore | None = None,
        grace_period: float = 0,
        seed: int = 0,
        time_attr: str = ITERATION,
    ) -> None:
        super().__init__(time_attr)
        self._milestones = Milestones(
            self._name, ("perturbation_interval", perturbation_interval), ("grace_period", grace_period)
        )
        self._quantile_fraction = number(self._name, "quantile_fraction", quantile_fraction)
        self._share = exact(self._quantile_fraction)
        if not 0 < self._quantile_fraction <= _LARGEST_QUANTILE:
            raise ConfigurationError(f"PBT: quantile_fraction={quantile_fraction!r} must be above 0 and at most 0.5")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ConfigurationError(f"PBT: seed={seed!r} is not an integer")
        self._seed = seed
        self._exploration = Exploration(
            hyperparam_mutations,
            resample_probability=resample_probability,
            factors=perturbation_factors,
            explore=explore,
        )
        self._enrolled = 0
        #: The ranks of the population, best first; the order of staging, which each holds, finds the member.
        self._ranks: list[Rank] = []
        self._by_order: dict[int, _Member] = {}
        #: Paused trials with a plan, in the order of staging.
        self._waiting = Waiting()

    def check_space(self, space: Space) -> None:
        """Refuse a space that lacks what may change.

        Raises:
            ConfigurationError: it does; the message says what there is.
        """
        self._exploration.check_space(space)

    def on_stage(self, trial: Trial) -> None:
        """Let a new trial, or one that has copied another, run to its next milestone."""
        known = self._progress.get(trial.id)
        if known is not None and trial.attempt.number <= known.attempt:
            return
        member = self._begin(trial, trial.attempt.number)
        self._waiting.discard(trial.id)
        if member.plan is not None:
            member.plan = None
            member.is_new = True
            # It is as far as what it copied, which its first report shows.
            member.next_level = -math.inf
        member.decision = CONTINUE

    def on_trial_pause(self, trial: Trial) -> None:
        """Have *trial* resumed if it is to copy another."""
        member = self._progress.get(trial.id)
        if member is None:
            return
        self._leave(member)
        if member.plan is not None:
            self._waiting.discard(trial.id)
            self._waiting.add(trial.id, member.order)

    def choose(self, *, can_start: bool) -> Choice:
        """Return the resume of a trial that copies another, else a start."""
        first = self._waiting.first
        if first is None:
            return START if can_start else _WAIT
        plan = self._progress[first].plan
        if plan is None or not plan.source.checkpoints or plan.source.is_abandoned:
            return Resume(first, "what it was to copy is gone")
        return Resume(first, plan.reason, plan.config, plan.source.id)

    def on_abandon(self, trial: Trial) -> None:
        """Take *trial* out of the population; who was to copy it goes on as it is."""
        member = self._progress.get(trial.id)
        if member is not None:
            self._leave(member)

    def on_trial_end(self, trial: Trial) -> None:
        """Take *trial* out of the population."""
        member = self._progress.pop(trial.id, None)
        if member is not None:
            self._leave(member)
            self._waiting.discard(trial.id)
            del self._by_order[member.order]

    def describe(self) -> dict[str, Any]:
        """Return its arguments, a function by its name."""
        return {
            "scheduler": "pbt",
            "perturbation_interval": self._milestones.interval,
            "quantile_fraction": self._quantile_fraction,
            "grace_period": self._milestones.first,
            "seed": self._seed,
            "time_attr": self._time_attr,
            **self._exploration.describe(),
        }

    def _enrol(self, trial: Trial) -> _Member:
        member = _Member(trial, self._enrolled, self._milestones.lowest)
        self._by_order[member.order] = member
        self._enrolled += 1
        return member

    def _leave(self, member: _Member) -> None:
        if member.rank is not None:
            del self._ranks[bisect_left(self._ranks, member.rank)]
            member.rank = None

    def _reach(self, trial: Trial, report: Report, progress: _Member) -> Decision:
        if progress.plan is not None:
            return progress.decision
        if progress.is_new:
            progress.is_new = False
            progress.next_level = self._milestones.after(progress.time)
            return CONTINUE
        value = report.metrics.get(self.metric)
        if value is None:
            return CONTINUE
        progress.next_level = self._milestones.after(progress.time)
        self._leave(progress)
        progress.rank = rank_of(self._score(report, value), progress.order)
        if progress.peers is None:
            progress.peers = self._enrolled
        insort(self._ranks, progress.rank)
        return self._judge(report, progress, progress.peers)

    def _judge(self, report: Report, member: _Member, peers: int) -> Decision:
        size, rank = len(self._ranks), member.rank
        share = min(max(1, math.floor(size * self._share)), size // 2)
        if not share or rank is None or rank < self._ranks[size - share]:
            return CONTINUE
        best = [self._by_order[order] for *_, order in self._ranks[:share]]
        sources = [other for other in best if other.trial.checkpoints and other.order < peers]
        if not sources:
            return CONTINUE
        rng = random.Random(f"{self._seed} {report.trial} {report.attempt} {report.sequence}")
        source = rng.choice(sources).trial
        config = self._exploration(source.attempt.config, rng)
        member.plan = _Plan(source, config, f"goes on from trial {source.id}")
        self._leave(member)
        place = f"among the worst {share} of {size} at {member.time}"
        return Decision(Action.PAUSE, f"{place}: goes on from trial {source.id}", source.id)
