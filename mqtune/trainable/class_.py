"""Trainables that are classes.

A trial runs in steps, and can be saved, paused and resumed between them.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqtune.core.calls import signature_of
from mqtune.core.errors import ConfigurationError, TrainableNotFound
from mqtune.core.trial import ITERATION, TIME_THIS_ITER, TIME_TOTAL, AttemptEnd, Config, Metrics
from mqtune.trainable.process.protocol import STOP_SIGNAL, TrainableEnd
from mqtune.trainable.process.saver import remove_folder
from mqtune.trainable.process.session import Session, StopTrial, as_seconds

if TYPE_CHECKING:
    from mqtune.checkpoints.checkpoint import Checkpoint, State

_DONE: Final = "done"
#: The metrics of a step that are summed up, and the names of their totals, which continue after a resume.
_COUNTED: Final = {"timesteps_this_iter": "timesteps_total", "episodes_this_iter": "episodes_total"}


class Trainable:
    """Base class of trainables that run in steps: derive from it, and define at least ``step``.

    The trial's process makes an instance without arguments, sets the attributes below, and calls ``setup``; then
    ``load_checkpoint`` if the trial starts from a checkpoint; then ``step`` until that returns ``done`` or the trial is stopped
    or paused; and last ``cleanup``, however the trial ended. A pause takes effect between steps: the trial is saved, if it can
    be and was not in this iteration, and ends. A stop is raised immediately (``StopTrial``), also in the middle of a step.

    Each report has these metrics too, unless ``step`` returned them itself:

    - ``training_iteration``: steps so far, those before a resume too.
    - ``time_this_iter_s``: seconds that this step took, without the saving and reporting.
    - ``time_total_s``: seconds in steps so far, those before a resume too.
    - ``timesteps_total`` and ``episodes_total``: sums of ``timesteps_this_iter`` and ``episodes_this_iter`` so far, those
      before a resume too; only when a step has returned these.
    - ``iterations_since_restore`` and ``time_since_restore_s``: the same as the first and the third, in this attempt.

    Of a trial with several seats each has an instance, which loads the checkpoint and steps; only seat 0's is saved, so nothing in
    ``save_checkpoint`` may wait for the others.

    With ``Process(reuse=True)`` the instance and its process stay for the next trial of the experiment in the slot, if
    ``reset_config`` takes its config, so that everything that ``setup`` brought into memory or onto a GPU is still there. They
    stay only if the trial completed, stopped or paused between two steps; never after an error, an interrupted step, a
    signal that ended the trial or an expired ``timeout_s``, nor if processes or non-daemon threads are left.
    Environment and random generators stay as they are. Each trial has its own working directory, already in ``reset_config``,
    unless ``working_dir="code"`` is set. ``cleanup`` is called when the process exits, not between its trials, and has
    one second if no trial runs there: the worker exits, there was no trial for two minutes, another experiment has the slot, or
    the code has changed. Only on Linux; elsewhere each trial has a new process.

    Attributes:
        config: the trial's config.
        trial_id: the trial's id.
        folder: the attempt's own folder on the worker; see ``mqtune.get_context``.
        training_iteration: how many steps are done, those before a resume too.
        time_total_s: seconds in steps so far, those before a resume too.
        checkpoint_every: after how many iterations a checkpoint is saved; 0 saves only for a pause and on request. It may
            be set in the class, or in ``setup``.
        checkpoint_at_end: whether to save with the last report too; also when the trial is stopped between steps.
        export_formats: the formats that ``export_model`` can write.
    """

    checkpoint_every: int = 0
    checkpoint_at_end: bool = False
    export_formats: tuple[str, ...] = ()

    config: Config
    trial_id: str = ""
    folder: Path = Path()
    training_iteration: int = 0
    time_total_s: float = 0.0

    def setup(self, config: Config) -> None:
        """Prepare for the first step; may take as long as it needs."""

    def step(self) -> Metrics:
        """Do one iteration and return its metrics.

        ``"done": True`` among them ends the trial and is not reported.
        """
        raise NotImplementedError

    def save_checkpoint(self, folder: Path) -> State | None:
        """Save the state: write files into the folder, or return a dict of at most 1 MB."""
        raise NotImplementedError

    def load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Restore the saved state: the dict ``checkpoint.data``, or the folder ``checkpoint.path``."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Release resources; called once, however the trial ended.

        An error in it fails a trial that had not failed.

        With ``reuse`` it is called after the instance's last trial; when that has been reported an error is only printed.
        """

    def reset_config(self, config: Config) -> bool:
        """Take another trial's config in place of ``setup``, and return True.

        Otherwise a new process runs the trial.

        Only for ``Process(reuse=True)``. If it returns True the instance must be as ``setup`` would leave it with this config:
        nothing of the trial before that a result depends on is left. ``self.config`` is still that trial's in here;
        ``trial_id`` and ``folder`` are the new one's, and the counters are 0. Nothing can be reported or saved yet.
        """
        return False

    def export_model(self, format: str, folder: Path) -> None:  # noqa: A002 - the usual name
        """Write the model into the folder in one of ``export_formats``."""
        raise NotImplementedError


