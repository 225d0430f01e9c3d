"""A worker's slots, each with its devices and its zygotes.

It also says how many of them may be used, and which zygote runs an attempt.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence, Set as AbstractSet
from itertools import chain
from pathlib import Path
from typing import Final, Literal

from mqtune.core.errors import CodeDiffers, MqtuneError
from mqtune.core.impairment import WHOLE_WORKER
from mqtune.core.timing import Timing
from mqtune.trainable.process.protocol import KEPT_BYTES
from mqtune.worker.devices import DeviceMemory, SlotPlan, in_gb
from mqtune.worker.experiments import ExperimentHere
from mqtune.worker.impairments import Cause, Impairments
from mqtune.worker.importers import Importer, Importers, ImportFailed, ImportKey, SlotZygotes
from mqtune.worker.ports import NO_HOOKS, ProgramPlace, SlotHere, WorkerHooks, WorkerService
from mqtune.worker.preloads import NO_PRELOADS, Preloads
from mqtune.worker.retries import Retries
from mqtune.worker.zygotes import ZygoteDied, ZygoteHandle

logger = logging.getLogger(__name__)

#: The failed starts in a row after which the worker backs off; a trial fails after twice as many.
FAILED_STARTS: Final = 3
#: How long it takes nothing at first: the fault may be one experiment's, and others should not wait for it.
BACK_OFF_S: Final = 5.0
#: Each further failed start doubles that, up to this: the longest until a repaired worker is used again.
LONGEST_BACK_OFF_S: Final = 300.0


#: The steps of each attempt on a worker.
Step = Literal["started", "ended"]


class BackOff:
    """Pauses a worker that can't start or end its attempts, and says how many it may take. Any thread may use it."""

    def __init__(self, impairments: Impairments) -> None:
        self._impairments = impairments
        self._lock = threading.Lock()
        #: How many attempts in a row could not be started, and how many could not be ended.
        self._in_a_row: dict[Step, int] = {"started": 0, "ended": 0}

    @property
    def _cause(self) -> Cause | None:
        return self._impairments.cause_of(WHOLE_WORKER, "starts")

    def note_done(self, step: Step) -> None:
        """Record that an attempt was started, or ended: the worker works."""
        if self._in_a_row[step]:
            with self._lock:
                self._in_a_row[step], cause = 0, self._cause
            if cause is not None:
                self._impairments.lift(cause)

    def note_problem(self, step: Step, problem: str) -> None:
        """Record that an attempt could not be started, or ended, and why."""
        with self._lock:
            self._in_a_row[step] += 1
            before = self._cause
            # Attempts that were taken together fail together, and count as one try.
            if self._in_a_row[step] < FAILED_STARTS or (before is not None and not self._impairments.is_due(before)):
                return
            last = problem.strip().splitlines()[-1] if problem.strip() else "?"
            text = f"its last {self._in_a_row[step]} attempts could not be {step} ({last})"
            pause_s = BACK_OFF_S if before is None else min(2 * before.pause_s, LONGEST_BACK_OFF_S)
            cause = Cause(text, f"an attempt is {step}", pause_s=pause_s)
            self._impairments.put(
                [WHOLE_WORKER], "starts", cause, says=f"{text}. It takes one to try in {pause_s:.0f} s"
            )

    @property
    def allows(self) -> int | None:
        """How many more attempts may be taken: 0 while it backs off, then 1 to try; None for any number."""
        return None if (cause := self._cause) is None else int(self._impairments.is_due(cause))


#: The type and the text of the error that keeps an attempt from running.
Problem = tuple[str, str]
NO_PROBLEM: Final = ("", "")


