"""The handle on one trial in the driver's own process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from mqtune.checkpoints import Checkpoint
from mqtune.client import Answer, TrialHandle
from mqtune.core.errors import BrokerUnavailable, ConfigurationError, LogUnavailable
from mqtune.core.trial import CheckpointId, Trial, TrialId
from mqtune.driver.driver import Driver
from mqtune.journal.exchange.logs import LogStream
from mqtune.results.checkpoints import Which, checkpoint_of, choose_checkpoint, fetch_checkpoint, import_checkpoint
from mqtune.results.logs import AttemptOutput, attempt_of
from mqtune.trainable.class_ import export_model

logger = logging.getLogger(__name__)


class LocalSteering:
    """Carries out actions on an experiment immediately, in its driver's process.

    Args:
        open_driver: returns the driver. The first call connects.
    """

    def __init__(self, open_driver: Callable[[], Driver]) -> None:
        self._open = open_driver

    def steer(
        self,
        action: str,
        trial: str,
        arguments: dict[str, object],
        *,
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Carry out an action immediately. *wait_s* has no effect.

        Raises:
            InvalidTransition: the trial's status doesn't allow the action.
            ConfigurationError: there is no such trial or checkpoint, or an argument is invalid.
            StoreUnavailable: a checkpoint folder can't be copied, because the store can't be reached or written.
        """
        driver = self._open()
        brought = self.bring(action, trial, arguments)
        driver.steer(action, trial, arguments, brought=brought)
        return Answer(request_id, is_done=True, trial=trial)

    def bring(self, action: str, trial: str, arguments: dict[str, object]) -> CheckpointId:
        """Copy the checkpoint folder in *arguments* into the store, and return its id there.

        If the argument ``checkpoint`` is not a folder, return an empty id. The argument is removed, and the others are
        checked before the copy.
        """
        origin = arguments.get("checkpoint")
        if origin in (None, "newest", "best", "decided"):
            return CheckpointId("")
        source = arguments.get("source")
        owner = None if source is None else TrialId(str(source))
        driver = self._open()
        chosen = choose_checkpoint(driver.experiment, owner, origin)
        if isinstance(chosen, str):
            return CheckpointId("")
        del arguments["checkpoint"]
        driver.requests.check(action, trial, arguments)
        return import_checkpoint(TrialId(trial), chosen, driver.place.definition["store"])


class DrivenTrial(TrialHandle):
    """Steers one trial in the driver's process, and reads its output and checkpoints.

    Actions are checked first, so a call that raises has changed nothing. No call waits for the trial: the worker of a
    running trial usually reacts within milliseconds, and later steps of the driver process the result.

    Args:
        id: the trial's id.
        open_driver: returns the driver. The first call connects.
        get_driver: like *open_driver*, but also returns a driver that was closed.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - as trials call it
        open_driver: Callable[[], Driver],
        get_driver: Callable[[], Driver],
    ) -> None:
        super().__init__(id, LocalSteering(open_driver))
        self._open, self._get_driver = open_driver, get_driver

    @property
    def record(self) -> Trial:
        """The driver's own object of this trial: don't change it.

        Raises:
            ConfigurationError: there is no such trial.
        """
        experiment = self._get_driver().experiment
        trial = experiment.trials.get(TrialId(self.id))
        if trial is None:
            raise ConfigurationError(
                f"there is no trial {self.id!r} in experiment {experiment.name!r}; "
                f"it has {len(experiment.trials)}, from '0001' on"
            )
        return trial

    def annotate(self, *, tags: Sequence[str] | None = None, notes: str | None = None) -> None:
        """Replace the trial's tags or notes, in any status. None leaves them as they are.

        Raises:
            ConfigurationError: the tags or notes are invalid.
        """
        trial = self.record
        self._open().label(trial, trial.labels.changed(tags, notes))

    def delete_checkpoints(self, *, even_best: bool = False, even_paused: bool = False) -> list[CheckpointId]:
        """Delete the trial's checkpoints, whatever the retention rule, and return their ids.

        A checkpoint stays while something may start from it: an unfinished trial, an attempt under way or a waiting
        restart. Dict checkpoints are deleted immediately, and folders shortly after.

        Args:
            even_best: whether to delete them even if this is the best trial so far.
            even_paused: whether to delete also the checkpoints from which this paused trial would resume. It then
                starts from scratch.

        Raises:
            ConfigurationError: this is the best trial so far, and *even_best* is false.
        """
        driver, trial = self._open(), self.record
        if trial.id in driver.experiment.leaders and not even_best:
            raise ConfigurationError(
                f"trial {trial.id} is the best so far; give even_best=True to delete its checkpoints nevertheless"
            )
        if even_paused:
            driver.checkpoints.release_paused(trial)
        return driver.delete_checkpoints(trial)

    def stdout(self, *, attempt: int | None = None, offset: int = 0) -> list[str]:
        """Return the lines that an attempt has printed so far, even while it runs.

        The output is read from a folder that this machine can reach, or else from the worker. If both fail, a warning
        says why, and only the last lines are returned, which the journal has after the attempt's end. To follow the
        output, use ``mqtune logs`` or ``mqtune.follow_log``.

        Args:
            attempt: the attempt's number. By default the last attempt.
            offset: number of bytes to skip. If negative, return only that many bytes from the end.

        Raises:
            ConfigurationError: there is no such attempt.
        """
        return self._read_output("stdout", attempt, offset)

    def stderr(self, *, attempt: int | None = None, offset: int = 0) -> list[str]:
        """Return the lines that an attempt has printed on stderr. See ``stdout``."""
        return self._read_output("stderr", attempt, offset)

    def _read_output(self, stream: LogStream, number: int | None, offset: int) -> list[str]:
        trial, driver = self.record, self._get_driver()
        name, attempt = driver.experiment.name, attempt_of(trial.attempts, trial.id, number)
        output = AttemptOutput(name, trial.id, attempt, stream, driver.backend.read_log)
        try:
            data = output.all(offset)
        except (LogUnavailable, BrokerUnavailable) as error:
            logger.warning("trial %s: only the end of its output can be read: %s", trial.id, error)
            data = output.tail
        return data.decode(errors="replace").splitlines()

    def get_checkpoint(self, which: Which = "newest", *, target: Path | None = None) -> Checkpoint:
        """Return a checkpoint of the trial. A folder checkpoint is copied to this machine.

        Args:
            which: "newest", or "best": the kept checkpoint whose report has the best value.
            target: the new folder to copy to. By default one below ``Tuner.folder``.

        Raises:
            as ``mqtune.results.checkpoints.fetch_checkpoint``.
        """
        driver, trial = self._get_driver(), self.record
        name, place = checkpoint_of(driver.experiment, trial, which), driver.place
        return fetch_checkpoint(
            trial,
            name,
            store=place.definition["store"],
            folder=place.folder,
            target=target,
            read=driver.read_checkpoint,
        )

    def export_model(self, format: str, folder: Path) -> None:  # noqa: A002 - as everybody calls it
        """Restore the trial's model from its newest checkpoint, and write it to *folder*.

        Raises:
            ConfigurationError: the trainable is not a class, or can't write this format.
        """
        settings, trial = self._get_driver().settings, self.record
        trainable = settings.spec.load(settings.code_root)
        if not isinstance(trainable, type):
            raise ConfigurationError(
                f"trainable {settings.spec} is not a class; only a subclass of mqtune.Trainable can export its model"
            )
        checkpoint = self.get_checkpoint() if trial.checkpoint else None
        export_model(trainable, trial.config, checkpoint, format, folder)
