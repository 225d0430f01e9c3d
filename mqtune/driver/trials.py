"""The handle on one trial in the driver's own process.

It steers the trial, and reads its output and checkpoints.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from mqtune.checkpoints import Checkpoint
from mqtune.client import Answer, TrialHandle
from mqtune.core.errors import BrokerUnavailable, ConfigurationError, LogUnavailable
from mqtune.core.trial import CheckpointId, Trial, TrialId
from mqtune.driver.driver import Driver
from mqtune.journal.logs import LogStream
from mqtune.results.checkpoints import Which, checkpoint_of, choose_checkpoint, fetch_checkpoint, import_checkpoint
from mqtune.results.logs import AttemptOutput, attempt_of
from mqtune.trainable.class_ import export_model

logger = logging.getLogger(__name__)


class LocalSteering:
    """Carries out actions on an experiment immediately, in its driver's process.

    Args:
        open_driver: connects, if need be, and returns the driver.
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
        """Carry an action out; it takes no time, and is no request.

        Raises:
            InvalidTransition: the trial's status doesn't allow it.
            ConfigurationError: there is no such trial or checkpoint, or an argument is invalid.
            StoreUnavailable: the store that a checkpoint of this machine is copied to can't be reached or written.
        """
        driver = self._open()
        brought = self.bring(action, trial, arguments)
        driver.steer(action, trial, arguments, brought=brought)
        return Answer(request_id, is_done=True, trial=trial)

    def bring(self, action: str, trial: str, arguments: dict[str, object]) -> CheckpointId:
        """Copy the checkpoint folder that the arguments name into the store, and return its id there.

        The arguments lose it. All else in them is checked before. The id is empty if they name no folder.
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
    """Steers one trial immediately, in the driver's process, and reads its output and checkpoints.

    Each call is checked before anything is done: a call that raises has changed nothing. The worker of a running trial
    obeys within milliseconds as a rule, and later steps see it. No call waits.

    Args:
        id: the trial's.
        open_driver: connects, if need be, and returns the driver.
        look: the same, and returns the driver also after it was closed.
    """

    def __init__(self, id: str, open_driver: Callable[[], Driver], look: Callable[[], Driver]) -> None:  # noqa: A002 - as trials call it
        super().__init__(id, LocalSteering(open_driver))
        self._open, self._look = open_driver, look

    @property
    def record(self) -> Trial:
        """The trial as the journal has it; to be read only.

        Raises:
            ConfigurationError: there is no such trial.
        """
        experiment = self._look().experiment
        trial = experiment.trials.get(TrialId(self.id))
        if trial is None:
            raise ConfigurationError(
                f"there is no trial {self.id!r} in experiment {experiment.name!r}; "
                f"it has {len(experiment.trials)}, from '0001' on"
            )
        return trial

    def annotate(self, *, tags: Sequence[str] | None = None, notes: str | None = None) -> None:
        """Replace the tags or the notes of the trial, in any status.

        An argument that is left out changes nothing.

        Raises:
            ConfigurationError: they are no tags, or no notes.
        """
        trial = self.record
        self._open().label(trial, trial.labels.changed(tags, notes))

    def delete_checkpoints(self, *, even_best: bool = False, even_paused: bool = False) -> list[CheckpointId]:
        """Delete the trial's checkpoints in spite of the retention, and return their ids.

        A checkpoint stays while something may start from it: a trial that has not ended, an attempt under way, a
        waiting restart. Dicts are gone immediately, folders shortly after.

        Args:
            even_best: whether it may be the best trial so far.
            even_paused: whether a paused trial loses what it would go on from too, so that it begins from scratch.

        Raises:
            ConfigurationError: it is the best trial.
        """
        driver, trial = self._open(), self.record
        if trial.id in driver.experiment.leaders and not even_best:
            raise ConfigurationError(
                f"trial {trial.id} is the best so far, and its checkpoints are what the run was for; give "
                f"even_best=True to "
                "delete them all the same"
            )
        if even_paused:
            driver.checkpoints.release_paused(trial)
        return driver.delete_checkpoints(trial)

    def stdout(self, *, attempt: int | None = None, offset: int = 0) -> list[str]:
        """Return the lines that an attempt has printed so far, also while it runs.

        They are read where they are: on this machine, or in a folder that its worker shares with it; else the worker is
        asked for them, also after the attempt has ended. Where that fails a warning says why, and it is the last lines
        that the journal has, once the attempt has ended. ``mqtune logs`` and ``mqtune.follow_log`` follow them.

        Args:
            attempt: which attempt; by default the last.
            offset: how many bytes are left out; below 0, how many from the end are not.

        Raises:
            ConfigurationError: there is no such attempt.
        """
        return self._printed("stdout", attempt, offset)

    def stderr(self, *, attempt: int | None = None, offset: int = 0) -> list[str]:
        """Return the lines that an attempt has printed on stderr, as ``stdout`` does."""
        return self._printed("stderr", attempt, offset)

    def _printed(self, stream: LogStream, number: int | None, offset: int) -> list[str]:
        trial, driver = self.record, self._look()
        name, attempt = driver.experiment.name, attempt_of(trial.attempts, trial.id, number)
        output = AttemptOutput(name, trial.id, attempt, stream, driver.backend.read_log)
        try:
            data = output.all(offset)
        except (LogUnavailable, BrokerUnavailable) as error:
            logger.warning("trial %s: of its output only the end is known: %s", trial.id, error)
            data = output.tail
        return data.decode(errors="replace").splitlines()

    def get_checkpoint(self, which: Which = "newest", *, target: Path | None = None) -> Checkpoint:
        """Return a checkpoint of the trial.

        A folder is copied to this machine, to *target* or below ``Tuner.folder``.

        Args:
            which: "newest", or "best": the kept one with the best value.
            target: the new folder to copy to.

        Raises:
            as ``mqtune.results.checkpoints.fetch_checkpoint``.
        """
        driver, trial = self._look(), self.record
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
        """Restore the trial's model from its newest checkpoint, and have its class write it to *folder*.

        Raises:
            ConfigurationError: the trainable is no class, or does not write this format.
        """
        settings, trial = self._look().settings, self.record
        trainable = settings.spec.load(settings.code_root)
        if not isinstance(trainable, type):
            raise ConfigurationError(
                f"trainable {settings.spec} is not a class; only a subclass of mqtune.Trainable can export its model"
            )
        checkpoint = self.get_checkpoint() if trial.checkpoint else None
        export_model(trainable, trial.config, checkpoint, format, folder)
