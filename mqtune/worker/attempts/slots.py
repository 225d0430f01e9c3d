"""A worker's slots with devices and zygotes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Set as AbstractSet
from operator import itemgetter
from pathlib import Path
from typing import Final

from mqtune.core.errors import CodeDiffers, MqtuneError
from mqtune.core.impairment import WHOLE_WORKER
from mqtune.core.timing import Timing
from mqtune.worker.attempts.back_off import BackOff
from mqtune.worker.attempts.retries import Retries
from mqtune.worker.hooks import NO_HOOKS, WorkerHooks
from mqtune.worker.host.devices import SlotPlan
from mqtune.worker.host.impairments import Impairments
from mqtune.worker.ports import AttemptHere, ProgramPlace, SlotHere
from mqtune.worker.programs.experiments import ExperimentHere
from mqtune.worker.programs.importers import ImporterHandle, Importers, ImportFailed, ImportKey, SlotZygotes
from mqtune.worker.programs.preloads import NO_PRELOADS, Preloads
from mqtune.worker.programs.zygotes import ZygoteDied, ZygoteHandle

logger = logging.getLogger(__name__)

#: The type and the text of the error that keeps an attempt from running; both empty without an error.
Problem = tuple[str, str]
NO_PROBLEM: Final = ("", "")


class Turn:
    """One attempt's use of a slot. It begins when the previous turn sets *before*."""

    def __init__(self, slot: Slot, before: threading.Event) -> None:
        self.slot = slot
        self._before = before
        self.over = threading.Event()
        #: Whether ``end`` must tell services that the slot is empty.
        self._empties = False
        #: The importer of the zygote that runs the trial; None before ``use``.
        self.importer: ImporterHandle | None = None
        self._zygote: ZygoteHandle | None = None
        #: Whether the previous turn used another zygote. Then this turn's zygote doesn't know when the previous trial
        #: has ended.
        self.changes_zygote = False

    @property
    def is_checked(self) -> bool:
        """Whether services check the slot before each turn."""
        return self.slot.admits is not None

    def wait(self) -> None:
        """Wait until the previous turn is over: all processes of its trial have exited."""
        self._before.wait()

    def take(self, *, stays: bool) -> bool:
        """Return whether the trial may start in the slot.

        A service or a quarantined device may refuse it. If services check slots, or another zygote keeps a process
        here, this first waits for the previous turn, and ends the processes that other zygotes keep.

        Args:
            stays: whether the trial's process may be kept for further trials, so that the slot is not empty after the
                turn.
        """
        slot = self.slot
        if slot.admits is None and not slot.zygotes.others_may_keep(self._zygote):
            return True
        self._before.wait()
        slot.zygotes.end_others(self._zygote)
        if not slot.impairments.enter(slot.index, slot.places):
            return False
        if slot.admits is not None:
            if not slot.admits(slot):
                return False
            self._empties = not stays
        return True

    def end(self) -> None:
        """End the turn. All processes of its trial must have exited.

        Wait for the previous turn. If the slot is empty now, tell services, and wait until they allow the next turn. A
        second call does nothing.
        """
        self._before.wait()
        try:
            if self._empties:
                self._empties = False
                self.slot.hooks.emptied(self.slot, waits=True)
        finally:
            self.use(None)
            self.over.set()

    def note_not_kept(self) -> None:
        """Record that the trial's process is not kept, so that the slot is empty after the turn."""
        self._empties = self.slot.admits is not None

    def use(self, importer: ImporterHandle | None) -> None:
        """Keep this importer open until the end of the turn. Release the importer before it."""
        before, self.importer = self.importer, importer
        if before is not None:
            self.slot.importers.leave(before)

    def begin(self, zygote: ZygoteHandle) -> None:
        """Record the zygote that runs the trial."""
        self._zygote = zygote
        self.changes_zygote = zygote is not self.slot.last_zygote
        self.slot.last_zygote = zygote


