"""Trainables that are classes: a trial runs in steps, between which it can be saved or paused."""

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
#: The metrics of a step that are summed up, and the metrics with their totals. Totals continue after a resume.
_COUNTED: Final = {"timesteps_this_iter": "timesteps_total", "episodes_this_iter": "episodes_total"}


class Trainable:
    """Base class of trainables that run in steps: derive from it, and define at least ``step``.

    The trial's process makes an instance without arguments, sets the attributes below, and calls these methods:

    - ``setup``, once.
    - ``load_checkpoint``, if the trial starts from a checkpoint.
    - ``step``, until it returns ``done`` or the trial is stopped or paused.
    - ``cleanup``, however the trial ended.

    A pause takes effect between two steps. If the class can save and has not saved since the last step, the trial is
    saved first. A stop takes effect immediately: it raises ``StopTrial``, also in the middle of a step.

    Each report has these metrics too, unless ``step`` returned them itself:

    - ``training_iteration``: number of steps so far, including those before a resume.
    - ``time_this_iter_s``: seconds that this step took, without saving and reporting.
    - ``time_total_s``: seconds in steps so far, including those before a resume.
    - ``timesteps_total`` and ``episodes_total``: sums of ``timesteps_this_iter`` and ``episodes_this_iter`` so far,
      including those before a resume. Present only if a step has returned these.
    - ``iterations_since_restore`` and ``time_since_restore_s``: number of steps, and seconds in them, in this attempt.

    In a trial with several seats, each seat has an instance, which loads the checkpoint and runs the steps. Only the
    instance of seat 0 is saved, so ``save_checkpoint`` must not wait for the other seats.

    With ``Process(reuse=True)`` the instance and its process also run the slot's next trial of the experiment, if
    ``reset_config`` accepts its config. So everything that ``setup`` has brought into memory or onto a GPU is still
    there. An instance is reused only if its trial completed, stopped or paused between two steps. It is not reused
    after an error, an interrupted step, a signal that ended the trial or an expired ``timeout_s``, nor if processes or
    non-daemon threads are left. Environment and random generators stay as they are. Each trial has its own working
    directory, already in ``reset_config``, unless ``working_dir="code"`` is set. ``cleanup`` is called when the process
    exits, not between its trials. It has one second if no trial runs: the worker exits, there was no trial for two
    minutes, another experiment has the slot, or the code has changed. Reuse needs Linux. Elsewhere each trial has a new
    process.

    Attributes:
        config: the trial's config.
        trial_id: the trial's id.
        folder: the attempt's own folder on the worker; see ``mqtune.get_context``.
        training_iteration: number of finished steps, including those before a resume.
        time_total_s: seconds in steps so far, including those before a resume.
        checkpoint_every: number of iterations between two checkpoints. With 0, checkpoints are saved only for a pause
            and on request. Set it in the class, or in ``setup``.
        checkpoint_at_end: whether to save with the last report, and when the trial is stopped between two steps.
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
        """Prepare for the first step. This may take any time."""

    def step(self) -> Metrics:
        """Do one iteration and return its metrics.

        The item ``"done": True`` ends the trial, and is not reported.
        """
        raise NotImplementedError

    def save_checkpoint(self, folder: Path) -> State | None:
        """Save the state: write files into the folder, or return a dict of at most 1 MB."""
        raise NotImplementedError

    def load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Restore the saved state: the dict ``checkpoint.data``, or the folder ``checkpoint.path``."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Release resources. It is called once, however the trial ended.

        An error in it fails a trial that had not failed.

        With ``reuse`` it is called after the instance's last trial. If the end of that trial was reported before, an
        error is only printed.
        """

    def reset_config(self, config: Config) -> bool:
        """Switch to another trial's config in place of ``setup``, and return True.

        If it returns False, a new process runs the trial.

        It is called only with ``Process(reuse=True)``. When it returns True, the instance must be as ``setup`` would
        leave it with this config: nothing of the previous trial may be left that a result depends on. During the call,
        ``self.config`` is still the previous config. ``trial_id`` and ``folder`` are the new trial's, and the counters
        are 0. Nothing can be reported or saved yet.
        """
        return False

    def export_model(self, format: str, folder: Path) -> None:  # noqa: A002 - the usual name
        """Write the model into the folder in one of ``export_formats``."""
        raise NotImplementedError


