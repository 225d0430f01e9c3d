"""What every scheduler promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from mqtune.errors import ConfigurationError
from mqtune.trial import Decision, Report, Trial

__all__ = ["Scheduler"]


class Scheduler(ABC):
    """Decides after each report how its trial goes on.

    It reads trials and returns decisions, and touches nothing else. It is deterministic: the same reports in the same
    order give the same decisions, which is how a resumed driver gets it back to the state it had. It decides for one
    experiment; another one needs another scheduler.
    """

    #: The name of the metric and "min" or "max"; empty before :meth:`bind`.
    metric: str = ""
    mode: str = ""

    def bind(self, metric: str, mode: str) -> None:
        """Say which metric counts and whether "min" or "max" of it is best; once, before the first report.

        Raises:
            ConfigurationError: *metric* is no name, *mode* is neither, or the scheduler is bound already.
        """
        if not isinstance(metric, str) or not metric:
            raise ConfigurationError(f"metric={metric!r} is not a name; give the key of the metric in the reports")
        if mode not in ("min", "max"):
            raise ConfigurationError(f"mode={mode!r} is neither 'min' nor 'max'")
        if self.metric:
            raise ConfigurationError(
                f"this {type(self).__name__} decides on {self.metric!r} for an experiment already; make another one"
            )
        self.metric = metric
        self.mode = mode

    @abstractmethod
    def on_report(self, trial: Trial, report: Report) -> Decision:
        """Return what is to be done with *trial* after this report."""

    def on_trial_end(self, trial: Trial) -> None:
        """Take note that *trial* has reached a status that nothing follows; it reports no more."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return its arguments, in values that a message can carry."""
