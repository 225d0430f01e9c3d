"""The interface of searchers, which propose configs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

from mqtune.core.checks import whole_number
from mqtune.core.entry_points import SEARCHERS as SEARCHER_POINTS, names_in
from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import GoesByObjective
from mqtune.core.registry import Registered
from mqtune.core.trial import Config, Report, Trial, TrialId, TrialStatus
from mqtune.search.space import Space


class Later(Enum):
    """A suggestion that is not ready yet."""

    WAIT = "wait"


#: Returned while a config is being computed: ask again.
WAIT: Final = Later.WAIT
#: A config, ``WAIT``, or None if there are no more.
Suggestion = Config | Literal[Later.WAIT] | None


class PastTrial(NamedTuple):
    """A past trial, COMPLETED or EARLY_STOPPED, for a searcher to learn from.

    ``value`` is the metric's last value, NaN if it diverged, and ``step`` its ``training_iteration``.
    """

    config: Config
    value: float
    step: int = 1
    status: TrialStatus = TrialStatus.COMPLETED


class Searcher(Registered, GoesByObjective, ABC):
    """Proposes configs, and is notified of their trials.

    For each new trial, the driver calls either ``suggest`` or ``adopt``, then ``on_queue``. Reports and ends follow in
    the journal's order, each once. A searcher must not change a trial that it receives.

    A resumed driver repeats these calls, with ``replay`` in place of ``suggest``. Searchers that are slow or not
    deterministic override ``replay``.
    """

    role = "searcher"
    instead_of_several = 'give searcher="tpe" or "random"'
    group = SEARCHER_POINTS
    #: Whether suggestions depend on reports. If not, the driver may request configs before a slot is free.
    adaptive: bool = False
    #: Whether a suggestion may take longer than a millisecond. If so, the searcher runs in a thread, and configs are
    #: prefetched.
    is_slow: bool = False
    #: Whether each trial must run to its own end. Schedulers that stop or pause trials are then refused.
    wants_whole_trials: bool = False

    def check_space(self, space: Space) -> None:
        """Check the searcher's arguments against the space, when a tuner is made.

        Raises:
            ConfigurationError: they don't fit the space.
        """

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Set the space and the seed. Called before the first suggestion, possibly more than once.

        *metric* is the first of several, as :meth:`check_objective` receives all. A searcher with a space of its own
        ignores the call.
        """

    @property
    def can_learn(self) -> bool:
        """Whether the searcher overrides ``learn``."""
        return type(self).learn is not Searcher.learn

    def learn(self, trial: PastTrial) -> None:
        """Learn from a trial of another experiment.

        Called between ``bind`` and the first suggestion, also by a resumed driver. Its config is in the space.
        """

    @abstractmethod
    def suggest(self, trial: TrialId) -> Suggestion:
        """Return a new config, which the caller may change, or None if there are no more.

        Args:
            trial: the expected id. A trial that a user adds meanwhile may get it instead, so rely on ``on_queue``.
        """

    def replay(self, trial: TrialId, config: Config) -> Config | None:
        """Restore the state after suggesting *config* for *trial*, and return a suggestion of now.

        If the two differ, the journal's config counts. A searcher that can't, or shouldn't, suggest again adopts
        *config* and returns it.
        """
        suggested = self.suggest(trial)
        if suggested is None or suggested is WAIT or fingerprint(suggested) != fingerprint(config):
            self.adopt(trial, config)
        return suggested if suggested is not WAIT else None

    def adopt(self, trial: TrialId, config: Config) -> None:
        """Learn that *trial* tries a complete config that a user or a scheduler has chosen."""
        self.avoid(config)

    def avoid(self, config: Config) -> None:
        """Learn that the complete *config* need not be suggested, as it is tried anyway."""

    def on_queue(self, trial: Trial) -> None:
        """Learn that an attempt of *trial* waits for a slot. A later one may have another config."""

    def on_report(self, trial: Trial, report: Report) -> None:
        """Learn of a report."""

    def on_trial_pause(self, trial: Trial) -> None:
        """Learn that *trial* is paused. It may never be resumed."""

    def on_attempt_end(self, trial: Trial) -> None:
        """Learn that an attempt failed or was lost, and that *trial* will run again."""

    def on_abandon(self, trial: Trial) -> None:
        """Learn that *trial* was abandoned. Called once, before ``on_trial_end``.

        Its reports don't count, and its config must not be suggested again.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Learn that *trial* has reached a terminal status."""


class Telling(Searcher):
    """A searcher that forwards its notifications to ``_searcher``."""

    _searcher: Searcher

    def on_queue(self, trial: Trial) -> None:
        self._searcher.on_queue(trial)

    def on_report(self, trial: Trial, report: Report) -> None:
        self._searcher.on_report(trial, report)

    def on_trial_pause(self, trial: Trial) -> None:
        self._searcher.on_trial_pause(trial)

    def on_attempt_end(self, trial: Trial) -> None:
        self._searcher.on_attempt_end(trial)

    def on_abandon(self, trial: Trial) -> None:
        self._searcher.on_abandon(trial)

    def on_trial_end(self, trial: Trial) -> None:
        self._searcher.on_trial_end(trial)


def check_arguments(searcher: str, space: Space, seed: int) -> None:
    """Check the arguments that searchers over a space share.

    Raises:
        ConfigurationError: *space* is not a Space, or *seed* is not an integer.
    """
    if not isinstance(space, Space):
        raise ConfigurationError(f"{searcher}: space={space!r} is not a Space; write Space({{…}})")
    whole_number(searcher, "seed", seed)


def fingerprint(value: Any) -> str:
    """Return a text that is the same for two configs if, and only if, they are equal."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{fingerprint(value[key])}" for key in sorted(value)) + "}"
    return repr(value)


TPE: Final = "optuna"
#: mqtune's own searchers by name. None stands for random search, an experiment's default.
_NAMED: Final = {"random": None, "tpe": TPE}


def searcher_names() -> list[str]:
    """Return the names of mqtune's own searchers and those of entry points."""
    return [*_NAMED, *(name for name in names_in(SEARCHER_POINTS) if name != TPE)]


def is_searcher_name(value: object) -> bool:
    """Return whether *value* is one of ``searcher_names``."""
    return isinstance(value, str) and (value in _NAMED or value in searcher_names())


def searcher_named(name: str) -> Searcher | None:
    """Return the searcher of this name with default arguments, or None for random search.

    Raises:
        ConfigurationError: its library is not installed.
    """
    kind = _NAMED.get(name, name)
    return None if kind is None else Searcher.rebuild({Searcher.role: kind})