def check_class(trainable: type) -> None:
    """Check that a class can be tuned.

    Raises:
        TrainableNotFound: it can't; the message says why.
    """
    name = trainable.__name__
    if not issubclass(trainable, Trainable) or trainable is Trainable:
        raise TrainableNotFound(
            f"trainable {name!r} is a class that does not derive from mqtune.Trainable; "
            f"write class {name}(mqtune.Trainable), with a step method"
        )
    if not _defines(trainable, "step"):
        raise TrainableNotFound(f"trainable {name!r} has no step method; give it one that returns a dict of metrics")
    if _defines(trainable, "save_checkpoint") is not _defines(trainable, "load_checkpoint"):
        raise TrainableNotFound(
            f"trainable {name!r} has only one of save_checkpoint and load_checkpoint; give it both, or neither"
        )
    if (trainable.checkpoint_every or trainable.checkpoint_at_end) and not _defines(trainable, "save_checkpoint"):
        raise TrainableNotFound(
            f"trainable {name!r} asks for checkpoints and has no save_checkpoint; give it one, and a load_checkpoint"
        )
    if trainable.__init__ is object.__init__:
        # inspect would have to parse its signature from text.
        return
    try:
        signature_of(trainable).bind()
    except TypeError:
        raise TrainableNotFound(
            f"trainable {name}{signature_of(trainable)} is made without arguments; "
            "take the config in setup(self, config) instead of __init__"
        ) from None


def check_reusable(trainable: object) -> None:
    """Check that a trainable's processes can be reused.

    Raises:
        ConfigurationError: it is no class, or a class without a reset_config.
    """
    if not isinstance(trainable, type):
        raise ConfigurationError(
            f"reuse=True is for a class with a reset_config method, and {trainable!r} is none; leave reuse out, or write a subclass of "
            "mqtune.Trainable, whose setup does what all trials of a process share"
        )
    if not _defines(trainable, "reset_config"):
        raise ConfigurationError(
            f"reuse=True: {trainable.__name__} has no reset_config(self, config); give it one that returns True when the "
            "instance is as setup would leave it, or leave reuse out"
        )


def export_model(
    trainable: type[Trainable],
    config: Config,
    checkpoint: Checkpoint | None,
    format: str,  # noqa: A002 - the usual name
    folder: Path,
) -> None:
    """Export a trial's model: restore an instance in this process, and call its ``export_model``.

    The folder is made unless it exists; *checkpoint* is None for a class without checkpoints.

    Raises:
        ConfigurationError: the format is not one of the class's ``export_formats``.
    """
    if format not in trainable.export_formats:
        known = ", ".join(trainable.export_formats) or "none"
        raise ConfigurationError(f"{trainable.__name__} can't be exported as {format!r}; its export_formats: {known}")
    folder.mkdir(parents=True, exist_ok=True)
    instance = trainable()
    instance.config, instance.folder = config, folder
    try:
        instance.setup(config)
        if checkpoint is not None:
            instance.load_checkpoint(checkpoint)
        instance.export_model(format, folder)
    finally:
        instance.cleanup()


