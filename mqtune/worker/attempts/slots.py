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

#: The type and the text of the error that keeps an attempt from running.
Problem = tuple[str, str]
NO_PROBLEM: Final = ("", "")


class Turn:
    """One attempt's turn in a slot.

    It begins when the turn before it is over, which sets *before*.
    """

    def __init__(self, slot: Slot, before: threading.Event) -> None:
        self.slot = slot
        self._before = before
        self.over = threading.Event()
        #: Whether ``end`` tells services that the slot is empty.
        self._empties = False
        #: The importer of its trial's process.
        self.importer: ImporterHandle | None = None
        self._zygote: ZygoteHandle | None = None
        #: Whether the turn before had another zygote. Then this one does not know when that turn's trial has ended.
        self.changes_zygote = False

    def wait(self) -> None:
        """Wait until nothing is left of the previous trial."""
        self._before.wait()

    def take(self, *, stays: bool) -> bool:
        """Take the slot for a trial. Return False if a service or a quarantine refuses it.

        Where services have a say, wait until nothing is left of the previous trial. End processes that are kept for
        trials of other trainables.

        Args:
            stays: whether the trial's process is kept for further trials, so that the slot is not empty behind it.
        """
        slot = self.slot
        if slot.admits is None and not slot.zygotes.may_have_stayed(self._zygote):
            return True
        self._before.wait()
        slot.zygotes.make_way(self._zygote)
        if not slot.impairments.enter(slot.index, slot.places):
            return False
        if slot.admits is not None:
            if not slot.admits(slot):
                return False
            self._empties = not stays
        return True

    def end(self) -> None:
        """End the turn, when no process of its trial is left.

        Return when services let the next one begin.

        A turn that was never used ends when it would have begun.
        """
        self._before.wait()
        try:
            if self._empties:
                self._empties = False
                self.slot.hooks.emptied(self.slot, waits=True)
        finally:
            self.use(None)
            self.over.set()

    def settles(self) -> None:
        """Note that the trial's process has ended, although it was to stay."""
        self._empties = self.slot.admits is not None

    def use(self, importer: ImporterHandle | None) -> None:
        """Keep this importer alone, with its zygotes, in use until the end of the turn."""
        before, self.importer = self.importer, importer
        if before is not None:
            self.slot.importers.leave(before)

    def begin(self, zygote: ZygoteHandle) -> None:
        """Have this zygote run the trial."""
        self._zygote = zygote
        self.changes_zygote = zygote is not self.slot.last_zygote
        self.slot.last_zygote = zygote


class Slot:
    """A place for one trial. The next attempt may prepare while the last one's process ends."""

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
        #: Its devices, as impairments name them.
        self.places = self.devices or (WHOLE_WORKER,)
        self.impairments = impairments
        self.hooks = hooks
        #: Returns whether an attempt may start here; None where no service has a say.
        self.admits = admits
        self.environment = plan.environment(index)
        self._last_over = threading.Event()
        self._last_over.set()
        #: The output of its zygotes.
        self.log = log_root / ".zygotes" / f"slot-{index}.log"
        self.importers = importers
        self.zygotes = SlotZygotes(self.environment, self.log, self._on_zygote_empty)
        #: The zygote of its last turn.
        self.last_zygote: ZygoteHandle | None = None

    @property
    def is_quarantined(self) -> bool:
        """Whether it takes no attempt because one of its devices is quarantined."""
        return self.impairments.closes(self.index, self.places)

    def next_turn(self) -> Turn:
        """Return the turn after the last one. Only the thread with the slot may call it."""
        turn = Turn(self, self._last_over)
        self._last_over = turn.over
        return turn

    def importer(self, key: ImportKey) -> ImporterHandle:
        """Return an importer of this trainable and the current code. It is in use until it is left."""
        return self.importers.use(key, self.environment)

    def serves(self, importer: ImporterHandle) -> bool:
        """Return whether trials here would have imported the same as the importer."""
        return importer.serves(self.environment)

    def _on_zygote_empty(self) -> None:
        self.hooks.emptied(self, waits=False)


