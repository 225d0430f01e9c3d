"""Each config several times, with the mean as its score."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from mqtune.core.errors import ConfigurationError, SpaceError
from mqtune.core.objective import Objective
from mqtune.core.registry import Description, described
from mqtune.core.trial import ITERATION, Attempt, Config, Report, Trial, TrialId, TrialStatus, is_number
from mqtune.search.base import WAIT, PastTrial, Searcher, Suggestion, fingerprint, is_searcher_name, searcher_named
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space
from mqtune.search.values import copy_value

_MOST_VALUES: Final = 1000
OTHER: Final = "of"
#: Limit of requests for a config that is not abandoned in all repetitions.
_SUGGESTIONS: Final = 25
#: The other searcher's status of a config without a completed repetition: the first of these among its repetitions.
_STATUSES: Final = (TrialStatus.EARLY_STOPPED, TrialStatus.FAILED, TrialStatus.ABANDONED)


@dataclass(slots=True, eq=False)
class _Repetitions:
    config: Config
    #: Repetitions that were not suggested yet, and the number of unfinished ones.
    left: deque[Config]
    missing: int
    #: The trial that the other searcher sees, once the first repetition is queued.
    trial: Trial | None = None
    #: Last values of completed repetitions, and statuses of all ended ones.
    scores: list[float] = field(default_factory=list)
    statuses: set[TrialStatus] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Repetition:
    fingerprint: str
    group: _Repetitions
    last: float | None = None


class Repeater(Searcher):
    """Tries each config of another searcher with each value of one entry, such as a seed.

    The other searcher learns the mean. With ``"seed": mqtune.choice([1, 2, 3])`` in the space and ``Repeater("seed",
    "tpe")``, each config gives three trials, one after the other as slots are free. When all have ended, TPE learns one
    trial with the mean of their values. For that searcher, also when it calls the constraint, the entry is a constant:
    its first value.

    - *The score* of a repetition is its last value. Only completed ones count for the mean. If none has completed, the
      other searcher sees an end without a value: early stopped if any repetition was, else failed if any has, else
      abandoned.
    - *NaN* as the last value of a repetition makes the mean NaN.
    - *Until all have ended* the config is pending for the other searcher, without reports, pauses or lost attempts.
    - *A scheduler* that stops or pauses trials is refused. Rules (``stop=``) may end trials.
    - *A trial that a user adds* is not repeated, and is a config of its own for the other searcher. So are points of a
      ``InitialPoints`` around this searcher. Points of a ``InitialPoints`` within it are repeated.
    - *A repetition that a person continues with another config* no longer counts.
    - *Several metrics* are refused, and outcome constraints if the other searcher learns.
    - *An abandoned* repetition is not suggested again. Neither is a config whose repetitions are all abandoned.

    ``max_trials`` counts repetitions. If it ends within a config, the other searcher never learns its score. A resumed
    driver continues within the config. ``Results.repeated()`` has the means. After Ray Tune's ``Repeater``, which adds
    a key to configs.

    Args:
        over: the path of the entry, such as ``seed`` or ``data/fold``: a ``choice``, ``grid_search``, ``randint``, … of
            at most 1,000 values, outside of lists and of other choices.
        searcher: the other searcher, or its name, such as "tpe". The default is a RandomSearcher.

    Raises:
        ConfigurationError: *searcher* is not a searcher, or its library is not installed. Also raised by a suggestion
            in which the entry is not that constant, from a space of that searcher's own.
        SpaceError: the space has no such entry.
    """

    kind = "repeater"
    wants_whole_trials = True

    def __init__(self, over: str, searcher: Searcher | str | None = None) -> None:
        if not isinstance(over, str) or not over:
            raise ConfigurationError(f"Repeater: over={over!r} is not the name of an entry of the space")
        if isinstance(searcher, str) and is_searcher_name(searcher):
            searcher = searcher_named(searcher)
        if searcher is not None and not isinstance(searcher, Searcher):
            raise ConfigurationError(f"Repeater: searcher={searcher!r} is not a searcher")
        self._over = over
        self._given = searcher
        self.adaptive = searcher is not None and searcher.adaptive
        self.is_slow = searcher is not None and searcher.is_slow
        self._used: Space | None = None
        self._is_bound = False
        #: Groups with repetitions to suggest, and suggestions whose trial is not queued yet, oldest first.
        self._filling: deque[_Repetitions] = deque()
        self._asked: deque[_Repetition] = deque()
        #: By trial. None for a trial with another config.
        self._members: dict[TrialId, _Repetition | None] = {}
        self._abandoned: set[str] = set()
        self._avoided: list[Config] = []

    @property
    def count(self) -> int | None:
        """The number of trials of one pass over the grid, or None if a searcher was given."""
        return None if self._given is not None else len(self._values) * self._rest.grid_size

    def check_space(self, space: Space) -> None:
        """Check that the space has the entry, and check the rest with the other searcher.

        Raises:
            SpaceError: the space lacks the entry, or its values can't be counted.
        """
        self._use(space)
        if self._given is not None:
            self._given.check_space(self._rest)

    def check_objective(self, objective: Objective) -> None:
        """Check the objective.

        Raises:
            ConfigurationError: there are outcome constraints, and the other searcher learns.
        """
        super().check_objective(objective)
        if objective.constraints and self.adaptive:
            raise ConfigurationError(
                f"Repeater: {type(self._given).__name__} learns of the mean of {objective}, and of nothing that is to keep to "
                f"{' and '.join(map(str, objective.constraints))}; leave that out of metric=, or give Repeater no model"
            )

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Bind the other searcher to the rest of the space.

        Raises:
            ConfigurationError: this searcher belongs to another experiment.
        """
        self._use(space)
        if not self._is_bound:
            self._is_bound, self._metric = True, metric
            self._searcher = self._given if self._given is not None else RandomSearcher(self._rest, seed)
        self._searcher.bind(self._rest, seed, metric=metric, mode=mode)
        while self._avoided:
            self.avoid(self._avoided.pop())

    def rest(self, space: Space) -> Space:
        """Return the other searcher's space, in which the entry is a constant.

        Raises:
            SpaceError: there is no such entry, or its values can't be counted.
        """
        return space.fixed(self._over, self._counted(space)[0])

    def _counted(self, space: Space) -> list[object]:
        domain = space.domains.get(self._over)
        if domain is None:
            raise SpaceError(
                f"Repeater: the space has no {self._over!r} to choose; add {self._over!r}: mqtune.choice([1, 2, 3])"
            )
        if domain.size is None or domain.size > _MOST_VALUES:
            raise SpaceError(
                f"Repeater: {self._over!r} is {domain}, and each config is tried with each of its values; "
                f"give at most {_MOST_VALUES:,}, such as mqtune.choice([1, 2, 3])"
            )
        return list(domain.values())

    def _use(self, space: Space) -> None:
        if self._used is None:
            self._values, self._rest, self._used = self._counted(space), self.rest(space), space
            self._space = space
        elif self._used is not space:
            raise ConfigurationError("this Repeater is another experiment's; make another one")

    @property
    def can_learn(self) -> bool:
        return self._given is not None and self._given.can_learn

    def learn(self, trial: PastTrial) -> None:
        self._searcher.learn(trial._replace(config=self._base(trial.config)))

    def suggest(self, trial: TrialId) -> Suggestion:
        """Return the current config's next repetition, or the first one of a new config."""
        count = 0
        while self._filling or count < _SUGGESTIONS:
            if not self._filling:
                count += 1
                config = self._searcher.suggest(trial)
                if config is None or config is WAIT:
                    return config
                self._begin(config)
            group = self._filling[0]
            suggestion = self._take(group)
            if fingerprint(suggestion) not in self._abandoned:
                self._asked.append(_Repetition(fingerprint(suggestion), group))
                return suggestion
            self._end(group, TrialStatus.ABANDONED)
        return None

    def _begin(self, config: Config) -> _Repetitions:
        if fingerprint(config) != fingerprint(self._base(config)):
            raise ConfigurationError(
                f"Repeater: {type(self._searcher).__name__} proposes {config!r}, from a space of its own; give it one in which "
                f"{self._over!r} is the constant {self._values[0]!r}, or none"
            )
        left = deque(self._with(config, value) for value in self._values)
        group = _Repetitions(config, left, len(left))
        self._filling.append(group)
        return group

    def _take(self, group: _Repetitions) -> Config:
        config = group.left.popleft()
        if not group.left:
            self._filling.remove(group)
        return config

    def replay(self, trial: TrialId, config: Config) -> Config | None:
        """Match *config* with a repetition of the current config, or have the other searcher replay."""
        wanted = fingerprint(config)
        suggested: Config | None = config
        group = next((group for group in self._filling if wanted in map(fingerprint, group.left)), None)
        if group is None:
            self._end_abandoned()
            base = self._base(config)
            suggestion = self._searcher.replay(trial, copy_value(base))
            group = self._begin(base)
            if wanted not in map(fingerprint, group.left):
                # A function of the space computes another value than before.
                group.left[0] = config
            if suggestion != base:
                suggested = suggestion
        # Skipped repetitions had been abandoned.
        while fingerprint(self._take(group)) != wanted:
            self._end(group, TrialStatus.ABANDONED)
        self._asked.append(_Repetition(wanted, group))
        return suggested

    def _end_abandoned(self) -> None:
        for group in list(self._filling):
            while group.left and fingerprint(group.left[0]) in self._abandoned:
                self._take(group)
                self._end(group, TrialStatus.ABANDONED)

    def _base(self, config: Config) -> Config:
        return self._with(config, self._values[0])

    def _with(self, config: Config, value: object) -> Config:
        return self._space.with_value(config, self._over, value)

    def adopt(self, trial: TrialId, config: Config) -> None:
        base = self._base(config)
        self._searcher.adopt(trial, copy_value(base))
        self._members[trial] = _Repetition(fingerprint(config), _Repetitions(base, deque(), 1))

    def avoid(self, config: Config) -> None:
        if self._is_bound:
            self._searcher.avoid(self._base(config))
        else:
            self._avoided.append(config)

    def on_queue(self, trial: Trial) -> None:
        """Assign a suggestion to its trial. Notify the other searcher of a config's first one."""
        if trial.id not in self._members:
            self._members[trial.id] = self._suggested(trial.config)
        member = self._members[trial.id]
        if member is None:
            return
        if fingerprint(trial.config) != member.fingerprint:
            self._members[trial.id] = None
            self._end(member.group, TrialStatus.EARLY_STOPPED)
        elif member.group.trial is None:
            config = member.group.config
            attempt = Attempt(1, trial.attempt.queued_at, copy_value(config))
            member.group.trial = Trial(trial.id, copy_value(config), TrialStatus.QUEUED, [attempt])
            self._searcher.on_queue(member.group.trial)

    def _suggested(self, config: Config) -> _Repetition:
        member = next(asked for asked in self._asked if asked.fingerprint == fingerprint(config))
        self._asked.remove(member)
        return member

    def on_report(self, trial: Trial, report: Report) -> None:
        member, value = self._members.get(trial.id), report.metrics.get(self._metric)
        if member is not None and is_number(value):
            member.last = value

    def on_abandon(self, trial: Trial) -> None:
        self._abandoned.add(fingerprint(trial.config))

    def on_trial_end(self, trial: Trial) -> None:
        """Notify the other searcher of the mean after the last repetition."""
        member = self._members.pop(trial.id, None)
        if member is None:
            return
        if trial.status is TrialStatus.COMPLETED and member.last is not None:
            member.group.scores.append(member.last)
        self._end(member.group, trial.status)

    def _end(self, group: _Repetitions, status: TrialStatus) -> None:
        group.statuses.add(status)
        group.missing -= 1
        if not group.missing and group.trial is not None:
            self._tell(group.trial, group)

    def _tell(self, trial: Trial, group: _Repetitions) -> None:
        if group.scores:
            trial.status, trial.reports = TrialStatus.COMPLETED, 1
            mean = sum(group.scores) / len(group.scores)
            trial.last_metrics = {ITERATION: 1, self._metric: mean}
            self._searcher.on_report(trial, Report(trial.id, 1, 1, 0.0, trial.last_metrics))
        else:
            trial.status = next((status for status in _STATUSES if status in group.statuses), TrialStatus.COMPLETED)
        if trial.status is TrialStatus.ABANDONED:
            self._searcher.on_abandon(trial)
        self._searcher.on_trial_end(trial)

    def describe(self) -> Description:
        of = {} if self._given is None else {OTHER: described(self._given)}
        return {self.role: self.kind, "over": self._over, **of}
