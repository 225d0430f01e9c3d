"""Population-based training: the worst trials continue from the checkpoints of the best, with similar configs.

After Jaderberg et al., "Population Based Training of Neural Networks", 2017 (arXiv:1711.09846), Algorithm 1, with
truncation selection (section 4.1.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Self

from mqtune.core.checks import flag, number, positive, whole_number
from mqtune.core.errors import ConfigurationError
from mqtune.core.registry import Description
from mqtune.core.text import nested
from mqtune.core.trial import CONTINUE, ITERATION, Decision, Report, Trial
from mqtune.schedulers.base import Choice
from mqtune.schedulers.exploration import Exploration, Explore
from mqtune.schedulers.population import Generations, Member, Pace, Turns
from mqtune.schedulers.timed import Milestones, TimedScheduler, exact
from mqtune.search.domains import domain_of
from mqtune.search.space import SEPARATOR, Space

#: A quantile may not reach the other one.
_LARGEST_QUANTILE: Final = 0.5


class PBT(TimedScheduler[Member]):
    """Population-based training: a trial among the worst goes on from one of the best, with a config explored from its.

    **Milestones.** They are the multiples of *perturbation_interval* that are not below *grace_period*, in exact
    arithmetic. A trial comes to a milestone with the first report whose time has reached it; one that skips several
    comes to all of them at once.

    **The rule.** The population are the trials that have not ended and have come to a milestone, each with the metric of
    the report with which it came to its last one. When a trial comes to a milestone, q is
    ``floor(n * quantile_fraction)`` of the n in the population, itself included, but at least 1, and at most half of n.
    If it is among the worst q, one of the best q is drawn, each as likely, of those that may be copied; where there are
    none, the trial runs on. Otherwise it is replaced: paused, and resumed from the checkpoint that is then the newest of
    the one that was drawn, with a config that is explored from that one's (see below). All other trials run on: a trial
    ends by itself or by a rule that stops it.

    - *A replaced trial* keeps its last score in the population until it comes to a milestone again, so that no more are
      replaced than *quantile_fraction* says, however noisy the scores are. Its next milestone is the first one after the time of
      the checkpoint that it began from, or, if that was saved without the time, after its first report.
    - *Sources*: these may be copied: a trial that has a checkpoint, was not replaced since it scored, and began before the one that
      copies it had come to its first milestone. Of more than 32 best, 32 drawn at random are looked at.

    **Turns.** By default the population is as large as there are slots; further trials begin when others end. With
    *population_size* that many trials are under way at once, and where there are fewer slots they take turns: a trial
    that comes to a milestone while another has not begun, is paused, or waits in a queue, is paused. A free slot is for a
    new trial as long as the population is not full, and then for the trial that has come least far; a replaced
    trial counts as far as what it copies. The first *population_size* trials may copy each other, in whatever order they
    began. Where all have a slot, leave *population_size* out: then no trial pauses for nothing.

    **Generations.** With *synchronous* every trial is paused at the milestone of its generation. When all *population_size*
    have come there, or have ended, the rule is applied to all of them at once, and all go on to the first milestone
    after the furthest of them, those that copy first. So decisions don't depend on the number of slots, nor on
    how fast a trial is; slots are free while the last ones run. A population that is not full when no new trial can start
    goes on as it is. Trials that begin when it is full, because some have ended, are the next population.

    **Exploring.** Each value that may change is, with *resample_probability*, sampled from its domain; otherwise a
    number is multiplied by one of *perturbation_factors* and kept within its domain, and of a list of values one beside
    the present one is taken. Values that a ``sample_from`` computed stay as they are, unless *explore* changes them. A config that the space's constraint
    refuses is explored again, 100 times at most; then the copy has the config of what it copies.

    - *Ties*: the trial that was staged earlier is better.
    - *NaN* is worse than every number; of several, the one staged earlier is better. Infinities are numbers.
    - *Outcome constraints*: as ``ASHA`` has them. No trial whose score is of a report that violates one is copied.
    - *A report without the metric*, or with None for it, comes to no milestone; the next one that has it does.
    - *A late or repeated report* changes nothing and gets the decision in force.
    - *A trial that fails, ends or is abandoned* leaves the population. One that is retried stays in it with the score
      that it has, and comes to its next milestone as if nothing had happened; times that it has passed are ignored.
    - *A trial that begins later*, in the place of one that has ended, copies older ones but is not copied by them, as that
      would throw them back.
    - *The checkpoint of the source* is kept from the decision until the copy begins.
    - *By hand*: a trial that a person pauses leaves the population, and a generation goes on without it, until it runs
      and comes to a milestone. One that a person resumes while it waits to copy another does not copy it; one that waits
      for its generation scores again.

    The same reports in the same order give the same configs: what is drawn depends on *seed*, the trial, the attempt and
    the report. What happened stands in the journal, attempt by attempt; ``policy_of`` reads it, ``PBTReplay`` repeats
    it.

    **Cost.** A report before a milestone costs two look-ups; one at a milestone O(log n) comparisons in the population of
    n, and if it is among the worst a look at 32 others at most. The end of a generation costs a sort of it.

    Args:
        perturbation_interval: the time between milestones.
        hyperparam_mutations: what may change: domains of ``mqtune``, or lists of values, under the names that the
            search space gives them, nested as there.
        quantile_fraction: the share of the population that copies, and that is copied; above 0, at most 0.5.
        resample_probability: the probability of sampling each value; from 0 to 1.
        perturbation_factors: what numbers are multiplied by, each as likely as the others.
        explore: a function that is called with each explored config and returns the one that counts.
        grace_period: no trial copies earlier.
        seed: the same seed gives the same decisions.
        population_size: how many trials are under way at once, in however many slots; at least 2.
        synchronous: whether the population proceeds in generations; it needs *population_size*.
        time_attr: the key of the time in the reports, which never goes down within an attempt.
    """

    kind = "pbt"

    def __init__(
        self,
        perturbation_interval: float,
        hyperparam_mutations: Mapping[str, object] | None = None,
        *,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        explore: Explore | None = None,
        grace_period: float = 0,
        seed: int = 0,
        population_size: int | None = None,
        synchronous: bool = False,
        time_attr: str = ITERATION,
    ) -> None:
        super().__init__(time_attr)
        self._perturbation_interval = positive(self._name, "perturbation_interval", perturbation_interval)
        self._grace_period = number(self._name, "grace_period", grace_period, least=0)
        self._milestones = Milestones(self._perturbation_interval, self._grace_period)
        self._quantile_fraction = number(self._name, "quantile_fraction", quantile_fraction)
        if not 0 < self._quantile_fraction <= _LARGEST_QUANTILE:
            raise ConfigurationError(f"PBT: quantile_fraction={quantile_fraction!r} must be above 0 and at most 0.5")
        self._seed = whole_number(self._name, "seed", seed)
        self._synchronous = flag(self._name, "synchronous", synchronous)
        self._size = (
            None if population_size is None else whole_number(self._name, "population_size", population_size, 2)
        )
        self._exploration = Exploration(
            hyperparam_mutations,
            resample_probability=resample_probability,
            factors=perturbation_factors,
            explore=explore,
        )
        self._enrolled = 0
        self._pace = self._made_pace()

    def _made_pace(self) -> Pace:
        if self._synchronous and self._size is None:
            raise ConfigurationError(
                "PBT: synchronous=True needs population_size=…: how many trials wait for each other"
            )
        return (Generations if self._synchronous else Turns)(
            self._progress,
            self._milestones,
            exact(self._quantile_fraction),
            self._exploration,
            self._seed,
            self._size,
            self._time_attr,
        )

    def check_space(self, space: Space) -> None:
        """Refuse a space that lacks what may change.

        Raises:
            ConfigurationError: it does; the message says what there is.
        """
        self._exploration.check_space(space)

    def on_stage(self, trial: Trial) -> None:
        """Let a new trial, or one that has copied another, run to its next milestone."""
        member = self._staged(trial)
        if member is None:
            return
        self._pace.staged(member)
        member.copy = None

    def on_trial_pause(self, trial: Trial) -> None:
        """Queue *trial* to be resumed, unless a user has paused it."""
        member = self._progress.get(trial.id)
        if member is not None:
            self._pace.paused(member, by_hand=member.decision is CONTINUE)

    def choose(self, *, can_start: bool) -> Choice:
        return self._pace.choose(can_start=can_start)

    def on_abandon(self, trial: Trial) -> None:
        """Remove *trial* from the population; a trial that was to copy it continues as it is."""
        self.on_trial_end(trial)

    def on_trial_end(self, trial: Trial) -> None:
        """Remove *trial* from the population."""
        member = self._progress.pop(trial.id, None)
        if member is not None:
            self._pace.ended(member)

    def describe(self) -> Description:
        return {
            self.role: self.kind,
            "perturbation_interval": self._perturbation_interval,
            "quantile_fraction": self._quantile_fraction,
            "grace_period": self._grace_period,
            "seed": self._seed,
            "population_size": self._size,
            "synchronous": self._synchronous,
            "time_attr": self._time_attr,
            **self._exploration.describe(),
        }

    @classmethod
    def from_arguments(cls, arguments: Description) -> Self:
        if arguments["explore"] is not None:
            raise ConfigurationError(f"the scheduler 'pbt' explores with a function of yours, {arguments['explore']}")
        mutations = {path: domain_of(domain) for path, domain in arguments["hyperparam_mutations"].items()}
        return cls(**arguments | {"hyperparam_mutations": nested(mutations, SEPARATOR)})

    def _enrol(self, trial: Trial) -> Member:
        member = Member(trial, self._enrolled, self._milestones.lowest)
        self._enrolled += 1
        self._pace.enrolled(member)
        return member

    def _reach(self, trial: Trial, report: Report, progress: Member) -> Decision:
        if progress.decision is not CONTINUE:
            return progress.decision
        if progress.is_new:
            progress.is_new = False
            progress.next_level = self._milestones.after(progress.time)
            return CONTINUE
        rank = self._rank_of(report, progress.order)
        return CONTINUE if rank is None else self._pace.reached(progress, rank, report)
