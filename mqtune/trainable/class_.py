"""Trainables that are classes: a trial in steps, between which it can be saved, paused and resumed."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mqtune.core.errors import ConfigurationError, TrainableNotFound
from mqtune.core.trial import ITERATION, TIME_THIS_ITER, TIME_TOTAL
from mqtune.trainable.process.protocol import STOP_SIGNAL
from mqtune.trainable.process.session import Session, StopTrial, seconds

if TYPE_CHECKING:
    from mqtune.checkpoints import Checkpoint

__all__ = ["Steps", "Trainable", "check_class", "check_reusable", "export_model", "run_class"]

_DONE: Final = "done"
#: What a step may count, and what becomes of it: for each of them a total that survives a resume.
_COUNTED: Final = {"timesteps_this_iter": "timesteps_total", "episodes_this_iter": "episodes_total"}


class Trainable:
    """A trial in steps; derive from it and give at least ``step``.

    The worker makes one without arguments, sets the attributes below, calls ``setup``, then ``load_checkpoint`` if there
    is one to start from, then ``step`` until that says it is done or the trial is stopped or paused, and last
    ``cleanup``, however it ended. A pause is obeyed between steps: the trial is saved, if it can be and was not in this
    iteration, and ends. A stop is raised at once (``StopTrial``), also in the middle of a step.

    Each report has, beside what ``step`` returned, which wins for that report:

    - ``training_iteration``: steps so far, those before a resume too.
    - ``time_this_iter_s``: seconds that this step took, without the saving and reporting.
    - ``time_total_s``: seconds in steps so far, those before a resume too.
    - ``timesteps_total`` and ``episodes_total``: sums of ``timesteps_this_iter`` and ``episodes_this_iter`` so far, those
      before a resume too; only when a step has returned these.
    - ``iterations_since_restore`` and ``time_since_restore_s``: the same as the first and the third, in this attempt.

    With ``Process(reuse=True)`` the instance and its process stay for the next trial of the experiment in the slot, if
    ``reset_config`` takes its config, so that what ``setup`` brought into memory or onto a GPU is there. They stay only after
    an end in good order, between two steps: completed, stopped or paused; never after an error, an interrupted step, a
    signal that ended the trial or a ``ttl_s`` that was over, nor with processes, or threads that are no daemons, left.
    Environment, random generators and the working directory stay as they are; with ``working_dir="trial"`` each trial has its
    own, already in ``reset_config``. ``cleanup`` is called when the process goes, not between its trials, and has one second if
    no trial runs there: the worker ends, there was no trial for two minutes, another experiment has the slot, or the code has
    changed. Only on Linux; elsewhere each trial has a fresh process.

    Attributes:
        config: the trial's config.
        trial_id: the trial's id.
        folder: the attempt's own folder on the worker; see ``mqtune.get_context``.
        training_iteration: how many steps are done, those before a resume too.
        time_total_s: seconds in steps so far, those before a resume too.
        checkpoint_every: save with every so many iterations' reports; 0 saves only for a pause and on demand. It may be
            set in the class, or in ``setup``.
        checkpoint_at_end: save with the last report too; also when the trial is stopped, unless that interrupts a step.
        export_formats: what ``export_model`` can write.
    """

    checkpoint_every: int = 0
    checkpoint_at_end: bool = False
    export_formats: tuple[str, ...] = ()

    config: dict[str, Any]
    trial_id: str = ""
    folder: Path = Path()
    training_iteration: int = 0
    time_total_s: float = 0.0

    def setup(self, config: dict[str, Any]) -> None:
        """Prepare for the first step; may take as long as it needs."""

    def step(self) -> dict[str, Any]:
        """Do one iteration and return its metrics; ``{"done": True}`` among them, which is not reported, ends the trial."""
        raise NotImplementedError

    def save_checkpoint(self, folder: Path) -> dict[str, Any] | None:
        """Save the state: write files into the folder and return None, or return a dict of at most 1 MB and write none."""
        raise NotImplementedError

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Take the state back: from the path of a folder with the files, or the dict, that was saved."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Let go of what was taken; called once, however the trial ended. An error in it fails a trial that was well.

        With ``reuse`` it is called for the instance's last trial, or later, when an error in it is only shown.
        """

    def reset_config(self, config: dict[str, Any]) -> bool:
        """Take another trial's config in place of ``setup``, and return True; anything else has a fresh process set up.

        Only for ``Process(reuse=True)``. On True the instance is as ``setup`` leaves one with this config: nothing of the
        former trial that a result depends on is left. ``self.config`` is still the former trial's in here; ``trial_id``
        and ``folder`` are the new one's, and the fields that count begin at 0. Nothing can be reported or saved yet.
        """
        return False

    def export_model(self, format: str, folder: Path) -> None:  # noqa: A002 - it is what everybody calls it
        """Write the model into the folder in one of ``export_formats``."""
        raise NotImplementedError


