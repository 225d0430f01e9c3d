"""What the driver tells those who watch an experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqtune.trial import Report, Trial

if TYPE_CHECKING:
    from mqtune.experiment import Experiment

__all__ = ["Callback"]


class Callback:
    """Hears what happens to an experiment, in the driver's loop; override what you need.

    Each event is told once, in the journal's order; what happened before the driver resumed, or while there was none, is not. An error
    that a callback raises ends the run, with everything kept. A slow callback holds the driver up, never a trial.
    """

    #: How long, at most, until the next ``on_step``; None for whenever something happens.
    interval_s: float | None = None

    def on_start(self, experiment: Experiment) -> None:
        """The driver begins, or goes on; *experiment* may be read at any time from its thread."""

    def on_step(self, waiting_for: str) -> None:
        """Something may have changed; *waiting_for* says why nothing runs, or is empty."""

    def on_report(self, trial: Trial, report: Report) -> None:
        """A trial has reported, and the scheduler has seen it."""

    def on_trial_end(self, trial: Trial) -> None:
        """A trial has reached a status that nothing follows."""

    def on_end(self) -> None:
        """The driver ends."""
