"""Population-based training: bad trials continue from good trials' checkpoints.

They get similar configs. After Jaderberg et al., "Population Based Training of Neural Networks", 2017
(arXiv:1711.09846), Algorithm 1, with truncation selection (section 4.1.1).
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
from mqtune.schedulers.population import Generations, Member, PopulationPace, Turns
from mqtune.schedulers.timed import Milestones, TimedScheduler, exact
from mqtune.search.domains import domain_of
from mqtune.search.space import SEPARATOR, Space

_LARGEST_QUANTILE: Final = 0.5


class PBT(TimedScheduler[Member]):
    """Population-based training: a bad trial continues from a good one, with a similar config.

    **Milestones.** They are the multiples of *perturbation_interval* from *grace_period* on, in exact arithmetic. A
    trial reaches a milestone with the first report whose time has reached it. A report that skips several reaches all
    of them.

    **The rule.** The population is all unfinished trials that have reached a milestone, each with the metric at its
    last one. When a trial reaches a milestone, q is ``floor(n * quantile_fraction)`` of the n in the population, itself
    included, but at least 1 and at most half of n. If it is among the worst q, a source is drawn from the best q that
    may be copied, each equally likely. Without a source it runs on. Otherwise it is replaced: paused, and resumed from
    the source's newest checkpoint at that time, with a config explored from the source's. A trial ends by itself or by
    a stop rule.

    - *A replaced trial* keeps its last score in the population until its next milestone. So no more trials are replaced
      than *quantile_fraction* says, however noisy scores are. That milestone is the first after the time of the
      checkpoint, or without a time after the trial's first report.
    - *Sources*: a trial may be copied if it has a checkpoint, was not replaced since it scored, and began before the
      copying trial had reached its first milestone. Of more than 32 best, 32 random ones are checked.

    **Turns.** By default the population is as large as there are slots, and further trials begin when others end. With
    *population_size*, that many trials share fewer slots in turns. A trial is paused at a milestone if another has not
    begun, is paused or is queued. A free slot goes to a new trial until the population is full, then to the trial with
    the least time. A replaced trial counts with its source's time. The first *population_size* trials may all copy each
    other. If each trial has a slot, leave *population_size* out, so that no trial pauses for nothing.

    **Generations.** With *synchronous* every trial is paused at the milestone of its generation. When all
    *population_size* have reached it, or have ended, the rule is applied to all of them together. They continue to the
    first milestone after the furthest of them, copying trials first. So decisions don't depend on the number of slots
    or the speed of trials, but slots are free while the last ones run. A population that is not full when no new trial
    can start continues as it is. Trials that begin when it is full, because some have ended, form the next population.

    **Exploring.** Each value that may change is, with *resample_probability*, sampled from its domain. Otherwise a
    number is multiplied by one of *perturbation_factors* and kept within its domain, and a listed value becomes a
    neighbour. ``sample_from`` values stay, unless *explore* changes them. If the space's constraint refuses 100
    explored configs, the copy has its source's config.

    - *Ties*: the trial that was queued earlier is better.
    - *NaN* is worse than every number; of several, the one queued earlier is better. Infinities are numbers.
    - *Outcome constraints*: as in ``ASHA``. A trial whose score violates one is not copied.
    - *A report without the metric*, or with None, reaches no milestone; the next one with it does.
    - *A late or repeated report* changes nothing, and the trial's last decision is returned.
    - *A trial that fails, ends or is abandoned* leaves the population. A retried trial keeps its score, and continues
      to its next milestone. Times that it has passed are ignored.
    - *A trial that begins later*, in place of an ended one, copies older ones but is not copied by them.
    - *The source's checkpoint* is kept from the decision until the copy begins.
    - *By hand*: a trial that a person pauses leaves the population, and its generation, until it runs and reaches a
      milestone. A trial that a person resumes while it waits to copy another does not copy it. One that waits for its
      generation scores again.

    The same reports in the same order give the same configs: draws depend on *seed*, the trial, the attempt and the
    report. The journal has all copies: ``policy_of`` reads them, ``PBTReplay`` repeats them.

    **Cost.** A report before a milestone costs two look-ups. At a milestone it costs O(log n) comparisons in the
    population of n, and among the worst up to 32 checks. The end of a generation costs a sort.

    Args:
        perturbation_interval: the time between milestones.
        hyperparam_mutations: domains of ``mqtune``, or lists of values, by the names in the search space, nested as
            there.
        quantile_fraction: the share of the population that copies, and that is copied. Above 0, at most 0.5.
        resample_probability: the probability of sampling each value, from 0 to 1.
        perturbation_factors: factors for numbers, each equally likely.
        explore: a function that receives each explored config and returns the final one.
        grace_period: no trial copies earlier.
        seed: the same seed gives the same decisions.
        population_size: the number of trials that share the slots, at least 2.
        synchronous: whether the population proceeds in generations. It needs *population_size*.
        time_attr: the reports' key of the time. Its value must never decrease within an attempt.
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

    def _made_pace(self) -> PopulationPace:
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
        """Check that the space has all values that may change.

        Raises:
            ConfigurationError: it lacks one. The message lists its values.
        """
        self._exploration.check_space(space)

    def on_queue(self, trial: Trial) -> None:
        member = self._queued(trial)
        if member is None:
            return
        self._pace.queued(member)
        member.copy = None

    def on_trial_pause(self, trial: Trial) -> None:
        """Queue *trial* to be resumed, unless a user has paused it."""
        member = self._progress.get(trial.id)
        if member is not None:
            self._pace.paused(member, by_hand=member.decision is CONTINUE)

    def choose(self, *, can_start: bool) -> Choice:
        return self._pace.choose(can_start=can_start)

    def on_abandon(self, trial: Trial) -> None:
        """Remove *trial* from the population. A trial that was to copy it continues as it is."""
        self.on_trial_end(trial)

    def on_trial_end(self, trial: Trial) -> None:
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