class Turn:
    """One attempt's turn in a slot; it begins when the turn before it is over, and *before* is set."""

    def __init__(self, slot: Slot, before: threading.Event) -> None:
        self.slot = slot
        self._before = before
        self.over = threading.Event()
        self._settles = False
        #: The importer of its trial's process.
        self.importer: Importer | None = None
        self._zygote: ZygoteHandle | None = None
        #: Whether its zygote is not that of the turn before, and so does not know whether that one's trial has ended.
        self.changes_zygote = False

    def wait(self) -> None:
        """Wait until nothing is left of the previous trial."""
        self._before.wait()

    def take(self, *, stays: bool) -> bool:
        """Take the slot's devices for a trial; False, and no trial may start, if one of them is quarantined.

        With devices it waits until nothing is left of the previous trial, its GPU memory included, and ends processes
        that are kept for trials of other trainables.

        Args:
            stays: whether the trial's process is kept for further trials; its memory is then not waited for.
        """
        slot = self.slot
        if slot.memory is None and slot.admits is None and not slot.zygotes.may_have_stayed(self._zygote):
            return True
        self._before.wait()
        slot.zygotes.make_way(self._zygote)
        if not slot.impairments.enter(slot.index, slot.places):
            return False
        if slot.admits is not None and not slot.admits(slot):
            return False
        if slot.memory is None:
            return True
        taken = slot.memory.enter(slot.index, slot.devices)
        self._settles = taken and not stays
        return taken

    def end(self) -> None:
        """End the turn, when no process of its trial is left.

        Returns when its devices' memory is back, or they are quarantined. A turn that was never used ends when it would
        have begun.
        """
        self._before.wait()
        try:
            if self._settles and self.slot.memory is not None:
                self._settles = False
                self.slot.memory.settle(self.slot.index, self.slot.devices)
        finally:
            self.use(None)
            self.over.set()

    def settles(self) -> None:
        """Have ``end`` wait for the memory of the slot's devices, also after a trial whose process was to stay."""
        self._settles = self.slot.memory is not None

    def left_on_devices(self) -> str:
        """Return in words the memory that the kept process holds on the slot's devices, if it is too much."""
        memory, slot = self.slot.memory, self.slot
        if slot.shares_memory:
            return "its GPU is shared by memory, which comes back when a process ends"
        left = {} if memory is None else memory.kept(slot.index, slot.devices)
        full = (f"{in_gb(size)} on device {device}" for device, size in left.items() if size > KEPT_BYTES)
        text = ", ".join(full)
        return f"it has left {text}" if text else ""

    def use(self, importer: Importer | None) -> None:
        """Keep this importer and its zygotes in use until the end of the turn, and no other."""
        before, self.importer = self.importer, importer
        if before is not None:
            self.slot.importers.leave(before)

    def begin(self, zygote: ZygoteHandle) -> None:
        """Have this zygote run the trial."""
        self._zygote = zygote
        self.changes_zygote = zygote is not self.slot.last_zygote
        self.slot.last_zygote = zygote


class Slot:
    """A place for one trial; the next attempt may prepare while the last one's process is ended."""

    def __init__(
        self,
        index: int,
        plan: SlotPlan,
        log_root: Path,
        impairments: Impairments,
        memory: DeviceMemory | None = None,
        *,
        importers: Importers,
        admits: Callable[[SlotHere], bool] | None = None,
    ) -> None:
        self.index = index
        self.devices = plan.devices[index]
        #: The devices that are closed if it is not sound.
        self.places = self.devices or (WHOLE_WORKER,)
        #: Whether trials share its device by the memory that they ask for.
        self.shares_memory = plan.offer.is_shared_by_memory
        self.impairments = impairments
        self.memory = memory
        #: Says whether an attempt may start here; None where nobody has a say in it.
        self.admits = admits
        self.environment = plan.environment(index)
        self._last_over = threading.Event()
        self._last_over.set()
        #: The output of its zygotes.
        self.log = log_root / ".zygotes" / f"slot-{index}.log"
        self.importers = importers
        self.zygotes = SlotZygotes(self.environment, self.log, self._on_zygote_empty)
        #: That of its last turn.
        self.last_zygote: ZygoteHandle | None = None

    @property
    def is_quarantined(self) -> bool:
        """Whether it takes no attempt because one of its devices is quarantined."""
        return self.impairments.closes(self.index, self.places)

    def next_turn(self) -> Turn:
        """Return the turn after the last one; only the thread that has acquired the slot may call it."""
        turn = Turn(self, self._last_over)
        self._last_over = turn.over
        return turn

    def importer(self, key: ImportKey) -> Importer:
        """Return an importer of this trainable and the current code, for this slot; it is in use until it is left."""
        return self.importers.use(key, self.environment)

    def serves(self, importer: Importer) -> bool:
        """Whether trials here find what they would have imported."""
        return importer.serves(self.environment)

    def _on_zygote_empty(self) -> None:
        if self.memory is not None:
            self.memory.leave(self.index, self.devices)


