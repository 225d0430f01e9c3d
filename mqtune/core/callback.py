"""Callbacks: how the driver informs observers of an experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mqtune.core.trial import Attempt, CheckpointId, Decision, Report, Trial

if TYPE_CHECKING:
    from mqtune.core.experiment import Experiment


class Callback:
    """Observes an experiment, off the decision path. Override the methods that you need.

    **Order.** Each event is delivered once, in the journal's order, after the experiment has applied it. Events from
    before the driver resumed are not delivered; ``on_start`` shows their outcome.

    **Thread.** All callbacks share one thread, which is not the driver's. A callback that waits delays the other
    callbacks, but neither the driver nor a trial. A callback that computes delays the driver by about 5 ms at a time,
    because both share Python's interpreter lock. A callback must not call the tuner, which belongs to the driver's
    thread.

    **Copies.** A trial is a copy, as of the event. Its config and metrics are shared, so only read them. The experiment
    is live and changes during a callback. Copy a collection, as in ``list(experiment.trials.values())``, before
    iterating.

    **Errors.** An error in a callback is logged, the first time with its traceback, and counted. The run continues, and
    the callback receives further events. The count is shown at the end.

    **Overload.** If too many events wait, new reports and checkpoints are not delivered. They are counted, and the
    count is shown at the end. They stay in the journal. All other events are always delivered.
    """

    #: Longest time until the next ``on_step``, in seconds. None means whenever something happens.
    interval_s: float | None = None
    #: Whether the driver's own thread calls it, with the live trials instead of copies. Set it only for a fast callback
    #: that reads the whole experiment: the driver waits for each call.
    in_loop: bool = False

    def setup(self, folder: Path) -> None:
        """Prepare the callback. Called first, in the driver's thread, with the experiment's folder.

        An error ends the run before it begins.
        """

    def on_start(self, experiment: Experiment) -> None:
        """The driver begins or resumes. *experiment* may be read from now on."""

    def on_step(self, waiting_for: str) -> None:
        """Something may have changed. Calls may be skipped while one is waiting.

        *waiting_for* says why no trial runs, or why the experiment gets no more slots. It is empty otherwise.
        """

    def on_queue(self, trial: Trial) -> None:
        """An attempt, ``trial.attempt``, was put into a queue. Number 1 is a new trial."""

    def on_trial_start(self, trial: Trial) -> None:
        """A worker has claimed ``trial.attempt`` and starts it."""

    def on_report(self, trial: Trial, report: Report) -> None:
        """A trial has reported, and the scheduler has seen it."""

    def on_decision(self, trial: Trial, decision: Decision) -> None:
        """The driver decided to end ``trial.attempt``. The worker has not done so yet."""

    def on_checkpoint(self, trial: Trial, checkpoint: CheckpointId) -> None:
        """A trial has saved a complete checkpoint."""

    def on_attempt_end(self, trial: Trial, attempt: Attempt) -> None:
        """An attempt has ended: see ``attempt.end`` and ``attempt.error``. *trial* may be requeued."""

    def on_trial_pause(self, trial: Trial) -> None:
        """A trial is paused. Its process has ended."""

    def on_trial_resume(self, trial: Trial) -> None:
        """A paused trial resumes. Its next attempt is in a queue; ``on_queue`` was called as well."""

    def on_trial_end(self, trial: Trial) -> None:
        """A trial has reached a final status."""

    def on_restore(self, entries: int, missing: int) -> None:
        """Redis had lost *missing* of the journal's *entries*, and the driver has restored them.

        Running attempts are lost.
        """

    def on_end(self) -> None:
        """The driver ends. No call follows."""