def check_class(trainable: type) -> None:
    """Check that a class can be tuned.

    Raises:
        TrainableNotFound: it can't.
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
        # Its signature would be read from text.
        return
    try:
        inspect.signature(trainable).bind()
    except TypeError:
        raise TrainableNotFound(
            f"trainable {name}{inspect.signature(trainable)} is made without arguments; "
            "take the config in setup(self, config) instead of __init__"
        ) from None


def check_reusable(trainable: object) -> None:
    """Check that a trainable's processes can be used again.

    Raises:
        ConfigurationError: it is no class, or has no reset_config.
    """
    if not isinstance(trainable, type):
        raise ConfigurationError(
            f"reuse=True is for a class with a reset_config method, and {trainable!r} is none; leave reuse out"
        )
    if not _defines(trainable, "reset_config"):
        raise ConfigurationError(
            f"reuse=True: {trainable.__name__} has no reset_config(self, config); give it one that returns True when the "
            "instance is as setup would leave it, or leave reuse out"
        )


def run_class(trainable: type[Trainable], config: dict[str, Any], current: Session) -> None:
    """Run a trial of a class from its setup to its cleanup.

    Raises:
        StopTrial: it was told to stop, or to pause and has.
        TypeError: a step or a save returned something else than it should.
        BaseException: whatever the class raises. An error in cleanup does not hide one before it.
    """
    steps = Steps(trainable(), current)
    current.defer_pause = True
    try:
        steps.set_up(config)
        steps.run()
    except BaseException as error:
        steps.clean_up(error)
        raise
    steps.clean_up(None)


def export_model(
    trainable: type[Trainable],
    config: dict[str, Any],
    checkpoint: Checkpoint | None,
    format: str,  # noqa: A002 - it is what everybody calls it
    folder: Path,
) -> None:
    """Make a trial's model again from its checkpoint, in this process, and have it written into a folder.

    Args:
        trainable: the class that was tuned.
        config: the trial's config.
        checkpoint: what the model is in; None for a class without checkpoints.
        format: one of the class's ``export_formats``.
        folder: where the files go; it is made if it isn't there.

    Raises:
        ConfigurationError: the class does not write this format.
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
            instance.load_checkpoint(checkpoint.data if checkpoint.is_dict else checkpoint.path)
        instance.export_model(format, folder)
    finally:
        instance.cleanup()