class Steps:
    """Runs one attempt of a class, step by step."""

    def __init__(self, trainable: Trainable, current: Session) -> None:
        # It handles a pause between two steps.
        current.defer_pause = True
        self._trainable = trainable
        self._session = current
        self._name = type(trainable).__name__
        self._can_save = current.is_first and _defines(type(trainable), "save_checkpoint")
        self._totals: Metrics = {}
        self._steps = 0
        self._seconds = 0.0
        #: The iteration of the newest checkpoint; before the first step there is nothing to save.
        self._saved_at = 0
        #: Whether the last save was a dict: then the next folder is not made in the store.
        self._saves_dicts = False
        self._refused_request = False
        #: Whether the instance is between two steps, of which none was interrupted.
        self.is_whole = False

    def set_up(self) -> None:
        """Set up a new instance."""
        trainable, message = self._trainable, self._session.message
        trainable.config, trainable.trial_id, trainable.folder = (
            message["config"],
            message["trial"],
            self._session.ensure_folder(),
        )
        trainable.setup(message["config"])

    def run(self) -> None:
        """Load the checkpoint, if the trial starts from one, and run all steps."""
        self._restore()
        self.is_whole = not self._session.known_order
        done = False
        while not done:
            self._handle_requests()
            done = self._step()

    def clean_up(self, first: BaseException | None) -> None:
        """Call cleanup; its error is added to *first*, if there is one, and does not hide it."""
        # A stop that comes now changes nothing.
        signal.signal(STOP_SIGNAL, signal.SIG_IGN)
        try:
            self._trainable.cleanup()
        except BaseException as error:
            if first is None:
                raise
            text = "".join(traceback.format_exception(error)).rstrip()
            first.add_note(f"and then {self._name}.cleanup raised:\n{text}")
            if isinstance(first, StopTrial):
                sys.stderr.write(f"{self._name}.cleanup raised:\n{text}\n")

    def _restore(self) -> None:
        checkpoint = self._session.get_checkpoint()
        if checkpoint is None:
            return
        if not _defines(type(self._trainable), "load_checkpoint"):
            raise ConfigurationError(
                f"the trial is to start from checkpoint {checkpoint.id} and {self._name} has no load_checkpoint; "
                "give it one, and a save_checkpoint"
            )
        self._trainable.load_checkpoint(checkpoint)
        counters = dict(checkpoint.counters)
        self._trainable.training_iteration = self._saved_at = int(counters.get(ITERATION, 0))
        self._trainable.time_total_s = float(counters.get(TIME_TOTAL, 0.0))
        self._totals = {total: counters[total] for total in _COUNTED.values() if total in counters}

    def _handle_requests(self) -> None:
        """Save, pause or both, if that was requested meanwhile."""
        order = self._session.acknowledge()
        if order:
            if order == "pause" and self._can_save and self._saved_at != self._trainable.training_iteration:
                self._save()
            raise StopTrial(order)
        if not self._session.is_save_wanted() or self._refused_request:
            return
        if self._can_save:
            self._save()
        else:
            self._refused_request = True
            sys.stderr.write(f"a checkpoint was asked for, and {self._name} has no save_checkpoint\n")

    def _step(self) -> bool:
        """Run one step and report it; return whether it was the last."""
        trainable = self._trainable
        began = time.monotonic()
        self.is_whole = False
        metrics = trainable.step()
        # User code may have caught the StopTrial that was raised in it.
        self.is_whole = not self._session.known_order
        elapsed_s = time.monotonic() - began
        if not isinstance(metrics, dict):
            raise TypeError(f"{self._name}.step returned {metrics!r}; it must return a dict such as {{'loss': 0.1}}")
        done = bool(metrics.get(_DONE))
        row = self._count({name: value for name, value in metrics.items() if name != _DONE}, elapsed_s)
        every = trainable.checkpoint_every
        at_end = trainable.checkpoint_at_end and self._session.is_first
        due = (done and at_end) or (every > 0 and trainable.training_iteration % every == 0 and self._session.is_first)
        try:
            if due:
                self._session.report(row, self._saved_state(), self._counters())
                self._saved_at = trainable.training_iteration
            else:
                self._session.report(row)
        except StopTrial as stop:
            # The stop came between two steps, so the state is consistent and can be saved.
            if stop.action == "stop" and at_end and not due:
                self._save()
            raise
        return done

    def _count(self, metrics: Metrics, elapsed_s: float) -> Metrics:
        """Update the counters after a step, and return the metrics of its report."""
        trainable = self._trainable
        self._steps += 1
        trainable.training_iteration += 1
        elapsed_s = as_seconds(metrics.get(TIME_THIS_ITER), elapsed_s)
        self._seconds += elapsed_s
        trainable.time_total_s += elapsed_s
        for counted, total in _COUNTED.items():
            if counted in metrics:
                self._totals[total] = self._totals.get(total, 0) + metrics[counted]
        return {
            ITERATION: trainable.training_iteration,
            TIME_THIS_ITER: elapsed_s,
            TIME_TOTAL: trainable.time_total_s,
            "iterations_since_restore": self._steps,
            "time_since_restore_s": self._seconds,
            **self._totals,
            **metrics,
        }

    def _counters(self) -> Metrics:
        trainable = self._trainable
        return {ITERATION: trainable.training_iteration, TIME_TOTAL: trainable.time_total_s, **self._totals}

    def _save(self) -> None:
        """Save without a report."""
        self._session.save(self._saved_state(), self._counters())
        self._saved_at = self._trainable.training_iteration

    def _saved_state(self) -> State | Path:
        """Call save_checkpoint, and return the state: a dict, or the folder with the files."""
        if self._saves_dicts:
            folder = self._session.ensure_scratch() / "dict"
            folder.mkdir()
        else:
            folder = self._session.draft()
        was_whole, heard, self.is_whole = self.is_whole, self._session.known_order, False
        try:
            saved: object = self._trainable.save_checkpoint(folder)
            self.is_whole = was_whole and self._session.known_order == heard
            if isinstance(saved, dict):
                if any(folder.iterdir()):
                    raise TypeError(f"{self._name}.save_checkpoint returned a dict and wrote files; do one of the two")
                remove_folder(folder)
                self._saves_dicts = True
                return saved
            if saved is None or (isinstance(saved, str | os.PathLike) and _is_in(Path(saved), folder)):
                return folder
        except BaseException:
            remove_folder(folder)
            raise
        raise TypeError(
            f"{self._name}.save_checkpoint returned {saved!r}; write files into the folder that it gets and return "
            "nothing, or return a dict"
        )


def run_class(trainable: type[Trainable], current: Session) -> TrainableEnd:
    """Run an attempt of a class: make an instance, run its steps, and clean up."""
    steps = Steps(trainable(), current)
    try:
        steps.set_up()
        steps.run()
    except BaseException as error:
        steps.clean_up(error)
        raise
    steps.clean_up(None)
    return TrainableEnd(AttemptEnd.COMPLETED)


def _is_in(path: Path, folder: Path) -> bool:
    """Whether a path is a folder or lies in it: save_checkpoint of older code returns such a path."""
    return path.resolve().is_relative_to(folder.resolve())


def _defines(trainable: type, method: str) -> bool:
    return getattr(trainable, method) is not getattr(Trainable, method)
