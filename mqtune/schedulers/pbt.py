"""Population-based training: bad trials continue from good trials' checkpoints and configs.

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
from mqtune.schedulers.population import Generations, Member, PopulationPace, Turns
from mqtune.schedulers.timed import Milestones, TimedScheduler, exact
from mqtune.search.domains import domain_of
from mqtune.search.space import SEPARATOR, Space

_LARGEST_QUANTILE: Final = 0.5


class PBT(TimedScheduler[Member]):
    """Population-based training: a bad trial continues from a good one, with a similar config.

    **Milestones.** A milestone is a time at which trials are judged. The milestones are the multiples of
    *perturbation_interval* that are at least *grace_period*. Arithmetic is exact. A trial reaches a milestone with its
    first report at or after that time. A report that skips several milestones reaches all of them.

    **The rule.** The population is all unfinished trials that have reached a milestone. A trial's score is the metric
    at its last milestone. When a trial reaches a milestone, let n be the size of the population, with this trial, and q
    be ``floor(n * quantile_fraction)``, but at least 1 and at most half of n. If the trial is among the worst q, a
    *source* is drawn from those of the best q that may be copied, each equally likely. If there is no such source, the
    trial continues. Otherwise it is *replaced*: it is paused, and resumed from the source's newest checkpoint at that
    time, with a variation of the source's config. Trials end only by themselves or by a stop rule.

    - *A replaced trial* keeps its last score in the population until its next milestone. So no more trials are replaced
      than *quantile_fraction* says, however noisy scores are. Its next milestone is the first one after the time of the
      checkpoint. If that time is unknown, it is the first one after the trial's next report.
    - *Sources*: a trial may be copied if it has a checkpoint, has not been replaced since it scored, and began before
      the copying trial had reached its first milestone. If more than 32 trials are the best, 32 random ones of them are
      checked.

    **Turns.** By default there are as many trials as slots, and another trial begins when one ends. With
    *population_size*, that many trials share fewer slots in turns. A trial is paused at a milestone if another trial
    has not begun, is paused or is queued. A free slot goes to a new trial until the population is full, and then to the
    paused trial with the lowest time. A replaced trial counts with its source's time. The first *population_size*
    trials may all copy each other. If each trial has a slot, leave *population_size* out, so that no trial is paused
    without need.

    **Generations.** With *synchronous*, every trial is paused at the milestone of its generation. When all
    *population_size* trials have reached it or have ended, the rule is applied to all of them together. They continue
    to the first milestone after the furthest of them, and the copying trials get slots first. So decisions don't depend
    on the number of slots or the speed of trials, but slots are idle while the last trials run. If no new trial can
    start, a population that is not full continues as it is. When a population was once full, later trials form the next
    population, even if some of its trials have ended.

    **Exploring.** With *resample_probability*, a value is sampled from its domain. Otherwise a number is multiplied by
    one of *perturbation_factors* and kept within its domain, and a value from a list is replaced by a neighbour in the
    list. ``sample_from`` values stay, unless *explore* changes them. If the space's constraint refuses 100 variations,
    the copy has its source's config.

    - *Ties*: the trial that was queued earlier is better.
    - *NaN* is worse than every number. Of several NaN, the trial queued earlier is better. Infinities are numbers.
    - *Outcome constraints*: as in ``ASHA``. A trial whose score violates one is not copied.
    - *A report without the metric*, or with None, reaches no milestone. The next report with the metric does.
    - *A late or repeated report* changes nothing, and the trial's last decision is returned.
    - *A trial that fails, ends or is abandoned* leaves the population. A retried trial keeps its score, and runs to its
      next milestone. Milestones that it had reached before don't count again.
    - *A trial that begins later*, in place of an ended one, may copy older trials but is not copied by them.
    - *The source's checkpoint* is kept from the decision until the copy begins.
    - *By hand*: a trial that a person pauses leaves the population, and its generation, until it runs and reaches a
      milestone. If a person resumes a trial that waits to copy another one, it does not copy. If a person resumes a
      trial that waits for its generation, it must reach the milestone again.

    The same reports in the same order give the same configs: draws depend on *seed*, the trial, the attempt and the
    report. The journal has all copies: ``policy_of`` reads them, and ``PBTReplay`` repeats them.

    **Cost.** A report before a milestone costs two dict look-ups. At a milestone it costs O(log n) comparisons, and for
    one of the worst trials up to 32 checks. The end of a generation costs a sort.

    Args:
        perturbation_interval: the time between milestones.
        hyperparam_mutations: the values that may change: domains, or lists of values, by the names in the search space.
            Names are nested as in the space.
        quantile_fraction: the share of the population that copies, and the share that is copied. Above 0, at most 0.5.
        resample_probability: probability of sampling each value, from 0 to 1.
        perturbation_factors: factors for numbers, each equally likely.
        explore: a function that gets each varied config and returns the final one.
        grace_period: the time before which no trial copies.
        seed: the same seed gives the same decisions.
        population_size: number of trials that share the slots, at least 2. By default as many as there are slots.
        synchronous: whether the population proceeds in generations. This needs *population_size*.
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
        self._pace = self._make_pace()

    def _make_pace(self) -> PopulationPace:
        if self._synchronous and self._size is None:
            raise ConfigurationError(
                "PBT: synchronous=True needs population_size=…, the number of trials that wait for each other"
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
        """Check that the space has all names in *hyperparam_mutations*."""
        self._exploration.check_space(space)

    def on_queue(self, trial: Trial) -> None:
        member = self._queued(trial)
        if member is None:
            return
        self._pace.queued(member)
        member.copy = None

    def on_trial_pause(self, trial: Trial) -> None:
        """Let *trial* wait to be resumed, unless a person has paused it."""
        member = self._progress.get(trial.id)
        if member is not None:
            self._pace.paused(member, by_hand=member.decision is CONTINUE)

    def choose(self, *, can_start: bool) -> Choice:
        return self._pace.choose(can_start=can_start)

    def on_abandon(self, trial: Trial) -> None:
        """Remove *trial* from the population. Trials that wait to copy it continue without a copy."""
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