def check_class(trainable: type) -> None:
    """Check that a class can be tuned.

    Raises:
        TrainableNotFound: it can't be tuned. The message says why.
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
    """Check that a trainable's processes can be reused for further trials.

    Raises:
        ConfigurationError: it is no class, or a class without a reset_config.
    """
    if not isinstance(trainable, type):
        raise ConfigurationError(
            f"reuse=True needs a class with a reset_config method, and {trainable!r} is not a class; leave reuse out, "
            "or write a subclass of mqtune.Trainable whose setup does the work that all trials of a process share"
        )
    if not _defines(trainable, "reset_config"):
        raise ConfigurationError(
            f"reuse=True: {trainable.__name__} has no reset_config(self, config); give it one that returns True when "
            "the instance is as setup would leave it, or leave reuse out"
        )


def export_model(
    trainable: type[Trainable],
    config: Config,
    checkpoint: Checkpoint | None,
    format: str,  # noqa: A002 - the usual name
    folder: Path,
) -> None:
    """Restore a trial's instance in this process, and call its ``export_model``.

    The folder is made if it is missing. *checkpoint* is None for a class without checkpoints.

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
    """Runs one attempt of a trainable class, step by step."""

    def __init__(self, trainable: Trainable, current: Session) -> None:
        # This object handles a pause between two steps.
        current.defer_pause = True
        self._trainable = trainable
        self._session = current
        self._name = type(trainable).__name__
        self._can_save = current.is_first and _defines(type(trainable), "save_checkpoint")
        self._totals: Metrics = {}
        self._steps = 0
        self._seconds = 0.0
        #: The iteration of the newest checkpoint. It is 0 at first, as there is nothing to save before the first step.
        self._saved_at = 0
        #: Whether the last checkpoint was a dict. Then the next folder is not made in the store.
        self._saves_dicts = False
        self._refused_request = False
        #: Whether the instance is between two steps, and no step was interrupted.
        self.is_whole = False

    def set_up(self) -> None:
        """Set the attributes of a new instance, and call its ``setup``."""
        trainable, message = self._trainable, self._session.message
        trainable.config, trainable.trial_id, trainable.folder = (
            message["config"],
            message["trial"],
            self._session.ensure_folder(),
        )
        trainable.setup(message["config"])

    def run(self) -> None:
        """Load the trial's initial checkpoint, if it has one, and run all steps."""
        self._restore()
        self.is_whole = not self._session.known_order
        done = False
        while not done:
            self._handle_requests()
            done = self._step()

    def clean_up(self, first: BaseException | None) -> None:
        """Call ``cleanup``. If that raises after the error *first*, only add a note to *first*."""
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
                f"the trial starts from checkpoint {checkpoint.id}, but {self._name} has no load_checkpoint; "
                "give it one, and a save_checkpoint"
            )
        self._trainable.load_checkpoint(checkpoint)
        counters = dict(checkpoint.counters)
        self._trainable.training_iteration = self._saved_at = int(counters.get(ITERATION, 0))
        self._trainable.time_total_s = float(counters.get(TIME_TOTAL, 0.0))
        self._totals = {total: counters[total] for total in _COUNTED.values() if total in counters}

    def _handle_requests(self) -> None:
        """Save if that was requested. If the trial should end, raise StopTrial.

        Before a pause, an unsaved state is saved.
        """
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
            sys.stderr.write(f"a checkpoint was requested, but {self._name} has no save_checkpoint\n")

    def _step(self) -> bool:
        """Run one step and report it. Return whether it was the last one."""
        trainable = self._trainable
        began = time.monotonic()
        self.is_whole = False
        metrics = trainable.step()
        # User code may have caught a StopTrial that was raised during the step.
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
        """Save a checkpoint without a report."""
        self._session.save(self._saved_state(), self._counters())
        self._saved_at = self._trainable.training_iteration

    def _saved_state(self) -> State | Path:
        """Call ``save_checkpoint``, and return the state: a dict, or the folder with the files."""
        if self._saves_dicts:
            folder = self._session.ensure_scratch() / "dict"
            folder.mkdir()
        else:
            folder = self._session.draft()
        was_whole, known, self.is_whole = self.is_whole, self._session.known_order, False
        try:
            saved: object = self._trainable.save_checkpoint(folder)
            self.is_whole = was_whole and self._session.known_order == known
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
    """Run an attempt of a trainable class: make an instance, run its steps, and clean up."""
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
    """Whether a path is this folder or lies in it. Older code returns one from ``save_checkpoint``."""
    return path.resolve().is_relative_to(folder.resolve())


def _defines(trainable: type, method: str) -> bool:
    return getattr(trainable, method) is not getattr(Trainable, method)
