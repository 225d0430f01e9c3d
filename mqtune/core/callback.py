"""Callbacks: how the driver informs observers of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mqtune.core.trial import Attempt, CheckpointId, Decision, Report, Trial

if TYPE_CHECKING:
    from mqtune.core.experiment import Experiment


class Callback:
    """Hears what happens to an experiment, off the decision path; override what you need.

    **Order.** Each event is told once, in the journal's order, and after the experiment has taken it in. Events
    from before the driver resumed, or from while there was none, are not told; ``on_start`` shows their outcome.

    **Thread.** All methods are called in one thread that all callbacks share, not the driver's: a slow callback holds
    up the others, never the driver or a trial. One that computes, instead of waiting for a disk or a network, does
    share the driver's interpreter, which hands over every 5 ms at the latest.

    It does not call the tuner, which belongs to the driver's thread.

    **Copies.** A trial is a copy, as it was at the event; its config and metrics are not, and may be read only. The
    experiment is the live one: it moves on while it is looked at, so copy a collection
    (``list(experiment.trials.values())``) before going through it.

    **Errors.** What a callback raises is logged, the first time with its traceback, and counted; it goes on being told,
    and the run goes on. The sum is shown at the end.

    **When it can't keep up.** Reports and checkpoints that find too many events waiting are not told it; they are
    counted and the number is shown at the end. They are in the journal all the same. Everything else is always told.
    """

    #: How long, at most, until the next ``on_step``, in seconds; None for whenever something happens.
    interval_s: float | None = None
    #: Called in the driver's loop instead, with the live trials: for what reads the experiment as a whole, and is fast.
    #: It holds the driver up for as long as it takes.
    in_loop: bool = False

    def setup(self, folder: Path) -> None:
        """Called before all else, with the experiment's folder, in the driver's thread.

        An error ends the run before it begins.
        """

    def on_start(self, experiment: Experiment) -> None:
        """The driver begins, or goes on; *experiment* may be read from now on."""

    def on_step(self, waiting_for: str) -> None:
        """Something may have changed; *waiting_for* says why nothing runs, or no more than its share, or is empty.

        Not told for each step of the driver: while one waits to be told, the latest is enough.
        """

    def on_stage(self, trial: Trial) -> None:
        """An attempt of a trial was put into a queue: ``trial.attempt``. Number 1 is a new trial."""

    def on_trial_start(self, trial: Trial) -> None:
        """A worker has claimed ``trial.attempt`` and starts it."""

    def on_report(self, trial: Trial, report: Report) -> None:
        """A trial has reported, and the scheduler has seen it."""

    def on_decision(self, trial: Trial, decision: Decision) -> None:
        """It was decided to end ``trial.attempt``; the worker has not done so yet."""

    def on_checkpoint(self, trial: Trial, checkpoint: CheckpointId) -> None:
        """A trial has saved a complete checkpoint."""

    def on_attempt_end(self, trial: Trial, attempt: Attempt) -> None:
        """An attempt has ended, ``attempt.end`` says how and ``attempt.error`` why; *trial* may be staged again."""

    def on_trial_pause(self, trial: Trial) -> None:
        """A trial is paused: its process is gone."""

    def on_trial_resume(self, trial: Trial) -> None:
        """A paused trial goes on: its next attempt was put into a queue, which ``on_stage`` was told as well."""

    def on_trial_end(self, trial: Trial) -> None:
        """A trial has reached a status that nothing follows."""

    def on_restore(self, entries: int, missing: int) -> None:
        """Redis came back without *missing* of the journal's *entries*.

        They were put back, and attempts under way are lost.
        """

    def on_end(self) -> None:
        """The driver ends; nothing is told after it."""