class Slots:
    """The slots that are free or about to be; those used last are given out first, because their zygotes are warm.

    One with a quarantined device is given out when that is in use again. Where trials share GPUs by memory, one is
    given out when its GPU has as much as an attempt asks for: the first attempt to wait gets it before those behind,
    however little they ask for, and of several GPUs with room it takes that with the least.

    Args:
        plan: the slots.
        log_root: the folder for their zygotes' output.
        impairments: the impairments that close slots.
        memory: watches their devices; None without devices.
        guards: the services that may refuse a slot.
        preloads: knows which modules importers import before trials need them.
        most_bytes: how much memory unused importers and zygotes may have.
    """

    def __init__(
        self,
        plan: SlotPlan,
        log_root: Path,
        impairments: Impairments,
        memory: DeviceMemory | None = None,
        guards: Sequence[WorkerService] = (),
        *,
        preloads: Preloads = NO_PRELOADS,
        most_bytes: float = math.inf,
        timing: Timing = Timing(),
    ) -> None:
        log = log_root / ".zygotes" / "imports.log"
        self.importers = Importers(log, preloads, plan.varies, most_bytes=most_bytes, timing=timing)
        self.back_off = BackOff(impairments)
        self._guards = guards
        admits = self._admits if guards else None
        self.all = [
            Slot(index, plan, log_root, impairments, memory, importers=self.importers, admits=admits)
            for index in range(len(plan.devices))
        ]
        self.retries = Retries()
        #: How many of them have no quarantined device.
        self.usable = len(self.all)
        #: Guards what follows; told when an attempt that waits may have its turn.
        self._changed = threading.Condition()
        #: The free ones, those used last at the end.
        self._free = [*reversed(self.all)]
        #: The attempts that wait, in their order.
        self._waiting: list[object] = []
        #: How much memory each GPU has that no attempt was promised, where trials share GPUs by that.
        self._room = dict.fromkeys(chain.from_iterable(plan.devices), plan.device_bytes)
        self._shares_memory = plan.offer.is_shared_by_memory
        self._device_bytes = plan.device_bytes

    def _admits(self, slot: SlotHere) -> bool:
        """Return whether all guards let an attempt start in a slot.

        An error in one refuses it, and counts as a failed start, so that the worker backs off.
        """
        for guard in self._guards:
            try:
                if not guard.admit(slot):
                    return False
            except Exception as error:
                logger.exception("%s can't say whether slot %d is sound", type(guard).__name__, slot.index)
                self.back_off.note_problem("started", f"{type(guard).__name__}: {error}")
                return False
        return True

    def acquire(
        self, memory_bytes: int = 0, timeout_s: float | None = None, *, unless: Callable[[], bool] = lambda: False
    ) -> Slot | None:
        """Wait for a free slot and return it; None after *timeout_s* seconds.

        Args:
            memory_bytes: how much of a GPU's memory the attempt asks for, where trials share GPUs by that.
            timeout_s: how long it waits; None for any time.
            unless: ends a wait when it returns True; ``wake`` has it called again.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        me = object()
        with self._changed:
            self._waiting.append(me)
            try:
                while True:
                    if self._waiting[0] is me and (slot := self._take(memory_bytes)) is not None:
                        return slot
                    left_s = deadline - time.monotonic()
                    if left_s <= 0 or unless():
                        return None
                    self._changed.wait(None if left_s == math.inf else left_s)
            finally:
                self._waiting.remove(me)
                self._changed.notify_all()

    def _take(self, memory_bytes: int, but: AbstractSet[str] | None = None) -> Slot | None:
        """Take a free slot with so much memory, and with devices other than these, if any are given.

        Return None if no slot fits now.
        """
        needed = self._promise(memory_bytes)
        able = [
            slot
            for slot in reversed(self._free)
            if self._room_of(slot) >= needed and (but is None or _has_others(slot, but)) and not slot.is_quarantined
        ]
        if not able:
            return None
        # The first of equals, which was used last.
        slot = min(able, key=self._room_of)
        self._free.remove(slot)
        for device in slot.devices if needed else ():
            self._room[device] -= needed
        return slot

    def _promise(self, memory_bytes: int) -> int:
        """Return how much memory an attempt is promised: all of a GPU's where it does not say how much it needs."""
        if not self._shares_memory:
            return 0
        return min(memory_bytes or self._device_bytes, self._device_bytes)

    def _room_of(self, slot: Slot) -> int:
        return self._room[slot.devices[0]] if self._shares_memory else 0

    def leave(self, slot: Slot, memory_bytes: int) -> None:
        """Free the GPU memory that an attempt was promised, when its processes are gone.

        *memory_bytes* is as it was acquired.
        """
        if needed := self._promise(memory_bytes):
            with self._changed:
                for device in slot.devices:
                    self._room[device] += needed
                self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """The number of attempts that wait for a slot."""
        with self._changed:
            return len(self._waiting)

    @property
    def waits_for_memory(self) -> bool:
        """Whether an attempt waits although a slot is free: its GPU has too little memory for it."""
        with self._changed:
            return self._shares_memory and bool(self._waiting) and any(not slot.is_quarantined for slot in self._free)

    @property
    def most_room(self) -> int:
        """The most memory that a GPU has for another attempt, and 0 where trials don't share GPUs by memory."""
        with self._changed:
            free = (self._room_of(slot) for slot in self._free if not slot.is_quarantined)
            return max(free, default=0)

    def wake(self) -> None:
        """Have attempts that wait for a slot look again whether they are to wait."""
        with self._changed:
            self._changed.notify_all()

    def has_other(self, devices: AbstractSet[str]) -> bool:
        """Whether a usable slot has none of these devices, and others instead."""
        return any(_has_others(slot, devices) for slot in self.all if not slot.is_quarantined)

    def acquire_other(self, devices: AbstractSet[str], memory_bytes: int = 0) -> Slot | None:
        """Return a free slot with other devices than these; None if no such slot is free now."""
        with self._changed:
            return self._take(memory_bytes, devices)

    def offer(self, slot: Slot) -> None:
        """Offer a slot whose trial has ended, or is about to, to the next attempt."""
        with self._changed:
            self._free.append(slot)
            self._changed.notify_all()

    def review(self) -> None:
        """Count the usable slots again; called when what keeps slots from attempts has changed."""
        with self._changed:
            self.usable = sum(not slot.is_quarantined for slot in self.all)
            self._changed.notify_all()

    def trim(self, idle_s: float) -> None:
        """Close importers that were idle for *idle_s* seconds, and importers that use too much memory."""
        self.importers.trim(idle_s)

    def end(self) -> None:
        """Make all processes kill whatever they run, and end; doesn't wait for it."""
        self.importers.end()

    def close(self) -> None:
        """End all processes, except for imports that an unclaimed attempt still waits for."""
        self.importers.close()


