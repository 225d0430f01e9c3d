"""The interface of searchers, which propose configs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from mqtune.core.checks import whole_number
from mqtune.core.errors import ConfigurationError
from mqtune.core.registry import Registered
from mqtune.core.trial import Config, Report, Trial
from mqtune.search.space import Space

__all__ = ["Searcher", "check_arguments", "fingerprint"]


class Searcher(Registered, ABC):
    """Proposes configs, and hears what the trials that try them report.

    A searcher is deterministic: with the same arguments and the same calls in the same order it proposes the same configs.
    A driver that resumes brings it to its earlier state by repeating the calls.
    """

    role = "searcher"
    #: Whether a suggestion may depend on reports; if not, the driver may ask for configs before a slot is free.
    adaptive: bool = False

    def check_space(self, space: Space) -> None:
        """Check what it was given against the experiment's space, when a tuner is made.

        Raises:
            ConfigurationError: it does not go with the space.
        """

    def bind(self, space: Space, seed: int) -> None:
        """Learn the experiment's space and seed; called before the first suggestion, perhaps more than once.

        One that was made with a space of its own ignores it.
        """

    @abstractmethod
    def suggest(self) -> Config | None:
        """Return a new config, which the caller may change, or None if there are no more."""

    def replay(self, config: Config) -> Config | None:
        """Suggest again at the place where the journal has *config*, which is what counts, and return what is suggested now.

        A driver that resumes calls this for each suggestion that an earlier one asked for. Where the two differ, as an
        earlier version of the searcher may have suggested something else, the searcher goes by the journal.
        """
        suggested = self.suggest()
        if suggested != config:
            self.avoid(config)
        return suggested

    def avoid(self, config: Config) -> None:
        """Hear that the complete *config* is tried without having been suggested, and need not be suggested."""

    def on_report(self, trial: Trial, report: Report) -> None:
        """Hear of a report; each one once, in the journal's order. *trial* must not be changed."""

    def on_abandon(self, trial: Trial) -> None:
        """Hear that *trial* was abandoned: its reports don't count, and its config must not be suggested again.

        Called once, before ``on_trial_end``. *trial* must not be changed.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Hear that *trial* has reached a terminal status."""


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