class Slots:
    """Gives slots to attempts, in their order.

    The slot that was used last comes first: its zygotes are warm.

    A slot with a quarantined device is not given. Services may say that a slot has no room for an attempt: then it
    waits, and so do all attempts behind it, however little they ask for.

    Args:
        plan: the slots.
        log_root: the folder for their zygotes' output.
        impairments: the impairments that close slots.
        hooks: ask the worker's services whether an attempt may start in a slot.
        preloads: knows the modules to import before trials need them.
        most_bytes: the memory that unused importers and zygotes may have.
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
        #: The free slots, the last used one at the end.
        self._free = [*reversed(self.all)]
        #: The waiting attempts in their order.
        self._waiting: list[object] = []

    def _admits(self, slot: SlotHere) -> bool:
        """Return whether all services let an attempt start in a slot.

        An error refuses it, and counts as a failed start, so that the worker backs off.
        """
        for guard in self._hooks.guards:
            try:
                if not guard.admit(slot):
                    return False
            except Exception as error:
                logger.exception("%s can't say whether slot %d is sound", type(guard).__name__, slot.index)
                self.back_off.note_problem("started", f"{type(guard).__name__}: {error}")
                return False
        return True

    def acquire(
        self, run: AttemptHere, timeout_s: float | None = None, *, unless: Callable[[], bool] = lambda: False
    ) -> Slot | None:
        """Return a free slot with room for an attempt, once there is one; None after *timeout_s*.

        Args:
            run: the attempt.
            timeout_s: the seconds of the longest wait; None for any time.
            unless: ends the wait when it returns True; ``wake`` calls it again.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        me = object()
        with self._changed:
            self._waiting.append(me)
            try:
                while True:
                    if self._waiting[0] is me and (slot := self._take(run)) is not None:
                        return slot
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or unless():
                        return None
                    self._changed.wait(None if left_s == math.inf else left_s)
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()

    def _take(self, run: AttemptHere, but: AbstractSet[str] | None = None) -> Slot | None:
        """Take a free slot with room for an attempt, and without these devices.

        Return None if no slot fits.
        """
        able = [
            (room, slot)
            for slot in reversed(self._free)
            if (but is None or _has_others(slot, but))
            and not slot.is_quarantined
            and min(room := self._hooks.room(slot, run), default=0) >= 0
        ]
        if not able:
            return None
        # The first of equals, which was used last.
        _, slot = min(able, key=itemgetter(0))
        self._free.remove(slot)
        self._hooks.taken(slot, run)
        return slot

    def leave(self, slot: Slot, run: AttemptHere) -> None:
        """Tell services that an attempt with a slot is over. They may have room for the next ones."""
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
        """Whether an attempt waits although a slot is free: services have no room for it."""
        return bool(self._hooks.dividers) and self.waiting > 0 and bool(self.free)

    def wake(self) -> None:
        """Have waiting attempts check again whether they wait on."""
        with self._changed:
            self._changed.notify_all()

    def has_other(self, devices: AbstractSet[str]) -> bool:
        """Return whether a usable slot has other devices than these."""
        return any(_has_others(slot, devices) for slot in self.all if not slot.is_quarantined)

    def acquire_other(self, devices: AbstractSet[str], run: AttemptHere) -> Slot | None:
        """Return a free slot with other devices than these; None without one."""
        with self._changed:
            return self._take(run, devices)

    def offer(self, slot: Slot) -> None:
        """Offer a slot to the next attempt: its trial has ended, or is about to."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify_all()

    def review(self) -> None:
        """Count the usable slots again, after a change of impairments."""
        with self._changed:
            self.usable = sum(not slot.is_quarantined for slot in self.all)
            self._changed.notify_all()

    def trim(self, idle_s: float) -> None:
        """Close importers that were idle for *idle_s* seconds, or use too much memory."""
        self.importers.trim(idle_s)

    def end(self) -> None:
        """Make all processes kill their trials and end, without waiting for that."""
        self.importers.end()

    def close(self) -> None:
        """End all processes, except for imports of unclaimed attempts."""
        self.importers.close()


def _has_others(slot: Slot, devices: AbstractSet[str]) -> bool:
    """Return whether a slot has devices, and none of these."""
    return bool(slot.devices) and devices.isdisjoint(slot.devices)


class ZygoteFinder:
    """Finds the zygotes of attempts, and checks before a claim that the attempt can run.

    Args:
        worker: the worker's name, for errors.
        code_root: the folder below which trainables are, if no service knows another one.
        log_root: the folder below which each experiment has its code.
        hooks: ask services for the place of an experiment's program.
    """

    def __init__(self, worker: str, code_root: Path, log_root: Path, hooks: WorkerHooks = NO_HOOKS) -> None:
        self._worker = worker
        self._code_root = code_root
        self._log_root = log_root
        self._hooks = hooks

    def find(
        self, turn: Turn, here: ExperimentHere, on_import: Callable[[], None]
    ) -> tuple[ZygoteHandle | None, Problem]:
        """Return a zygote with an experiment's trainable, or an error's type and text.

        It never raises.

        It is called before the claim: an import may take minutes, in which another worker may have a slot. It calls
        *on_import* before it waits for an import.
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
                raise CodeDiffers(f"{', '.join(differing)} there is not as it was when the experiment began")
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
            MqtuneError, OSError: it can't be started. The attempts will say why.
        """
        slot.importers.leave(slot.importer(self._key(here, self._place(here))))

    def _place(self, here: ExperimentHere) -> ProgramPlace:
        return self._hooks.program(here) or ProgramPlace(self._code_root)

    def _key(self, here: ExperimentHere, place: ProgramPlace) -> ImportKey:
        return self._hooks.prepare(here, here.import_key(place.code_root, place.cwd, self._log_root))


def import_in(
    turn: Turn, key: ImportKey, on_import: Callable[[], None] = lambda: None, *, again: bool = True
) -> ZygoteHandle:
    """Return a zygote in the slot of a turn, with the services' preloads as far as these are safe.

    It calls *on_import* before it waits for an import.

    Raises:
        ImportFailed: the trainable can't be imported.
        ZygoteDied: the import ended its process. After a kill from outside it is tried once more, if *again*.
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
                # A kill from outside says nothing about the trainable. A second one may be for its memory.
                again = False
            else:
                raise


def import_again(turn: Turn) -> ZygoteHandle:
    """Return another zygote for a turn whose zygote has died; see ``import_in``."""
    importer = turn.importer
    assert importer is not None  # noqa: S101 - the dead zygote was forked from it
    return import_in(turn, importer.key)