class Steps:
    """One attempt of a class."""

    def __init__(self, trainable: Trainable, current: Session) -> None:
        self._trainable = trainable
        self._session = current
        self._name = type(trainable).__name__
        self._can_save = _defines(type(trainable), "save_checkpoint")
        self._totals: dict[str, Any] = {}
        self._steps = 0
        self._seconds = 0.0
        #: The iteration of the newest checkpoint; before the first step there is nothing to save.
        self._saved_at = 0
        #: Whether the last save was a dict: then no folder need lie in the store.
        self._saves_dicts = False
        self._refused_wish = False
        #: Whether it is between two steps, and none was interrupted.
        self.is_whole = False

    def set_up(self, config: dict[str, Any]) -> None:
        """Set up a new instance."""
        trainable = self._trainable
        trainable.config, trainable.trial_id, trainable.folder = config, self._session.trial, self._session.folder
        trainable.setup(config)

    def reset(self, config: dict[str, Any]) -> object:
        """Give the instance of an earlier attempt another config, and return what its reset_config said."""
        trainable = self._trainable
        trainable.trial_id, trainable.folder = self._session.trial, self._session.folder
        trainable.training_iteration, trainable.time_total_s = 0, 0.0
        answer = trainable.reset_config(config)
        trainable.config = config
        return answer

    def run(self) -> None:
        """Load the checkpoint, if there is one to start from, and do all steps."""
        self._restore()
        self.is_whole = not self._session.heard
        done = False
        while not done:
            self._obey()
            done = self._step()

    def clean_up(self, first: BaseException | None) -> None:
        """Call cleanup, whose error is told, but doesn't hide *first*."""
        # From here on a late stop changes nothing.
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
        self._trainable.load_checkpoint(checkpoint.data if checkpoint.is_dict else checkpoint.path)
        counters = dict(checkpoint.counters)
        self._trainable.training_iteration = self._saved_at = int(counters.get(ITERATION, 0))
        self._trainable.time_total_s = float(counters.get(TIME_TOTAL, 0.0))
        self._totals = {total: counters[total] for total in _COUNTED.values() if total in counters}

    def _obey(self) -> None:
        """Do what was asked for meanwhile: save, pause, or both."""
        told = self._session.wanted
        if told:
            if told == "pause" and self._can_save and self._saved_at != self._trainable.training_iteration:
                self._save()
            raise StopTrial(told)
        if not self._session.save_wanted or self._refused_wish:
            return
        if self._can_save:
            self._save()
        else:
            self._refused_wish = True
            sys.stderr.write(f"a checkpoint was asked for, and {self._name} has no save_checkpoint\n")

    def _step(self) -> bool:
        """Do a step and report it; True when it was the last."""
        trainable = self._trainable
        began = time.monotonic()
        self.is_whole = False
        metrics = trainable.step()
        # It may have caught the StopTrial that was raised in it.
        self.is_whole = not self._session.heard
        elapsed_s = time.monotonic() - began
        if not isinstance(metrics, dict):
            raise TypeError(f"{self._name}.step returned {metrics!r}; it must return a dict such as {{'loss': 0.1}}")
        done = bool(metrics.get(_DONE))
        row = self._count({name: value for name, value in metrics.items() if name != _DONE}, elapsed_s)
        every = trainable.checkpoint_every
        due = (done and trainable.checkpoint_at_end) or (every > 0 and trainable.training_iteration % every == 0)
        try:
            if due:
                self._session.report(row, self._draw_up(), self._counters())
                self._saved_at = trainable.training_iteration
            else:
                self._session.report(row)
        except StopTrial as stop:
            # Told between two steps, it is in good order, and can still be saved.
            if stop.action == "stop" and trainable.checkpoint_at_end and not due:
                self._save()
            raise
        return done

    def _count(self, metrics: dict[str, Any], elapsed_s: float) -> dict[str, Any]:
        """Count a step, and return its report."""
        trainable = self._trainable
        self._steps += 1
        trainable.training_iteration += 1
        elapsed_s = seconds(metrics.get(TIME_THIS_ITER), elapsed_s)
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

    def _counters(self) -> Mapping[str, Any]:
        trainable = self._trainable
        return {
            ITERATION: trainable.training_iteration,
            TIME_TOTAL: trainable.time_total_s,
            **self._totals,
        }

    def _save(self) -> None:
        """Save without a report."""
        self._session.save(self._draw_up(), self._counters())
        self._saved_at = self._trainable.training_iteration

    def _scratch(self) -> Path:
        folder = self._session.scratch / "dict"
        folder.mkdir()
        return folder

    def _draw_up(self) -> dict[str, Any] | Path:
        """Have the trainable save its state, and return that: a dict, or the folder with the files."""
        folder = self._scratch() if self._saves_dicts else self._session.draft()
        was_whole, heard, self.is_whole = self.is_whole, self._session.heard, False
        try:
            saved: Any = self._trainable.save_checkpoint(folder)
            self.is_whole = was_whole and self._session.heard == heard
            if isinstance(saved, dict):
                if any(folder.iterdir()):
                    raise TypeError(f"{self._name}.save_checkpoint returned a dict and wrote files; do one of the two")
                shutil.rmtree(folder)
                self._saves_dicts = True
                return saved
            if saved is None or (isinstance(saved, str | os.PathLike) and _is_in(Path(saved), folder)):
                return folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        raise TypeError(
            f"{self._name}.save_checkpoint returned {saved!r}; write files into the folder that it gets and return "
            "nothing, or return a dict"
        )


def _is_in(path: Path, folder: Path) -> bool:
    """Whether older code returns, as it may, the folder or something in it."""
    return path.resolve().is_relative_to(folder.resolve())


def _defines(trainable: type, method: str) -> bool:
    return getattr(trainable, method) is not getattr(Trainable, method)
