"""The garbage collector of checkpoints.

It protects checkpoints from which something may start. The retention rule chooses among the others.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Container, Hashable, Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from mqtune.checkpoints import CheckpointStore
from mqtune.core.errors import MqtuneError
from mqtune.core.events import (
    AttemptEnded,
    CheckpointSaved,
    CheckpointsDropped,
    DecisionTaken,
    Event,
    TrialClosed,
    TrialStaged,
)
from mqtune.core.experiment import Experiment
from mqtune.core.machine import DICTS
from mqtune.core.trial import CheckpointId, Trial, TrialId, TrialStatus, attempt_and_number, is_in_memory, trial_of
from mqtune.driver.setup.options import Checkpoints, Deletes
from mqtune.driver.setup.retention import References
from mqtune.driver.writing.actions import Drop
from mqtune.journal.base import Journal

logger = logging.getLogger(__name__)

#: Longest wait for running deletions when the driver ends, in seconds. The next driver deletes the rest.
_CLOSE_S: Final = 10.0
#: After this many reported checkpoints, replaced ones are dropped. One event for all of them is cheap. As many dicts of
#: the largest size take 32 MB in Redis.
MOST_GATHERED: Final = 32
#: Seconds between two checks for replaced checkpoints, if there are fewer. Trials need longer to fill a disk, and an
#: idle driver is not woken for each checkpoint. A checkpoint after a longer pause is checked immediately.
LOOK_APART_S: Final = 10.0
_DONE: Final = frozenset({TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED})
_STOPPED: Final = frozenset({TrialStatus.EARLY_STOPPED, TrialStatus.FAILED, TrialStatus.ABANDONED})
#: For each value of ``Checkpoints(delete=…)``, the statuses in which a trial loses all its checkpoints.
_LOSE_ALL: Final[dict[Deletes, frozenset[TrialStatus]]] = {
    False: frozenset(),
    "stopped": _STOPPED,
    True: _STOPPED | {TrialStatus.COMPLETED},
    "all": _STOPPED | {TrialStatus.COMPLETED},
}


def bring_dicts(journal: Journal, folder: Path, named: Iterable[CheckpointId]) -> list[CheckpointId]:
    """Upload dict checkpoints that the server has lost, from files in the experiment's folder.

    Args:
        named: ids of all dict checkpoints that the server should have.

    Returns:
        The ids of lost checkpoints without a file.
    """
    named = list(named)
    on_server = journal.checkpoints() if named else set()
    lost = []
    for checkpoint in named:
        if checkpoint in on_server:
            continue
        try:
            data = (folder / DICTS / checkpoint).read_bytes()
        except OSError:
            lost.append(checkpoint)
        else:
            journal.bring_checkpoint(checkpoint, data)
    if lost:
        logger.warning(
            "Redis has lost %d checkpoints; their trials continue from older ones in the store, or start from scratch",
            len(lost),
        )
    return lost


class CheckpointGC:
    """Finds unneeded checkpoints, and deletes them.

    Methods return ``Drop`` actions. When a drop is journaled, a thread deletes the folders. Checkpoints that newer ones
    have replaced are gathered, and dropped together: after ``MOST_GATHERED`` of them, or at ``due_s``. Each is checked
    again before that.

    A checkpoint is *named* while something may start from it: a trial that may continue, an attempt that began with it,
    or a decided restart. Named checkpoints are never dropped. The checkpoints of the best trial, or of the best
    ``keep_trials`` trials, are not dropped either, unless the user chose ``delete="all"``.
    """

    def __init__(
        self,
        experiment: Experiment,
        options: Checkpoints,
        store: CheckpointStore | None,
        *,
        keeps_dicts: bool = False,
    ) -> None:
        self._experiment = experiment
        self._retention = options.retention.of(experiment.metric, experiment.mode, experiment.objective.constraints)
        self._store = store
        self._lose_all = _LOSE_ALL[options.delete]
        #: Whether the user's loop may later start from trials that have completed or were stopped.
        self._keeps_dicts = keeps_dicts
        self._spares_best = options.delete != "all"
        self._keep_trials = options.keep_trials
        self._references = References()
        #: Ended trials that keep their checkpoints because they are the best, or were it until recently.
        self._spared: dict[TrialId, None] = {}
        #: For each checkpoint reported since the last check, its trial and the replaced checkpoint.
        self._gathered: list[tuple[Trial, CheckpointId]] = []
        self._next_check_s = -math.inf
        self._deletions: SimpleQueue[CheckpointId | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def hear(self, event: Event) -> list[Drop]:
        """Return drops of checkpoints that an event made unneeded. Delete dropped checkpoints."""
        match event:
            case TrialStaged() | DecisionTaken() | CheckpointSaved() | AttemptEnded() | TrialClosed():
                return self.changed(self._experiment.trials[event.trial])
            case CheckpointsDropped():
                self._delete(event.checkpoints)
            case _:
                pass
        return []

    def changed(self, trial: Trial) -> list[Drop]:
        """Return drops of checkpoints that nothing needs after a change of *trial*."""
        if not (trial.checkpoints or self._references or trial.checkpoint or trial.restart or trial.pause_point):
            # No checkpoint is named, and the trial neither has nor needs one.
            return []
        freed = self._update_names(trial)
        return self._unneeded(dict.fromkeys([trial.id, *map(trial_of, freed)]))

    def saved(self, trial: Trial, checkpoint: CheckpointId, *, at_once: bool) -> list[Drop]:
        """Note the checkpoint of a report of *trial*.

        With *at_once*, or if many checkpoints are gathered, return drops of replaced ones.
        """
        if checkpoint != trial.checkpoint:
            # The report was late, so the trial did not get the checkpoint.
            return []
        # A report changes only this name of a trial.
        self._gathered.append((trial, self._references.hold((trial.id, "state"), checkpoint)))
        return self.gathered() if at_once or len(self._gathered) >= MOST_GATHERED else []

    def gathered(self) -> list[Drop]:
        """Return drops of all gathered checkpoints that nothing needs any more."""
        gathered, self._gathered = self._gathered, []
        checkpoints: dict[CheckpointId, None] = {}
        trials: dict[TrialId, None] = {}
        for trial, freed in gathered:
            if not (freed in trial.checkpoints and is_in_memory(freed) and is_in_memory(trial.checkpoint)):
                trials.update(dict.fromkeys([trial.id, trial_of(freed)]))
            elif freed not in self._references and freed != next(reversed(trial.checkpoints)):
                # The retention rule never keeps an older dict, so the other checkpoints need no check.
                checkpoints[freed] = None
        checkpoints.update(dict.fromkeys(self._find_unneeded(trials)))
        return _drops(list(checkpoints))

    @property
    def due_s(self) -> float:
        """The time of the next check, on the clock of ``settled``.

        Infinite if no checkpoint is gathered.
        """
        return self._next_check_s if self._gathered else math.inf

    @property
    def is_unsettled(self) -> bool:
        """Whether a trial that keeps its checkpoints as the best may no longer be the best."""
        return bool(self._spared)

    def settled(self, now_s: float) -> Iterable[Drop]:
        """Return drops that are due after a batch of events.

        They are drops of former best trials' checkpoints, and of replaced checkpoints. Carry out each drop before
        asking for the next one. *now_s* is the monotonic time in seconds.
        """
        is_due = self._gathered and now_s >= self._next_check_s
        return self._settle(now_s) if is_due or self.is_unsettled else ()

    def _settle(self, now_s: float) -> Iterator[Drop]:
        best = self._best_of_spared()
        over = [id_ for id_ in self._spared if id_ not in best]
        for id_ in over:
            del self._spared[id_]
        yield from self._unneeded(over)
        if self.due_s <= now_s:
            self._next_check_s = now_s + LOOK_APART_S
            yield from self.gathered()

    def check_all(self, journal: Journal, folder: Path) -> Iterator[Drop]:
        """Yield drops of all unneeded checkpoints after a replay.

        Carry out each drop before asking for the next one. Dict checkpoints that the server has lost are restored from
        the experiment's folder, or else dropped.
        """
        trials = self._experiment.trials.values()
        dicts = (checkpoint for trial in trials for checkpoint in trial.checkpoints if is_in_memory(checkpoint))
        yield from _drops(bring_dicts(journal, folder, dicts))
        for trial in list(self._experiment.trials.values()):
            self._update_names(trial)
        yield from self._unneeded(list(self._experiment.trials))
        yield from self.find_orphans(journal)
        if self._store is not None:
            self._start_thread()

    def release_paused(self, trial: Trial) -> None:
        """Stop keeping the checkpoints from which a paused trial would continue."""
        if trial.status is TrialStatus.PAUSED:
            for role, named in (("state", trial.checkpoint), ("pause point", trial.pause_point)):
                if named in trial.checkpoints:
                    self._references.hold((trial.id, role), CheckpointId(""))

    def unnamed(self, trial: Trial) -> list[CheckpointId]:
        """Return all checkpoints of a trial from which nothing may start, even if they are the best."""
        return [checkpoint for checkpoint in trial.checkpoints if checkpoint not in self._references]

    def hold(self, holder: Hashable, checkpoint: CheckpointId) -> list[Drop]:
        """Keep this checkpoint for *holder*, and no longer the holder's earlier one.

        An empty id keeps none. Return drops of checkpoints that are unneeded then.
        """
        freed = self._references.hold(holder, checkpoint)
        return self._unneeded([trial_of(freed)]) if freed else []

    def hold_for_decision(self, trial: Trial, checkpoint: CheckpointId) -> None:
        """Keep a checkpoint for a decision to pause *trial*, until the trial continues or ends."""
        self._references.hold((trial.id, "plan"), checkpoint)

    def _update_names(self, trial: Trial) -> list[CheckpointId]:
        """Keep the checkpoints that a trial needs now, and release others.

        Return released checkpoints from which nothing may start any more.
        """
        state = attempt = restart = pause_point = CheckpointId("")
        is_terminal = trial.status.is_terminal
        if not is_terminal:
            state = trial.checkpoint
            attempt = trial.attempt.checkpoint if trial.attempt.end is None else attempt
            restart = trial.restart.checkpoint if trial.restart else restart
            pause_point = trial.pause_point or pause_point
        named = [("state", state), ("attempt", attempt), ("restart", restart), ("pause point", pause_point)]
        if is_terminal or trial.decision is None:
            named.append(("plan", CheckpointId("")))
        return [freed for role, one in named if (freed := self._references.hold((trial.id, role), one))]

    def _unneeded(self, trials: Iterable[TrialId]) -> list[Drop]:
        """Return drops of the unneeded checkpoints of these trials."""
        return _drops(list(self._find_unneeded(trials)))

    def _find_unneeded(self, trials: Iterable[TrialId]) -> Iterator[CheckpointId]:
        for id_ in trials:
            trial = self._experiment.trials.get(id_)
            if trial is not None and trial.checkpoints:
                yield from self._unneeded_of(trial)

    def _unneeded_of(self, trial: Trial) -> list[CheckpointId]:
        unneeded = self._retention.to_delete(trial.checkpoints, self._references)
        if not trial.status.is_terminal:
            return unneeded
        over = set(unneeded)
        if not self._is_spared(trial):
            loses_all = trial.status in self._lose_all
            # A dict in Redis serves to continue its trial, and not as an archive.
            keeps = self._keeps_dicts and trial.status in _DONE
            over |= {id_ for id_ in trial.checkpoints if loses_all or (is_in_memory(id_) and not keeps)}
        return [id_ for id_ in trial.checkpoints if id_ in over and id_ not in self._references]

    def _is_spared(self, trial: Trial) -> bool:
        """Return whether an ended trial keeps its checkpoints because it is one of the best.

        Note it if so.
        """
        is_leader = trial.id in self._experiment.leaders
        may_be_spared = self._keep_trials > 1 and not (trial.is_abandoned or math.isnan(trial.best_value))
        if not (self._spares_best and (is_leader or may_be_spared)):
            return False
        self._spared[trial.id] = None
        if is_leader or trial.id in self._best_of_spared():
            return True
        # Otherwise each batch of events would look at it again.
        del self._spared[trial.id]
        return False

    def _best_of_spared(self) -> Container[TrialId]:
        """Return the leaders and, up to ``keep_trials`` in all, the best of the other noted trials."""
        experiment, leaders = self._experiment, self._experiment.leaders
        others = [experiment.trials[id_] for id_ in self._spared if id_ not in leaders]
        sign = 1 if experiment.mode == "min" else -1
        others.sort(key=lambda trial: (not experiment.is_feasible(trial), sign * trial.best_value))
        return {*leaders, *(trial.id for trial in others[: max(0, self._keep_trials - len(leaders))])}

    def find_orphans(self, journal: Journal) -> list[Drop]:
        """Return drops of orphans: dict checkpoints in Redis that no event has, and none will have.

        Either the worker died before the checkpoint was reported, or it wrote a dropped one again after an outage.
        """
        trials = self._experiment.trials
        known = {checkpoint for trial in trials.values() for checkpoint in trial.checkpoints}
        orphans = [
            checkpoint
            for checkpoint in journal.checkpoints() - known
            if (trial := trials.get(trial_of(checkpoint))) and _is_past(checkpoint, trial)
        ]
        return _drops(sorted(orphans))

    def _delete(self, checkpoints: Iterable[str]) -> None:
        if self._store is None:
            return
        for checkpoint in map(CheckpointId, checkpoints):
            if not is_in_memory(checkpoint):
                self._deletions.put(checkpoint)
        self._start_thread()

    def _start_thread(self) -> None:
        if self._thread is None:
            # A store may be slow, and no decision may wait for it.
            self._thread = threading.Thread(target=self._delete_folders, name="mqtune-deletions", daemon=True)
            self._thread.start()

    def _delete_orphans(self, store: CheckpointStore) -> None:
        """Delete checkpoints in the store that no event has, and none will have.

        Either an earlier driver dropped the checkpoint and died before the deletion, or the trial's process or worker
        died before the report.
        """
        try:
            store.sweep()
            for checkpoint in store.ids():
                trial = self._experiment.trials.get(trial_of(checkpoint))
                if trial is not None and checkpoint not in trial.checkpoints and _is_past(checkpoint, trial):
                    store.delete(checkpoint)
        except MqtuneError as error:
            logger.warning("orphaned checkpoints in the store could not be deleted: %s", error)

    def _delete_folders(self) -> None:
        store = self._store
        assert store is not None  # noqa: S101 - there would be no thread
        self._delete_orphans(store)
        while (checkpoint := self._deletions.get()) is not None:
            try:
                store.delete(checkpoint)
            except MqtuneError as error:
                logger.warning("checkpoint %s could not be deleted: %s", checkpoint, error)
        # A trial that ended between saving and reporting a checkpoint has left an orphan.
        self._delete_orphans(store)

    def close(self) -> None:
        """Wait for pending deletions, for at most 10 s."""
        if self._thread is not None:
            self._deletions.put(None)
            self._thread.join(_CLOSE_S)


def _drops(checkpoints: list[CheckpointId]) -> list[Drop]:
    return [Drop(checkpoints)] if checkpoints else []


def _is_past(checkpoint: CheckpointId, trial: Trial) -> bool:
    """Whether no later report can have this checkpoint.

    Then its attempt has ended, or has reported a later checkpoint.
    """
    attempt, number = attempt_and_number(checkpoint)
    if attempt == 0:
        # A person has copied it into the store, and may be about to start the trial from it.
        return trial.status.is_terminal
    if not 0 < attempt <= len(trial.attempts):
        return False
    newest = attempt_and_number(trial.checkpoint) if trial.checkpoint in trial.checkpoints else (0, 0)
    return trial.attempts[attempt - 1].end is not None or (attempt, number) < newest
