"""The garbage collector of checkpoints.

It names needed ones, and retention chooses among the others.
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
from mqtune.driver.actions import Drop
from mqtune.driver.options import Checkpoints, Deletes
from mqtune.driver.retention import References
from mqtune.journal.base import Journal

logger = logging.getLogger(__name__)

#: How long the driver waits, at its end, for running deletions. The next driver does the others.
_CLOSE_S: Final = 10.0
#: How many checkpoints may have been reported before it is looked which earlier ones they replace. A look writes one
#: event, which costs a report little if many share it; as many dicts of the largest size are 32 MB in Redis.
MOST_GATHERED: Final = 32
#: The seconds between two checks of fewer checkpoints: less than the time in which trials fill a disk, and enough that
#: an idle driver is not woken for each. After a longer pause a checkpoint is checked immediately.
LOOK_APART_S: Final = 10.0
_HAVE_DONE: Final = frozenset({TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED})
_STOPPED: Final = frozenset({TrialStatus.EARLY_STOPPED, TrialStatus.FAILED, TrialStatus.ABANDONED})
_LOSE_ALL: Final[dict[Deletes, frozenset[TrialStatus]]] = {
    False: frozenset(),
    "stopped": _STOPPED,
    True: _STOPPED | {TrialStatus.COMPLETED},
    "all": _STOPPED | {TrialStatus.COMPLETED},
}


def bring_dicts(journal: Journal, folder: Path, named: Iterable[CheckpointId]) -> list[CheckpointId]:
    """Restore lost dicts on the server from the experiment's folder.

    Return the others that it has lost.
    """
    named = list(named)
    held = journal.checkpoints() if named else set()
    lost = []
    for one in named:
        if one in held:
            continue
        try:
            data = (folder / DICTS / one).read_bytes()
        except OSError:
            lost.append(one)
        else:
            journal.bring_checkpoint(one, data)
    if lost:
        logger.warning(
            "Redis has lost %d checkpoints; trials go on from older ones in the store, or begin again", len(lost)
        )
    return lost


class CheckpointGC:
    """Collects unneeded checkpoints.

    It returns drops, and deletes folders once their drop is journaled, in a thread of its own. Checkpoints that reports
    have replaced are dropped together: at the latest with the ``MOST_GATHERED``-th, or when ``due_s`` has come. Each is
    checked again when it is dropped.

    A checkpoint that something *names* is never collected: the one from which a trial may continue, with which an
    attempt under way began, or with which a decided restart begins, of any trial. The best trial's checkpoints stay,
    too, unless the user wants them deleted; with ``Checkpoints(keep_trials=…)`` those of several best trials.
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
        #: Whether somebody may go on from a trial that has completed, or was stopped.
        self._keeps_dicts = keeps_dicts
        self._spares_best = options.delete != "all"
        self._keep_trials = options.keep_trials
        self._references = References()
        #: Ended trials that keep their checkpoints because they are, or were, the best.
        self._spared: dict[TrialId, None] = {}
        #: For each reported checkpoint since the last look, its trial and the checkpoint that it has replaced.
        self._gathered: list[tuple[Trial, CheckpointId]] = []
        self._next_look_s = -math.inf
        self._deletions: SimpleQueue[CheckpointId | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def hear(self, event: Event) -> list[Drop]:
        """Note the names of a trial, and return drops of unneeded checkpoints; delete dropped ones."""
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
        freed = self._note(trial)
        return self._unneeded(dict.fromkeys([trial.id, *map(trial_of, freed)]))

    def saved(self, trial: Trial, checkpoint: CheckpointId, *, at_once: bool) -> list[Drop]:
        """Note a checkpoint that came with a report of *trial*.

        Return drops *at_once*, or when there are many.
        """
        if checkpoint != trial.checkpoint:
            # It came too late to be the trial's.
            return []
        # A report changes nothing else that a trial may need.
        self._gathered.append((trial, self._references.hold((trial.id, "state"), checkpoint)))
        return self.gathered() if at_once or len(self._gathered) >= MOST_GATHERED else []

    def gathered(self) -> list[Drop]:
        """Return drops of all gathered checkpoints that nothing needs."""
        gathered, self._gathered = self._gathered, []
        checkpoints: dict[CheckpointId, None] = {}
        trials: dict[TrialId, None] = {}
        for trial, freed in gathered:
            if not (freed in trial.checkpoints and is_in_memory(freed) and is_in_memory(trial.checkpoint)):
                trials.update(dict.fromkeys([trial.id, trial_of(freed)]))
            elif freed not in self._references and freed != next(reversed(trial.checkpoints)):
                # Retention keeps no such dict, so a trial that saves nothing else need not be checked.
                checkpoints[freed] = None
        checkpoints.update(dict.fromkeys(self._found(trials)))
        return _drops(list(checkpoints))

    @property
    def due_s(self) -> float:
        """When ``settled`` is to be called, by the clock of its calls; infinite without news."""
        return self._next_look_s if self._gathered else math.inf

    @property
    def is_unsettled(self) -> bool:
        """Whether there may be trials that are no longer the best."""
        return bool(self._spared)

    def settled(self, now_s: float) -> Iterable[Drop]:
        """Return drops after a batch of events: of former best trials, and of gathered checkpoints.

        See ``look_through``.
        """
        is_due = self._gathered and now_s >= self._next_look_s
        return self._settle(now_s) if is_due or self.is_unsettled else ()

    def _settle(self, now_s: float) -> Iterator[Drop]:
        best = self._best_of_spared()
        over = [id_ for id_ in self._spared if id_ not in best]
        for id_ in over:
            del self._spared[id_]
        yield from self._unneeded(over)
        if self.due_s <= now_s:
            self._next_look_s = now_s + LOOK_APART_S
            yield from self.gathered()

    def look_through(self, journal: Journal, folder: Path) -> Iterator[Drop]:
        """Inspect every trial after a replay.

        Each drop is to be carried out before the next is asked for.

        Dicts that the server has lost are restored from the experiment's folder, or dropped.
        """
        trials = self._experiment.trials.values()
        named = (one for trial in trials for one in trial.checkpoints if is_in_memory(one))
        yield from _drops(bring_dicts(journal, folder, named))
        for trial in list(self._experiment.trials.values()):
            self._note(trial)
        yield from self._unneeded(list(self._experiment.trials))
        yield from self.left_over(journal)
        if self._store is not None:
            self._start()

    def let_go(self, trial: Trial) -> None:
        """Stop naming the checkpoint from which a paused trial would continue."""
        if trial.status is TrialStatus.PAUSED:
            for role, named in (("state", trial.checkpoint), ("pause point", trial.pause_point)):
                if named in trial.checkpoints:
                    self._references.hold((trial.id, role), CheckpointId(""))

    def unnamed(self, trial: Trial) -> list[CheckpointId]:
        """Return all checkpoints of a trial that nothing names, in spite of the retention."""
        return [one for one in trial.checkpoints if one not in self._references]

    def hold(self, holder: Hashable, checkpoint: CheckpointId) -> list[Drop]:
        """Let *holder* name a checkpoint in place of its earlier one, or no checkpoint if it is empty."""
        freed = self._references.hold(holder, checkpoint)
        return self._unneeded([trial_of(freed)]) if freed else []

    def plan(self, trial: Trial, checkpoint: CheckpointId) -> None:
        """Have the decision to pause *trial* name its checkpoint, until it continues or ends."""
        self._references.hold((trial.id, "plan"), checkpoint)

    def _note(self, trial: Trial) -> list[CheckpointId]:
        """Have a trial name its needed checkpoints. Return those that it names no longer."""
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
        return _drops(list(self._found(trials)))

    def _found(self, trials: Iterable[TrialId]) -> Iterator[CheckpointId]:
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
            # A dict in Redis is there to continue from, not to be archived.
            keeps = self._keeps_dicts and trial.status in _HAVE_DONE
            over |= {one for one in trial.checkpoints if loses_all or (is_in_memory(one) and not keeps)}
        return [one for one in trial.checkpoints if one in over and one not in self._references]

    def _is_spared(self, trial: Trial) -> bool:
        """Note an ended trial if it is one of the best, and return whether it is."""
        if not self._spares_best:
            return False
        has_value = not (trial.is_abandoned or math.isnan(trial.best_value))
        if trial.id in self._experiment.leaders or (self._keep_trials > 1 and has_value):
            self._spared[trial.id] = None
        return trial.id in self._best_of_spared()

    def _best_of_spared(self) -> Container[TrialId]:
        """Return the leaders, and the best of the other noted trials up to ``keep_trials``."""
        experiment, leaders = self._experiment, self._experiment.leaders
        others = [experiment.trials[id_] for id_ in self._spared if id_ not in leaders]
        sign = 1 if experiment.mode == "min" else -1
        others.sort(key=lambda trial: (not experiment.is_feasible(trial), sign * trial.best_value))
        return {*leaders, *(trial.id for trial in others[: max(0, self._keep_trials - len(leaders))])}

    def left_over(self, journal: Journal) -> list[Drop]:
        """Return what Redis has and no event names, nor ever will.

        Its worker died before it was reported; or wrote it again after an outage, and it had been dropped.
        """
        trials = self._experiment.trials
        named = {one for trial in trials.values() for one in trial.checkpoints}
        left = [
            one
            for one in journal.checkpoints() - named
            if (trial := trials.get(trial_of(one))) and _is_past(one, trial)
        ]
        return _drops(sorted(left))

    def _delete(self, checkpoints: Iterable[str]) -> None:
        if self._store is None:
            return
        for checkpoint in map(CheckpointId, checkpoints):
            if not is_in_memory(checkpoint):
                self._deletions.put(checkpoint)
        self._start()

    def _start(self) -> None:
        if self._thread is None:
            # A store may be slow, and no decision may wait for it.
            self._thread = threading.Thread(target=self._run, name="mqtune-deletions", daemon=True)
            self._thread.start()

    def _delete_left_over(self, store: CheckpointStore) -> None:
        """Delete what the store holds and no event names, nor ever will.

        An earlier driver dropped it and died before it was deleted, or its process or worker died before it was
        reported.
        """
        try:
            store.sweep()
            for checkpoint in store.ids():
                trial = self._experiment.trials.get(trial_of(checkpoint))
                if trial is not None and checkpoint not in trial.checkpoints and _is_past(checkpoint, trial):
                    store.delete(checkpoint)
        except MqtuneError as error:
            logger.warning("checkpoints that nothing names could not be deleted: %s", error)

    def _run(self) -> None:
        store = self._store
        assert store is not None  # noqa: S101 - there would be no thread
        self._delete_left_over(store)
        while (checkpoint := self._deletions.get()) is not None:
            try:
                store.delete(checkpoint)
            except MqtuneError as error:
                logger.warning("checkpoint %s could not be deleted: %s", checkpoint, error)
        # A trial that was stopped, or died, between saving a checkpoint and reporting it has left that.
        self._delete_left_over(store)

    def close(self) -> None:
        """Wait for the deletions that are under way, for some seconds at most."""
        if self._thread is not None:
            self._deletions.put(None)
            self._thread.join(_CLOSE_S)


def _drops(checkpoints: list[CheckpointId]) -> list[Drop]:
    return [Drop(checkpoints)] if checkpoints else []


def _is_past(checkpoint: CheckpointId, trial: Trial) -> bool:
    """Whether its attempt can name this checkpoint no more: it has ended, or has named a later one."""
    attempt, number = attempt_and_number(checkpoint)
    if attempt == 0:
        # A person brought it, and may be about to have the trial staged with it.
        return trial.status.is_terminal
    if not 0 < attempt <= len(trial.attempts):
        return False
    newest = attempt_and_number(trial.checkpoint) if trial.checkpoint in trial.checkpoints else (0, 0)
    return trial.attempts[attempt - 1].end is not None or (attempt, number) < newest