class Slot:
    """A slot, which runs one trial at a time. Meanwhile the next attempt may prepare."""

    def __init__(
        self,
        index: int,
        plan: SlotPlan,
        log_root: Path,
        impairments: Impairments,
        hooks: WorkerHooks = NO_HOOKS,
        *,
        importers: Importers,
        admits: Callable[[SlotHere], bool] | None = None,
    ) -> None:
        self.index = index
        self.devices = plan.devices[index]
        #: Its devices by the names in impairments; ``WHOLE_WORKER`` for a slot without devices.
        self.places = self.devices or (WHOLE_WORKER,)
        self.impairments = impairments
        self.hooks = hooks
        #: Asks services whether an attempt may start here; None if no service checks slots.
        self.admits = admits
        self.environment = plan.environment(index)
        self._last_over = threading.Event()
        self._last_over.set()
        #: The file for its zygotes' output.
        self.log = log_root / ".zygotes" / f"slot-{index}.log"
        self.importers = importers
        self.zygotes = SlotZygotes(self.environment, self.log, self._on_zygote_empty)
        #: The zygote of its last turn.
        self.last_zygote: ZygoteHandle | None = None

    @property
    def is_quarantined(self) -> bool:
        """Whether the slot takes no attempt because one of its devices is quarantined."""
        return self.impairments.closes(self.index, self.places)

    def next_turn(self) -> Turn:
        """Return a turn: the next attempt's use of the slot. Only that attempt's thread may call it."""
        turn = Turn(self, self._last_over)
        self._last_over = turn.over
        return turn

    def importer(self, key: ImportKey) -> ImporterHandle:
        """Return an importer of the current code for this key, in use until ``Importers.leave``."""
        return self.importers.use(key, self.environment)

    def serves(self, importer: ImporterHandle) -> bool:
        """Return whether the importer's imports are valid in this slot's environment."""
        return importer.serves(self.environment)

    def _on_zygote_empty(self) -> None:
        self.hooks.emptied(self, waits=False)


