"""Tries each config several times, and takes the mean as its score."""

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

#: Largest number of repetitions of a config.
_MOST_VALUES: Final = 1000
#: The key of the other searcher in a description.
OTHER: Final = "of"
#: Largest number of requests for a config with a repetition that is not abandoned.
_SUGGESTIONS: Final = 25
#: The status that the other searcher gets for a config without a completed repetition: the first one of these that a
#: repetition has.
_STATUSES: Final = (TrialStatus.EARLY_STOPPED, TrialStatus.FAILED, TrialStatus.ABANDONED)


@dataclass(slots=True, eq=False)
class _Repetitions:
    """All repetitions of one config of the other searcher."""

    config: Config
    #: Configs of repetitions that were not suggested yet.
    left: deque[Config]
    #: Number of unfinished repetitions.
    missing: int
    #: The trial that stands for all repetitions in the other searcher. None until the first one is queued.
    trial: Trial | None = None
    #: The last values of completed repetitions.
    scores: list[float] = field(default_factory=list)
    #: The statuses of ended repetitions.
    statuses: set[TrialStatus] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Repetition:
    """One repetition, which becomes a trial."""

    fingerprint: str
    group: _Repetitions
    #: The last value of the metric.
    last: float | None = None


class Repeater(Searcher):
    """Tries each config of another searcher with every value of one entry, such as a seed.

    The other searcher learns only the mean of the values. With ``"seed": mqtune.choice([1, 2, 3])`` in the space and
    ``Repeater("seed", "tpe")``, each config of TPE gives three trials (repetitions), one after the other as slots are
    free. When all three have ended, TPE gets one trial with the mean of their values. In the other searcher's space,
    the entry is a constant: its first value.

    - *The score* of a repetition is its last value. Only completed repetitions count for the mean. If no repetition has
      completed, the other searcher gets a trial without a value: EARLY_STOPPED if any repetition was, else FAILED if
      any has, else ABANDONED.
    - *NaN* as the last value of a repetition makes the mean NaN.
    - *Until all repetitions have ended*, the config is pending for the other searcher. It gets no reports, pauses or
      lost attempts.
    - *A scheduler* that stops or pauses trials is refused. Stop rules (``stop=``) may end trials.
    - *A trial that a user adds* is not repeated. The other searcher gets it as a separate config. The same is true for
      the points if this searcher is inside ``InitialPoints``. If ``InitialPoints`` is the other searcher, its points
      are repeated.
    - *A repetition that a person continues with another config* no longer counts.
    - *Several metrics* are refused, and so are outcome constraints if the other searcher learns.
    - *An abandoned* repetition is not suggested again, nor is a config whose repetitions are all abandoned.

    ``max_trials`` counts repetitions. If it is reached in the middle of a config, the other searcher never gets that
    config's score. A resumed driver continues in the middle of a config. ``Results.repeated()`` has the means. After
    Ray Tune's ``Repeater``, which adds a key to configs.

    Args:
        over: the path of the entry, such as ``seed`` or ``data/fold``. It is a ``choice``, ``grid_search``, ``randint``
            or another domain of at most 1,000 values, outside of lists and other choices.
        searcher: the other searcher, or its name, such as "tpe". The default is a RandomSearcher.

    Raises:
        ConfigurationError: *searcher* is not a searcher, or its library is not installed. ``suggest`` raises it if the
            other searcher, with a space of its own, suggests another value of the entry than the first.
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
        #: Configs with repetitions that were not suggested yet, oldest first.
        self._filling: deque[_Repetitions] = deque()
        #: Suggested repetitions whose trial is not queued yet, oldest first.
        self._asked: deque[_Repetition] = deque()
        #: The repetition of each trial. None if the trial now has another config.
        self._members: dict[TrialId, _Repetition | None] = {}
        #: Fingerprints of abandoned repetitions.
        self._abandoned: set[str] = set()
        #: Configs to avoid, until ``bind`` passes them on.
        self._avoided: list[Config] = []

    @property
    def count(self) -> int | None:
        """Number of trials of one pass over the grid. None if another searcher was given."""
        return None if self._given is not None else len(self._values) * self._rest.grid_size

    def check_space(self, space: Space) -> None:
        """Check that the space has the entry, and that the other searcher can use the rest."""
        self._set_space(space)
        if self._given is not None:
            self._given.check_space(self._rest)

    def check_objective(self, objective: Objective) -> None:
        """Check that the objective has one metric, without constraints that can't be learned."""
        super().check_objective(objective)
        if objective.constraints and self.adaptive:
            raise ConfigurationError(
                f"Repeater: {type(self._given).__name__} learns only the mean of {objective}, and nothing about the "
                "bound "
                f"{' and '.join(map(str, objective.constraints))}; leave that out of metric=, or give Repeater no model"
            )

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Bind the other searcher to the rest of the space."""
        self._set_space(space)
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
        return space.fixed(self._over, self._values_in(space)[0])

    def _values_in(self, space: Space) -> list[object]:
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

    def _set_space(self, space: Space) -> None:
        if self._used is None:
            self._values, self._rest, self._used = self._values_in(space), self.rest(space), space
            self._space = space
        elif self._used is not space:
            raise ConfigurationError("this Repeater is another experiment's; make another one")

    @property
    def can_learn(self) -> bool:
        return self._given is not None and self._given.can_learn

    def learn(self, trial: PastTrial) -> None:
        self._searcher.learn(trial._replace(config=self._with_first_value(trial.config)))

    def suggest(self, trial: TrialId) -> Suggestion:
        """Return the next repetition of the current config, or the first repetition of a new one."""
        count = 0
        while self._filling or count < _SUGGESTIONS:
            if not self._filling:
                count += 1
                config = self._searcher.suggest(trial)
                if config is None or config is WAIT:
                    return config
                self._begin_group(config)
            group = self._filling[0]
            suggestion = self._take_repetition(group)
            if fingerprint(suggestion) not in self._abandoned:
                self._asked.append(_Repetition(fingerprint(suggestion), group))
                return suggestion
            self._note_end(group, TrialStatus.ABANDONED)
        return None

    def _begin_group(self, config: Config) -> _Repetitions:
        if fingerprint(config) != fingerprint(self._with_first_value(config)):
            raise ConfigurationError(
                f"Repeater: {type(self._searcher).__name__} proposes {config!r}, from a space of its own; give it one "
                f"in which {self._over!r} is the constant {self._values[0]!r}, or none"
            )
        left = deque(self._with_value(config, value) for value in self._values)
        group = _Repetitions(config, left, len(left))
        self._filling.append(group)
        return group

    def _take_repetition(self, group: _Repetitions) -> Config:
        config = group.left.popleft()
        if not group.left:
            self._filling.remove(group)
        return config

    def replay(self, trial: TrialId, config: Config) -> Config | None:
        """Find the repetition that *config* is.

        If it begins a new config, let the other searcher replay.
        """
        wanted = fingerprint(config)
        suggested: Config | None = config
        group = next((group for group in self._filling if wanted in map(fingerprint, group.left)), None)
        if group is None:
            self._end_abandoned()
            base = self._with_first_value(config)
            suggestion = self._searcher.replay(trial, copy_value(base))
            group = self._begin_group(base)
            if wanted not in map(fingerprint, group.left):
                # A ``sample_from`` function now computes another value than it did then.
                group.left[0] = config
            if suggestion != base:
                suggested = suggestion
        # The earlier driver skipped repetitions that were abandoned.
        while fingerprint(self._take_repetition(group)) != wanted:
            self._note_end(group, TrialStatus.ABANDONED)
        self._asked.append(_Repetition(wanted, group))
        return suggested

    def _end_abandoned(self) -> None:
        for group in list(self._filling):
            while group.left and fingerprint(group.left[0]) in self._abandoned:
                self._take_repetition(group)
                self._note_end(group, TrialStatus.ABANDONED)

    def _with_first_value(self, config: Config) -> Config:
        return self._with_value(config, self._values[0])

    def _with_value(self, config: Config, value: object) -> Config:
        return self._space.with_value(config, self._over, value)

    def adopt(self, trial: TrialId, config: Config) -> None:
        base = self._with_first_value(config)
        self._searcher.adopt(trial, copy_value(base))
        self._members[trial] = _Repetition(fingerprint(config), _Repetitions(base, deque(), 1))

    def avoid(self, config: Config) -> None:
        if self._is_bound:
            self._searcher.avoid(self._with_first_value(config))
        else:
            self._avoided.append(config)

    def on_queue(self, trial: Trial) -> None:
        """Assign a suggested repetition to its trial.

        Notify the other searcher if it is a config's first one.
        """
        if trial.id not in self._members:
            self._members[trial.id] = self._take_asked(trial.config)
        member = self._members[trial.id]
        if member is None:
            return
        if fingerprint(trial.config) != member.fingerprint:
            self._members[trial.id] = None
            self._note_end(member.group, TrialStatus.EARLY_STOPPED)
        elif member.group.trial is None:
            config = member.group.config
            attempt = Attempt(1, trial.attempt.queued_at, copy_value(config))
            member.group.trial = Trial(trial.id, copy_value(config), TrialStatus.QUEUED, [attempt])
            self._searcher.on_queue(member.group.trial)

    def _take_asked(self, config: Config) -> _Repetition:
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
        """Note the end of a repetition. After the last one, notify the other searcher of the mean."""
        member = self._members.pop(trial.id, None)
        if member is None:
            return
        if trial.status is TrialStatus.COMPLETED and member.last is not None:
            member.group.scores.append(member.last)
        self._note_end(member.group, trial.status)

    def _note_end(self, group: _Repetitions, status: TrialStatus) -> None:
        group.statuses.add(status)
        group.missing -= 1
        if not group.missing and group.trial is not None:
            self._tell_mean(group.trial, group)

    def _tell_mean(self, trial: Trial, group: _Repetitions) -> None:
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