def _has_others(slot: Slot, devices: AbstractSet[str]) -> bool:
    """Whether a slot has none of these devices, and others instead."""
    return bool(slot.devices) and devices.isdisjoint(slot.devices)


class ZygoteFinder:
    """Finds the zygotes that run attempts, and checks what these need before they are claimed.

    Args:
        worker: the worker's name, for errors.
        code_root: the folder below which trainables are, unless a service says otherwise.
        log_root: the folder below which each experiment has its code.
        hooks: ask the worker's services where an experiment's program is.
    """

    def __init__(self, worker: str, code_root: Path, log_root: Path, hooks: WorkerHooks = NO_HOOKS) -> None:
        self._worker = worker
        self._code_root = code_root
        self._log_root = log_root
        self._hooks = hooks

    def find(
        self, turn: Turn, here: ExperimentHere, on_import: Callable[[], None]
    ) -> tuple[ZygoteHandle | None, Problem]:
        """Return a zygote with an experiment's trainable, or the reason why it could not be made. Never raises.

        It is called before the claim, because an import may take minutes, in which another worker may have a slot that
        is ready. *on_import* is called before it waits for an import.
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
            # An attempt that doesn't end by it would be published again and again.
            logger.exception("%s: an attempt of experiment %s could not be prepared", where, here.name)
            return None, (type(error).__name__, f"{where}: {type(error).__name__}: {error}")
        return zygote, NO_PROBLEM

    def import_ahead(self, slot: Slot, here: ExperimentHere) -> None:
        """Have the importer that ``find`` would use for an experiment begin, before its first attempts come.

        Raises:
            MqtuneError, OSError: it can't be started; the attempts will say why.
        """
        slot.importers.leave(slot.importer(self._key(here, self._place(here))))

    def _place(self, here: ExperimentHere) -> ProgramPlace:
        return self._hooks.program(here) or ProgramPlace(self._code_root)

    def _key(self, here: ExperimentHere, place: ProgramPlace) -> ImportKey:
        return self._hooks.prepare(here, here.import_key(place.code_root, place.cwd, self._log_root))


def import_in(
    turn: Turn, key: ImportKey, on_import: Callable[[], None] = lambda: None, *, again: bool = True
) -> ZygoteHandle:
    """Return a zygote in the slot of a turn; *on_import* is called before it waits for an import.

    It has imported the modules of the services' preloads, as far as that is safe.

    Raises:
        ImportFailed: the trainable can't be imported.
        ZygoteDied: the import ended its process. One that was killed from outside is tried once more, if *again*.
    """
    slot = turn.slot
    while True:
        importer = slot.importer(key)
        turn.use(importer)
        try:
            zygote = slot.zygotes.keeping(importer)
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
            refused = importer.refused(error)
            if refused is not None and slot.importers.preloads.refuse(key.spec, *refused):
                # The next one does without it.
                continue
            if again and isinstance(error, ZygoteDied) and importer.was_killed:
                # A kill from outside says nothing about the trainable; a second one may be for the memory that it
                # needs.
                again = False
            else:
                raise


def import_again(turn: Turn) -> ZygoteHandle:
    """Return another zygote for a turn whose zygote has died; see ``import_in``."""
    importer = turn.importer
    assert importer is not None  # noqa: S101 - the dead one was forked from it
    return import_in(turn, importer.key)
