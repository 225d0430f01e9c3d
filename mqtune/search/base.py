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
    """The type of ``WAIT``, which stands for a config that is not ready yet."""

    WAIT = "wait"


#: ``suggest`` returns this while it works out a config. The driver then asks again later.
WAIT: Final = Later.WAIT
#: A config, ``WAIT``, or None if the searcher has no more configs.
Suggestion = Config | Literal[Later.WAIT] | None


class PastTrial(NamedTuple):
    """A trial of another experiment, for a searcher to learn from."""

    config: Config
    #: The last value of the metric. NaN if it diverged.
    value: float
    #: The ``training_iteration`` of that value.
    step: int = 1
    #: COMPLETED or EARLY_STOPPED.
    status: TrialStatus = TrialStatus.COMPLETED


class Searcher(Registered, GoesByObjective, ABC):
    """Proposes configs, and is notified of their trials.

    For each new trial the driver calls ``suggest``, or ``adopt`` if a user has chosen the config, and then
    ``on_queue``. Calls for reports and ends follow, each once, in the journal's order. A searcher must not change a
    trial that it gets.

    A resumed driver repeats all calls, but calls ``replay`` instead of ``suggest``. Searchers that are slow or not
    deterministic override ``replay``.
    """

    role = "searcher"
    instead_of_several = 'give searcher="tpe" or "random"'
    group = SEARCHER_POINTS
    #: Whether suggestions depend on reports. If not, the driver may request a config before a slot is free.
    adaptive: bool = False
    #: Whether a suggestion may take longer than a millisecond. If so, the searcher runs in a thread, and the driver
    #: requests configs in advance.
    is_slow: bool = False
    #: Whether each trial must run to its own end. Then the tuner refuses schedulers that stop or pause trials.
    wants_whole_trials: bool = False

    def check_space(self, space: Space) -> None:
        """Check that the searcher's arguments fit the space. Called when a tuner is created.

        Raises:
            ConfigurationError: they don't fit.
        """

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Set the space, the seed, the metric and its mode ("min" or "max").

        The driver calls this before the first suggestion, possibly more than once. With several metrics, *metric* is
        the first one; :meth:`check_objective` gets all. A searcher with a space of its own ignores the call.
        """

    @property
    def can_learn(self) -> bool:
        """Whether the searcher overrides ``learn``."""
        return type(self).learn is not Searcher.learn

    def learn(self, trial: PastTrial) -> None:
        """Learn from a trial of another experiment. Its config is in the space.

        The driver calls this between ``bind`` and the first suggestion, even if it resumes an experiment.
        """

    @abstractmethod
    def suggest(self, trial: TrialId) -> Suggestion:
        """Return a new config, WAIT if it is not ready, or None if there are no more.

        The caller may change the config.

        Args:
            trial: the id that the trial will probably have. If a user adds a trial meanwhile, that one gets it, so rely
                on ``on_queue``.
        """

    def replay(self, trial: TrialId, config: Config) -> Config | None:
        """Restore the state after *config* was suggested for *trial*, and return a new suggestion.

        If the two differ, the driver logs a warning, and *config* counts. A searcher that can't or shouldn't suggest
        again adopts *config* and returns it.
        """
        suggested = self.suggest(trial)
        if suggested is None or suggested is WAIT or fingerprint(suggested) != fingerprint(config):
            self.adopt(trial, config)
        return suggested if suggested is not WAIT else None

    def adopt(self, trial: TrialId, config: Config) -> None:
        """Note that *trial* has a complete config that a user or a scheduler has chosen."""
        self.avoid(config)

    def avoid(self, config: Config) -> None:
        """Note that the complete *config* need not be suggested, because it is tried anyway."""

    def on_queue(self, trial: Trial) -> None:
        """Note that an attempt of *trial* waits for a slot. Later attempts may have another config."""

    def on_report(self, trial: Trial, report: Report) -> None:
        """Learn from a report."""

    def on_trial_pause(self, trial: Trial) -> None:
        """Note that *trial* is paused. It may never be resumed."""

    def on_attempt_end(self, trial: Trial) -> None:
        """Note that an attempt has failed or was lost, and that *trial* will run again."""

    def on_abandon(self, trial: Trial) -> None:
        """Note that *trial* was abandoned: ignore its reports, and never suggest its config again.

        The driver calls this once, before ``on_trial_end``.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Note that *trial* has reached a terminal status."""


class Telling(Searcher):
    """Base of searchers that wrap another one, ``_searcher``: forwards all notifications to it."""

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
    """Check the arguments *space* and *seed* of a searcher. *searcher* is its name, for errors.

    Raises:
        ConfigurationError: *space* is not a Space, or *seed* is not an integer.
    """
    if not isinstance(space, Space):
        raise ConfigurationError(f"{searcher}: space={space!r} is not a Space; write Space({{…}})")
    whole_number(searcher, "seed", seed)


def fingerprint(value: Any) -> str:
    """Return a text that is the same for two configs if and only if they are equal."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{fingerprint(value[key])}" for key in sorted(value)) + "}"
    return repr(value)


TPE: Final = "optuna"
#: mqtune's own searchers by name. None stands for random search, an experiment's default.
_NAMED: Final = {"random": None, "tpe": TPE}


def searcher_names() -> list[str]:
    """Return the names of mqtune's own searchers, and of searchers of installed packages."""
    return [*_NAMED, *(name for name in names_in(SEARCHER_POINTS) if name != TPE)]


def is_searcher_name(value: object) -> bool:
    """Return whether *value* is one of ``searcher_names``."""
    return isinstance(value, str) and (value in _NAMED or value in searcher_names())


def searcher_named(name: str) -> Searcher | None:
    """Return the searcher of this name with default arguments, or None for random search.

    Raises:
        ConfigurationError: the searcher's library is not installed.
    """
    kind = _NAMED.get(name, name)
    return None if kind is None else Searcher.rebuild({Searcher.role: kind})
