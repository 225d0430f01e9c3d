"""What a user does to the trials of an experiment by hand, and sees of them, while a driver has it."""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mqtune.core.checks import optional_seconds
from mqtune.core.errors import BrokerUnavailable, ConfigurationError, LogUnavailable
from mqtune.core.trial import (
    NO_LABELS,
    Action,
    CheckpointId,
    Config,
    Report,
    Restart,
    Trial,
    TrialId,
    TrialStatus,
    trial_of,
)
from mqtune.driver.actions import Decide, Save, Stage, check_decision, check_paused, next_trial_id, resuming
from mqtune.driver.slots import Addition
from mqtune.results.checkpoints import Origin, Which, bring_checkpoint, chosen, fetch_checkpoint, named
from mqtune.results.logs import LogStream, Output, attempt_of
from mqtune.trainable.class_ import export_model

if TYPE_CHECKING:
    from mqtune.checkpoints import Checkpoint
    from mqtune.core.experiment import Experiment
    from mqtune.core.resources import Resources
    from mqtune.driver.loop import Driver
    from mqtune.driver.settings import Plan
    from mqtune.results.results import Results

__all__ = ["Control"]

logger = logging.getLogger(__name__)


class Control(ABC):
    """The part of a tuner that handles single trials.

    What is asked for is checked before anything is done: a call that raises has changed nothing. What it asks of a
    running trial is carried out by its worker, within milliseconds as a rule, and seen by later steps. A *trial* is a
    ``Trial`` or its id.
    """

    #: The experiment's folder on this machine.
    folder: Path
    _plan: Plan
    _experiment: Experiment

    def __init__(self) -> None:
        self._collected: list[Report] | None = None
        self._failures_told: set[TrialId] = set()

    @abstractmethod
    def _open(self) -> Driver:
        """Return the driver; the first call connects."""

    def _look(self) -> Driver:
        """Return the driver, to look at what it has seen; the first call connects."""
        return self._open()

    def _catch_up(self) -> None:
        """Have ``_experiment`` hold what there is of it, as far as that can be had; the first call connects."""
        self._look()

    @abstractmethod
    def results(self) -> Results:
        """Return the results so far."""

    # Starting.

    def add_trial(
        self,
        config: Config,
        *,
        source: Trial | str | None = None,
        checkpoint: str | None = None,
        ttl_s: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
    ) -> None:
        """Have a config tried next, before the searcher's, when a slot is free; what it leaves out is sampled.

        Args:
            config: what to try.
            source: a trial from whose checkpoint, as of now, the new one starts; it is kept until then.
            checkpoint: which: "newest", the default; "best", of those that are kept, and without *source* the best trial's;
                or the id of any checkpoint that is kept.
            ttl_s: how long an attempt of it may run, in seconds.
            tags: names by which it is found again, as ``Results.find`` does.
            notes: what there is to say about it.

        Raises:
            SpaceError: it does not fit the space.
            ConfigurationError: there is no such checkpoint, or tags or notes are none.
        """
        addition = self._addition(config, ttl_s, tags, notes)
        origin, found = self._chosen(source, checkpoint)
        if not isinstance(found, str):
            raise ConfigurationError(
                f"checkpoint={checkpoint!r}: only start_trial, resume_trial and restart_trial take a folder of this machine"
            )
        self._open().add(replace(addition, source=origin, checkpoint=found))

    def start_trial(
        self,
        config: Config,
        *,
        source: Trial | str | None = None,
        checkpoint: Origin | None = None,
        ttl_s: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
    ) -> Trial:
        """Stage a trial now, whether or not a slot is free, and return it; else as ``add_trial``.

        Args:
            config: what to try.
            source: a trial from whose checkpoint it starts.
            checkpoint: which, as in ``add_trial``; or the path of a folder on this machine, without *source*. That is copied
                into the experiment's store, and becomes the trial's first checkpoint. One that lies in another
                experiment's store, or was fetched from there, keeps its counters.
            ttl_s: how long an attempt of it may run, in seconds.
            tags: names by which it is found again.
            notes: what there is to say about it.

        Raises:
            SpaceError: it does not fit the space.
            ConfigurationError: there is no such checkpoint, tags or notes are none, or there is no store that a folder could be copied into.
            StoreUnavailable: the store can't be reached or written.
        """
        driver, addition = self._open(), self._addition(config, ttl_s, tags, notes)
        new = next_trial_id(self._experiment)
        origin, name = self._origin(new, source, checkpoint)
        stage = Stage(
            trial=new,
            config=addition.config,
            by="user",
            checkpoint=name,
            source=origin,
            ttl_s=addition.ttl_s if addition.ttl_s is not None else self._plan.limits.ttl_s,
            labels=addition.labels,
        )
        return driver.stage(stage)

    def clone_trial(self, trial: Trial | str) -> Trial:
        """Stage a new trial with the config of another, from scratch, and return it."""
        found = self._trial(trial)
        return self.start_trial(found.config, ttl_s=found.ttl_s)

    def _addition(self, config: Config, ttl_s: float | None, tags: Sequence[str], notes: str) -> Addition:
        number = len(self._open().experiment.trials) + 1
        complete = self._plan.space.complete(config, random.Random(f"{self._plan.seed}:{number}"))
        labels = NO_LABELS.changed(tags, notes)
        return Addition(complete, ttl_s=optional_seconds("ttl_s", ttl_s), labels=labels)

    def _chosen(
        self, source: Trial | str | None, checkpoint: Origin | None
    ) -> tuple[TrialId | None, CheckpointId | Path | Checkpoint]:
        """Return the trial whose checkpoint is to be started from, and which it is; empty for none."""
        origin = None if source is None else self._trial(source).id
        if origin is None and checkpoint is None:
            return None, CheckpointId("")
        found = chosen(self._look().experiment, origin, "newest" if checkpoint is None else checkpoint)
        # A trial that has saved nothing yet may hand on what it began with itself, which is another one's.
        return (origin or trial_of(found)) if isinstance(found, str) else None, found

    def _origin(
        self, trial: TrialId, source: Trial | str | None, checkpoint: Origin | None
    ) -> tuple[TrialId | None, CheckpointId]:
        """Return the same for a trial that is staged at once; a folder of this machine is in the store then."""
        origin, found = self._chosen(source, checkpoint)
        if not isinstance(found, str):
            return None, bring_checkpoint(trial, found, self._plan.store)
        return (None if origin == trial else origin), found

    # Ending, pausing, going on.

    def stop_trial(self, trial: Trial | str, reason: str = "stopped by hand") -> None:
        """Stop a trial early; one that runs is told at once.

        Raises:
            InvalidTransition: it has ended already.
        """
        self._decide(trial, Action.STOP, reason)

    def complete_trial(self, trial: Trial | str, reason: str = "completed by hand") -> None:
        """End a trial as one that has done all it was meant to do.

        Raises:
            InvalidTransition: it is not staged or running.
        """
        self._decide(trial, Action.COMPLETE, reason)

    def fail_trial(self, trial: Trial | str, reason: str) -> None:
        """End a trial as FAILED: what it does makes no sense. It is not tried again.

        Raises:
            InvalidTransition: it has ended already.
        """
        self._decide(trial, Action.FAIL, reason)

    def abandon_trial(self, trial: Trial | str, reason: str) -> None:
        """Give a trial up, whatever it does: its config is never proposed again, and searchers leave it out.

        Raises:
            InvalidTransition: it has ended already.
        """
        self._decide(trial, Action.ABANDON, reason)

    def _decide(self, trial: Trial | str, action: Action, reason: str) -> None:
        self._open().carry_out(Decide(trial=self._trial(trial), action=action, by="user", reason=reason))

    def pause_trial(self, trial: Trial | str, reason: str = "paused by hand") -> None:
        """Pause a trial: it saves a checkpoint if it can, its process ends and its slot is free.

        Raises:
            InvalidTransition: it is not staged or running, or its end is decided.
        """
        self._decide(trial, Action.PAUSE, reason)

    def resume_trial(
        self,
        trial: Trial | str,
        config: Config | None = None,
        reason: str = "resumed by hand",
        *,
        checkpoint: Origin | None = None,
    ) -> Trial:
        """Stage a paused trial again, from its newest checkpoint, and with another config if a part of one is given.

        Args:
            trial: which.
            config: what is to be different from now on.
            reason: why, in a few words.
            checkpoint: where it goes on from instead: its "best", the id of any checkpoint that is kept, or the path of a
                folder on this machine, as in ``start_trial``.

        Raises:
            InvalidTransition: it isn't paused.
            SpaceError: the config does not fit the space.
            ConfigurationError: there is no such checkpoint, or no store that a folder could be copied into.
            StoreUnavailable: the store can't be reached or written.
        """
        found = self._trial(trial)
        wanted = None if config is None else self._plan.space.changed(found.config, config, random.Random(0))
        driver, origin, name = self._open(), None, CheckpointId("")
        if checkpoint is not None:
            check_paused(found)
            origin, name = self._origin(found.id, _own(found, None, checkpoint), checkpoint)
        stage = resuming(
            self._experiment, found, by="user", reason=reason, config=wanted, source=origin, checkpoint=name
        )
        return driver.stage(stage)

    def restart_trial(
        self,
        trial: Trial | str,
        config: Config | None = None,
        *,
        source: Trial | str | None = None,
        checkpoint: Origin | None = None,
        reason: str = "restarted by hand",
    ) -> None:
        """Have a trial begin anew, in place: from scratch, or from a checkpoint, and with another config.

        Of the config a part is enough, at any depth; all else stays as it is.

        A running attempt ends first; the next one is staged when it is gone, also by a later driver.

        Args:
            trial: which.
            config: what is to be different from now on.
            source: a trial from whose checkpoint it begins.
            checkpoint: which of *source*, or of its own: "newest" or "best"; the id of any checkpoint that is kept; or the
                path of a folder on this machine, as in ``start_trial``.
            reason: why, in a few words.

        Raises:
            InvalidTransition: it has ended, or its end is decided.
            ConfigurationError: there is no such checkpoint, or no store that a folder could be copied into.
            StoreUnavailable: the store can't be reached or written.
        """
        driver, found = self._open(), self._trial(trial)
        wanted = self._plan.space.changed(found.config, config or {}, random.Random(0))
        has_ended = found.attempt.end is not None
        found.check(TrialStatus.STAGED) if has_ended else check_decision(found, Action.PAUSE)
        origin, name = self._origin(found.id, _own(found, source, checkpoint), checkpoint)
        if has_ended:
            driver.carry_out(
                Stage(
                    trial=found.id,
                    config=wanted,
                    by="user",
                    reason=reason,
                    checkpoint=name,
                    source=origin,
                    ttl_s=found.ttl_s,
                )
            )
            return
        restart = Restart(wanted, name, origin, by="user", reason=reason)
        driver.carry_out(Decide(trial=found, action=Action.PAUSE, by="user", reason=reason, restart=restart))

    def save_trial(self, trial: Trial | str) -> None:
        """Have a running trial save a checkpoint as soon as it can: a class between two steps, a function when it looks.

        The checkpoint is there when ``trial.checkpoint`` has changed.

        Raises:
            InvalidTransition: it doesn't run.
        """
        driver = self._open()
        driver.carry_out(Save(self._trial(trial)))

    def delete_checkpoints(self, trial: Trial | str, *, even_best: bool = False) -> list[CheckpointId]:
        """Delete a trial's checkpoints, whatever the retention says, and return their ids.

        What may still be gone on from stays: what a trial that has not ended would go on from, and what an attempt under way,
        a restart or a config that waits begins with. Dicts are gone at once, folders within moments.

        Args:
            trial: whose.
            even_best: whether it may be the best trial so far.

        Raises:
            ConfigurationError: it is the best trial.
        """
        driver, found = self._open(), self._trial(trial)
        if found is self._experiment.best and not even_best:
            raise ConfigurationError(
                f"trial {found.id} is the best so far, and its checkpoints are what the run was for; give even_best=True to "
                "delete them all the same"
            )
        return driver.delete_checkpoints(found)

    def stop_all(self, reason: str = "stopped by hand") -> None:
        """Stop every trial that runs, waits or is paused, and start no other; they end within the next steps."""
        self._open().stop_all(reason, by="user")

    # Labels.

    def annotate_trial(
        self, trial: Trial | str, *, tags: Sequence[str] | None = None, notes: str | None = None
    ) -> None:
        """Give a trial, whatever its status, these tags or notes in place of those it has; what is left out stays.

        Raises:
            ConfigurationError: they are no tags, or no notes.
        """
        found = self._trial(trial)
        self._open().label(found, found.labels.changed(tags, notes))

    def annotate(self, *, tags: Sequence[str] | None = None, notes: str | None = None) -> None:
        """Give the experiment these tags or notes in place of those it has; what is left out stays.

        Raises:
            ConfigurationError: they are no tags, or no notes.
        """
        driver = self._open()
        driver.label(None, self._experiment.labels.changed(tags, notes))

    # Looking.

    def get_trials(self, *statuses: TrialStatus) -> list[Trial]:
        """Return all trials so far, or those with these statuses, in the order in which they were staged; to be read only."""
        self._catch_up()
        trials = list(self._experiment.trials.values())
        return [trial for trial in trials if trial.status in statuses] if statuses else trials

    def get_trial(self, trial_id: str) -> Trial:
        """Return the trial with this id.

        Raises:
            ConfigurationError: there is none.
        """
        return self._trial(trial_id)

    @property
    def busy_trials(self) -> list[Trial]:
        """The trials that hold a place: staged, running, or told to end and not gone yet."""
        return [trial for trial in self.get_trials() if trial.is_busy]

    @property
    def running_trials(self) -> list[Trial]:
        """The trials that run."""
        return self.get_trials(TrialStatus.RUNNING)

    def new_reports(self) -> list[Report]:
        """Return the reports since this was last called, first all; by their times, and by sequence within a trial.

        Reports that came after a decision on their trial are left out; the results keep them, marked.
        """
        driver = self._look()
        collected = self._collected
        if collected is None:
            # What was just decided is not in the copy yet, but the attempt counts what was accepted.
            accepted = {(trial.id, a.number): a.reports for trial in self.get_trials() for a in trial.attempts}
            collected = self._collected = [
                Report(*report[:-1])
                for report in self.results().reports()
                if report.sequence <= accepted[report.trial, report.attempt]
            ]
            driver.listen_to_reports(lambda _, report: collected.append(report))
        found = sorted(collected, key=lambda report: report.timestamp)
        collected.clear()
        return found

    def next_failed_trial(self) -> Trial | None:
        """Return the next trial that failed and was not returned before, or None."""
        self._look()
        for trial in self._experiment.trials.values():
            if trial.status is TrialStatus.FAILED and trial.id not in self._failures_told:
                self._failures_told.add(trial.id)
                return trial
        return None

    def stdout(self, trial: Trial | str, *, attempt: int | None = None, offset: int = 0) -> list[str]:
        """Return the lines that a trial's attempt has printed so far, also while it runs.

        They are read where they are: on this machine, or in a folder that its worker shares with it; else the worker is asked
        for them, also after the attempt has ended. Where that can't be had a warning says why, and it is the last lines
        that the journal has, once the attempt has ended. ``mqtune logs`` and ``mqtune.follow_log`` follow them.

        Args:
            trial: whose.
            attempt: which of its attempts; by default the last.
            offset: how many bytes are left out; below 0, how many from the end are not.

        Raises:
            ConfigurationError: there is no such attempt.
        """
        return self._printed(trial, "stdout", attempt, offset)

    def stderr(self, trial: Trial | str, *, attempt: int | None = None, offset: int = 0) -> list[str]:
        """Return the lines that a trial's attempt has printed on stderr, as ``stdout`` does."""
        return self._printed(trial, "stderr", attempt, offset)

    def _printed(self, trial: Trial | str, stream: LogStream, number: int | None, offset: int) -> list[str]:
        found = self._trial(trial)
        output = Output(found.id, attempt_of(found.attempts, found.id, number), stream, self._look().backend.read_log)
        try:
            data = output.all(offset)
        except (LogUnavailable, BrokerUnavailable) as error:
            logger.warning("trial %s: of what it printed only the end is known: %s", found.id, error)
            data = output.tail
        return data.decode(errors="replace").splitlines()

    def get_checkpoint(self, trial: Trial | str, which: Which = "newest", *, target: Path | None = None) -> Checkpoint:
        """Return a checkpoint of a trial; a folder is copied to this machine, to *target* or below ``folder``.

        Args:
            trial: whose.
            which: "newest", or "best": of those that are kept, the one with the best value.
            target: the new folder to copy to.

        Raises:
            as ``mqtune.results.checkpoints.fetch_checkpoint``.
        """
        found, driver = self._trial(trial), self._look()
        name = named(self._experiment, found, which)
        return fetch_checkpoint(
            found, name, store=self._plan.store, folder=self.folder, target=target, read=driver.read_checkpoint
        )

    def export_model(self, trial: Trial | str, format: str, folder: Path) -> None:  # noqa: A002 - as everybody calls it
        """Make a trial's model again from its newest checkpoint, in this process, and have its class write it to *folder*.

        Raises:
            ConfigurationError: the trainable is no class, or does not write this format.
        """
        trainable = self._plan.spec.load(self._plan.code_root)
        if not isinstance(trainable, type):
            raise ConfigurationError(
                f"trainable {self._plan.spec} is no class; only a subclass of mqtune.Trainable can export its model"
            )
        found = self._trial(trial)
        checkpoint = self.get_checkpoint(found) if found.checkpoint else None
        export_model(trainable, found.config, checkpoint, format, folder)

    @property
    def entry_point(self) -> Path:
        """The file that holds the trainable, on this machine."""
        return self._plan.spec.locate(self._plan.code_root)

    @property
    def slots(self) -> int:
        """How many slots fit what a trial asks for, free or not."""
        return self._look().look_at_fleet().offered(self._plan.resources)

    @property
    def free_slots(self) -> int:
        """How many of them no trial of this experiment has or waits for, nor one of another experiment has, some seconds ago."""
        return self._look().look_at_fleet().free(self._plan.resources)

    def has_resources(self, resources: Resources) -> bool:
        """Whether a slot that is free, as ``free_slots`` counts, offers this; ``resource_string`` tells what all slots offer."""
        return self._look().look_at_fleet().free(resources) > 0

    def resource_string(self) -> str:
        """Return what all slots offer, for people."""
        return self._look().backend.resource_string()

    def has_gpus(self) -> bool | None:
        """Whether any slot has a GPU; None when there is no slot to ask."""
        return self._look().backend.has_gpus()

    def _trial(self, trial: Trial | str) -> Trial:
        self._look()
        wanted = trial.id if isinstance(trial, Trial) else trial
        found = self._experiment.trials.get(TrialId(wanted))
        if found is None:
            raise ConfigurationError(
                f"there is no trial {wanted!r} in experiment {self._experiment.name!r}; "
                f"it has {len(self._experiment.trials)}, from '0001' on"
            )
        return found


def _own(trial: Trial, source: Trial | str | None, checkpoint: Origin | None) -> Trial | str | None:
    """Return whose checkpoint is meant, where a trial is to go on: its own, unless another's is named."""
    return trial if source is None and checkpoint in ("newest", "best") else source
