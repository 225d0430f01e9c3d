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
    """A suggestion that is still being worked out."""

    WAIT = "wait"


#: Says that a config is being worked out: ask again.
WAIT: Final = Later.WAIT
#: A config, ``WAIT``, or None if there are no more.
Suggestion = Config | Literal[Later.WAIT] | None


class PastTrial(NamedTuple):
    """A trial that has ended elsewhere, as COMPLETED or EARLY_STOPPED, and that a searcher learns from.

    ``value`` is the last one of the metric, NaN where it has diverged, and ``step`` its ``training_iteration``.
    """

    config: Config
    value: float
    step: int = 1
    status: TrialStatus = TrialStatus.COMPLETED


class Searcher(Registered, GoesByObjective, ABC):
    """Proposes configs, and hears what becomes of the trials that try them.

    For each new trial, the driver calls either ``suggest`` or ``adopt``, and then ``on_stage``. Reports and ends follow in the
    order of the journal, each once. A trial must not be changed by whoever is told of it.

    A driver that resumes brings its searcher to where the one before was: it makes the same calls again, but ``replay`` in
    place of ``suggest``. A searcher that is deterministic, as with the same arguments and calls it proposes the same configs,
    may leave ``replay`` as it is; one that is not, or that takes long, overrides it.
    """

    role = "searcher"
    instead_of_several = 'give searcher="tpe" or "random"'
    group = SEARCHER_POINTS
    #: Whether a suggestion may depend on reports; if not, the driver may ask for configs before a slot is free.
    adaptive: bool = False
    #: Whether a suggestion may take longer than a millisecond. The searcher then works in a thread of its own: the driver's loop
    #: doesn't wait for it, and the next config is worked out before a slot is free.
    is_slow: bool = False
    #: Whether each trial must run to its own end, so that a scheduler that stops or pauses trials is refused.
    wants_whole_trials: bool = False

    def check_space(self, space: Space) -> None:
        """Check what it was given against the experiment's space, when a tuner is made.

        Raises:
            ConfigurationError: it does not go with the space.
        """

    def bind(self, space: Space, seed: int, *, metric: str, mode: str) -> None:
        """Learn what the experiment searches, and its seed; called before the first suggestion, perhaps more than once.

        Of several metrics it is told the first alone, as :meth:`check_objective` was told all.

        One that was made with a space of its own ignores it.
        """

    @property
    def can_learn(self) -> bool:
        """Whether it learns from trials that have ended elsewhere: whether it has a ``learn`` of its own."""
        return type(self).learn is not Searcher.learn

    def learn(self, trial: PastTrial) -> None:
        """Learn from a trial that has ended elsewhere; called after ``bind``, and before the first suggestion.

        Its config is one of the space, and may come again. A driver that resumes calls it as the first one did.
        """

    @abstractmethod
    def suggest(self, trial: TrialId) -> Suggestion:
        """Return a new config, which the caller may change, or None if there are no more.

        Args:
            trial: the id that its trial will have, unless one that a user adds meanwhile gets it; ``on_stage`` tells.
        """

    def replay(self, trial: TrialId, config: Config) -> Config | None:
        """Come to where the driver was that was suggested *config* for *trial*, and return what is suggested now.

        The config of the journal counts where the two differ, as an earlier version of the searcher may have suggested
        something else. One that can't, or shouldn't, suggest again adopts the config and returns it.
        """
        suggested = self.suggest(trial)
        if suggested is None or suggested is WAIT or fingerprint(suggested) != fingerprint(config):
            self.adopt(trial, config)
        return suggested if suggested is not WAIT else None

    def adopt(self, trial: TrialId, config: Config) -> None:
        """Hear that *trial* tries a complete config that was not suggested: a user or a scheduler has chosen it."""
        self.avoid(config)

    def avoid(self, config: Config) -> None:
        """Hear that the complete *config* is tried anyway, and need not be suggested."""

    def on_stage(self, trial: Trial) -> None:
        """Hear that an attempt of *trial* waits for a slot: the first, or one that goes on, perhaps with another config."""

    def on_report(self, trial: Trial, report: Report) -> None:
        """Hear of a report."""

    def on_trial_pause(self, trial: Trial) -> None:
        """Hear that *trial* is paused, and may never go on."""

    def on_attempt_end(self, trial: Trial) -> None:
        """Hear that an attempt has failed, or was lost, and that *trial* is going to run again."""

    def on_abandon(self, trial: Trial) -> None:
        """Hear that *trial* was abandoned: its reports don't count, and its config must not be suggested again.

        Called once, before ``on_trial_end``.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Hear that *trial* has reached a terminal status."""


class Telling(Searcher):
    """A searcher in front of another one, ``_searcher``, which hears all that this one hears."""

    _searcher: Searcher

    def on_stage(self, trial: Trial) -> None:
        self._searcher.on_stage(trial)

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
    """Check the arguments that every searcher over a space has.

    Raises:
        ConfigurationError: *space* is not a Space, or *seed* not an integer.
    """
    if not isinstance(space, Space):
        raise ConfigurationError(f"{searcher}: space={space!r} is not a Space; write Space({{…}})")
    whole_number(searcher, "seed", seed)


def fingerprint(value: Any) -> str:
    """Return a text that is the same for two configs if, and only if, they are equal."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{fingerprint(value[key])}" for key in sorted(value)) + "}"
    return repr(value)


#: The kind of the searcher by TPE, in descriptions.
TPE: Final = "optuna"
#: The searchers that have a name of their own, by it; none for random search, which an experiment does without one.
_NAMED: Final = {"random": None, "tpe": TPE}


def searcher_names() -> list[str]:
    """Return the names that stand for searchers: mqtune's own, and those of entry points."""
    return [*_NAMED, *(name for name in names_in(SEARCHER_POINTS) if name != TPE)]


def is_searcher_name(value: object) -> bool:
    """Whether a value is one of ``searcher_names``."""
    return isinstance(value, str) and (value in _NAMED or value in searcher_names())


def searcher_named(name: str) -> Searcher | None:
    """Return the searcher with one of ``searcher_names`` and its default arguments; None for random search.

    Raises:
        ConfigurationError: its library is not installed.
    """
    kind = _NAMED.get(name, name)
    return None if kind is None else Searcher.rebuild({Searcher.role: kind})
