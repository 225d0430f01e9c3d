"""What every searcher promises."""

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
    """Proposes configs, and is told how the trials that try them fare.

    A searcher is deterministic: built with the same arguments and told the same things in the same order, it
    proposes the same configs. That is how a resumed driver gets it back to the state it had.
    """

    role = "searcher"
    #: Whether a suggestion may depend on reports; where it does not, the driver may ask ahead.
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
        """Return a new config that belongs to the caller, or None: there will be no other."""

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
        """Take note that *config*, complete, is tried anyway and need not be suggested."""

    def on_report(self, trial: Trial, report: Report) -> None:
        """Take note of a report, once and in the journal's order; *trial* may be read only."""

    def on_abandon(self, trial: Trial) -> None:
        """Take note that *trial* is given up: nothing that it reported counts, and its config is never suggested again.

        Told once, before ``on_trial_end``; *trial* may be read only.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Take note that *trial* has reached a status that nothing follows."""


def check_arguments(searcher: str, space: Space, seed: int) -> None:
    """Check what every searcher over a space is given.

    Raises:
        ConfigurationError: *space* is no Space, or *seed* no integer.
    """
    if not isinstance(space, Space):
        raise ConfigurationError(f"{searcher}: space={space!r} is not a Space; write Space({{…}})")
    whole_number(searcher, "seed", seed)


def fingerprint(value: Any) -> str:
    """Return a text that two configs share exactly if they are equal."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{fingerprint(value[key])}" for key in sorted(value)) + "}"
    return repr(value)