class Slots:
    """A worker's slots. Waiting attempts get them in the order of their arrival.

    The most recently used slot is given first, because its zygotes are warm. A slot with a quarantined device is not
    given. If services have no room for an attempt in any free slot, it waits, and so do all later attempts, even
    smaller ones.

    Args:
        plan: the devices and resources of the slots.
        log_root: the folder for their zygotes' output.
        impairments: the impairments that close slots.
        hooks: the worker's services, which may refuse a slot.
        preloads: knows the modules to import before trials need them.
        most_bytes: memory limit for unused importers and their zygotes together.
    """

    def __init__(
        self,
        plan: SlotPlan,
        log_root: Path,
        impairments: Impairments,
        hooks: WorkerHooks = NO_HOOKS,
        *,
        preloads: Preloads = NO_PRELOADS,
        most_bytes: float = math.inf,
        timing: Timing = Timing(),
    ) -> None:
        self.plan = plan
        log = log_root / ".zygotes" / "imports.log"
        self.importers = Importers(log, preloads, plan.varies, most_bytes=most_bytes, timing=timing)
        self.back_off = BackOff(impairments)
        self._hooks = hooks
        admits = self._admits if hooks.guards else None
        self.all = [
            Slot(index, plan, log_root, impairments, hooks, importers=self.importers, admits=admits)
            for index in range(len(plan.devices))
        ]
        self.retries = Retries()
        #: The number of slots without a quarantined device.
        self.usable = len(self.all)
        #: Guards the following fields; notified when a waiting attempt may get a slot.
        self._changed = threading.Condition()
        #: The free slots, the most recently used one at the end.
        self._free = [*reversed(self.all)]
        #: One object for each waiting attempt, in the order of their arrival.
        self._waiting: list[object] = []

    def _admits(self, slot: SlotHere) -> bool:
        """Return whether all services let an attempt start in a slot.

        A service's error counts as a refusal and as a failed start, so that the worker backs off.
        """
        for guard in self._hooks.guards:
            try:
                if not guard.admit(slot):
                    return False
            except Exception as error:
                logger.exception("service %s could not check slot %d", type(guard).__name__, slot.index)
                self.back_off.note_problem("started", f"{type(guard).__name__}: {error}")
                return False
        return True

    def acquire(
        self, run: AttemptHere, timeout_s: float | None = None, *, unless: Callable[[], bool] = lambda: False
    ) -> Slot | None:
        """Wait for a free slot with room for an attempt, and return it.

        Return None after *timeout_s* seconds, or if *unless* returns True.

        Args:
            timeout_s: longest wait in seconds; None for no limit.
            unless: called at the beginning and after each ``wake``. The wait ends when it returns True.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        me = object()
        with self._changed:
            self._waiting.append(me)
            try:
                while True:
                    if self._waiting[0] is me and (slot := self._pop_fitting(run)) is not None:
                        return slot
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or unless():
                        return None
                    self._changed.wait(None if left_s == math.inf else left_s)
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()

    def _pop_fitting(self, run: AttemptHere, excluded: AbstractSet[str] | None = None) -> Slot | None:
        """Remove a fitting free slot from the free ones, and return it; None if no slot fits.

        It has room for the attempt, and with *excluded*, it has devices and none of these. Of several, it is the slot
        with the least room left.
        """
        able = [
            (room, slot)
            for slot in reversed(self._free)
            if (excluded is None or _has_others(slot, excluded))
            and not slot.is_quarantined
            and min(room := self._hooks.room(slot, run), default=0) >= 0
        ]
        if not able:
            return None
        # Of slots with equal room it is the first, which was used most recently.
        _, slot = min(able, key=itemgetter(0))
        self._free.remove(slot)
        self._hooks.taken(slot, run)
        return slot

    def leave(self, slot: Slot, run: AttemptHere) -> None:
        """Tell services that an attempt with a slot is over, and let waiting attempts try again."""
        with self._changed:
            self._hooks.left(slot, run)
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """The number of waiting attempts."""
        with self._changed:
            return len(self._waiting)

    @property
    def free(self) -> list[int]:
        """The numbers of the free slots without a quarantined device."""
        with self._changed:
            return [slot.index for slot in self._free if not slot.is_quarantined]

    @property
    def waits_for_room(self) -> bool:
        """Whether an attempt waits although a slot is free, because services have no room for it."""
        return bool(self._hooks.dividers) and self.waiting > 0 and bool(self.free)

    def wake(self) -> None:
        """Have waiting attempts check again whether to continue their wait."""
        with self._changed:
            self._changed.notify_all()

    def has_other(self, devices: AbstractSet[str]) -> bool:
        """Return whether a usable slot, free or not, has devices and none of these."""
        return any(_has_others(slot, devices) for slot in self.all if not slot.is_quarantined)

    def acquire_other(self, devices: AbstractSet[str], run: AttemptHere) -> Slot | None:
        """Return a free slot that has devices and none of these; None without one. It doesn't wait."""
        with self._changed:
            return self._pop_fitting(run, devices)

    def offer(self, slot: Slot) -> None:
        """Mark a slot as free for the next attempt. Its trial has ended, or is about to."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify_all()

    def review(self) -> None:
        """Count the usable slots again, after a change of impairments."""
        with self._changed:
            self.usable = sum(not slot.is_quarantined for slot in self.all)
            self._changed.notify_all()

    def trim(self, idle_s: float) -> None:
        """Close unused importers: dead, idle for *idle_s* seconds, or beyond a limit."""
        self.importers.trim(idle_s)

    def end(self) -> None:
        """Make all importers and zygotes kill their trials and exit. Return immediately."""
        self.importers.end()

    def close(self) -> None:
        """Close all importers and their zygotes, except those that an attempt still uses."""
        self.importers.close()


def _has_others(slot: Slot, devices: AbstractSet[str]) -> bool:
    """Return whether a slot has devices, and none of these."""
    return bool(slot.devices) and devices.isdisjoint(slot.devices)


class ZygoteFinder:
    """Finds or forks the zygote for an attempt, and so checks before the claim that it can run.

    Args:
        worker: the worker's name, for errors.
        code_root: the code root of experiments for which no service names another one.
        log_root: the worker's log folder, which has the copies of experiments' code.
        hooks: the worker's services, which may name the place of an experiment's program.
    """

    def __init__(self, worker: str, code_root: Path, log_root: Path, hooks: WorkerHooks = NO_HOOKS) -> None:
        self._worker = worker
        self._code_root = code_root
        self._log_root = log_root
        self._hooks = hooks

    def find(
        self, turn: Turn, here: ExperimentHere, on_import: Callable[[], None]
    ) -> tuple[ZygoteHandle | None, Problem]:
        """Return a zygote that has imported an experiment's trainable, or None and the error.

        It never raises. It is called before the claim: an import may take minutes, in which another worker may have a
        free slot. *on_import* is called before a wait for an import.
        """
        where = f"on worker {self._worker}"
        try:
            here.check_store()
            spec = here.spec
            place = self._place(here)
            where += f", trainable {spec} below code root {place.code_root}"
            zygote = import_in(turn, self._key(here, place), on_import)
            zygote.environment.update(place.environment)
            if here.definition.get("code") == "strict" and (differing := zygote.environment.get("differs")):
                raise CodeDiffers(f"code that has changed since the experiment began: {', '.join(differing)}")
        except ImportFailed as error:
            # A traceback has several lines.
            text = str(error)
            return None, (error.kind, where + (":\n" if "\n" in text else ": ") + text)
        except ZygoteDied as error:
            return None, ("ImportDied", f"{where}: the import ended its process: {error}")
        except (MqtuneError, OSError) as error:
            return None, (type(error).__name__, f"{where}: {error}")
        except Exception as error:
            # Otherwise the attempt would be published again and again.
            logger.exception("%s: an attempt of experiment %s could not be prepared", where, here.name)
            return None, (type(error).__name__, f"{where}: {type(error).__name__}: {error}")
        return zygote, NO_PROBLEM

    def import_ahead(self, slot: Slot, here: ExperimentHere) -> None:
        """Start the importer of an experiment before its first attempts come.

        Raises:
            MqtuneError, OSError: it can't be started. The attempts will report the reason.
        """
        slot.importers.leave(slot.importer(self._key(here, self._place(here))))

    def _place(self, here: ExperimentHere) -> ProgramPlace:
        return self._hooks.program(here) or ProgramPlace(self._code_root)

    def _key(self, here: ExperimentHere, place: ProgramPlace) -> ImportKey:
        return self._hooks.prepare(here, here.import_key(place.code_root, place.cwd, self._log_root))


def import_in(
    turn: Turn, key: ImportKey, on_import: Callable[[], None] = lambda: None, *, again: bool = True
) -> ZygoteHandle:
    """Return a zygote for a turn, from an importer of this key. Start what is missing.

    If a module that services preload breaks the import, that is repeated without the module. *on_import* is called
    before a wait for an import.

    Raises:
        ImportFailed: the trainable can't be imported.
        ZygoteDied: the import ended its process. If *again*, it is tried once more after a SIGKILL from outside.
    """
    slot = turn.slot
    while True:
        importer = slot.importer(key)
        turn.use(importer)
        try:
            zygote = slot.zygotes.find_keeping(importer)
            if zygote is None:
                importer.get_ready(slot.importers.preloads, on_import)
                if not slot.serves(importer):
                    continue
                zygote = slot.zygotes.of(importer, turn.wait)
            turn.begin(zygote)
            return zygote
        except (ImportFailed, ZygoteDied) as error:
            if importer.was_ended:
                # The worker shuts down.
                raise
            refused = importer.find_blamed_module(error)
            if refused is not None and slot.importers.preloads.refuse(key.spec, *refused):
                # The next importer does without the module.
                continue
            if again and isinstance(error, ZygoteDied) and importer.was_killed:
                # A kill from outside says nothing about the trainable. A second one may be due to the trainable's use
                # of memory.
                again = False
            else:
                raise


def import_again(turn: Turn) -> ZygoteHandle:
    """Return a new zygote for a turn whose zygote has died. It raises as ``import_in`` does."""
    importer = turn.importer
    assert importer is not None  # noqa: S101 - the dead zygote was forked from it
    return import_in(turn, importer.key)
