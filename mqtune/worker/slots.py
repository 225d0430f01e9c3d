"""A worker's slots: each holds its devices and the zygotes of the trainables that it ran last; and how many may be used."""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from mqtune.core.errors import CodeDiffers, MqtuneError
from mqtune.trainable.spec import TrainableSpec
from mqtune.worker.devices import DeviceMemory, SlotPlan
from mqtune.worker.zygotes import CodeManifests, ImportFailed, KeptZygotes, ZygoteDied, ZygoteHandle, ZygoteKey

__all__ = ["BackOff", "Problem", "Slot", "Slots", "Turn", "ZygoteFinder", "import_in"]

logger = logging.getLogger(__name__)

#: So many attempts in a row that could not be started are no chance any more; a trial may have twice as many.
FAILED_STARTS: Final = 3
#: How long it then takes nothing: it may be the experiment, whose owner tries again soon, and whom others must not wait for.
BACK_OFF_S: Final = 5.0
#: Each further attempt that can't be started doubles that, up to this: what somebody has put right is found within it.
LONGEST_BACK_OFF_S: Final = 300.0


class BackOff:
    """Counts the attempts in a row that this worker could not start; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._rest_s = BACK_OFF_S
        self._until = 0.0
        self._problem = ""

    def note_started(self) -> None:
        """Note that a trial's process was started: the worker is in order."""
        if self._in_a_row:
            with self._lock:
                if self._in_a_row >= FAILED_STARTS:
                    logger.warning("a trial could be started: this worker takes as many as it has slots again")
                self._in_a_row, self._rest_s, self._until = 0, BACK_OFF_S, 0.0

    def note_problem(self, problem: str) -> None:
        """Note that an attempt could not be started, and why."""
        with self._lock:
            self._in_a_row += 1
            self._problem = problem.strip().splitlines()[-1] if problem.strip() else "?"
            now = time.monotonic()
            # Those that were taken together fail together, and are one try.
            if self._in_a_row < FAILED_STARTS or now < self._until:
                return
            self._until = now + self._rest_s
            logger.error(
                "%d attempts in a row could not be started here; nothing is taken for %.0f s, and then one to try: %s",
                self._in_a_row,
                self._rest_s,
                self._problem,
            )
            self._rest_s = min(2 * self._rest_s, LONGEST_BACK_OFF_S)

    @property
    def allows(self) -> int | None:
        """How many attempts more may be taken: none while it rests, then one that tries; None for any number."""
        if self._in_a_row < FAILED_STARTS:
            return None
        return int(time.monotonic() >= self._until)

    @property
    def why(self) -> str:
        """Why not all slots may take an attempt, or empty; the same text until something else happens."""
        if self._in_a_row < FAILED_STARTS:
            return ""
        return f"could not start its last {self._in_a_row} attempts ({self._problem})"


#: Type and text of what keeps an attempt from running.
Problem = tuple[str, str]
NO_PROBLEM: Final = ("", "")
#: The longest import of a trainable's module: large frameworks on a cold network disk take minutes.
IMPORT_TIMEOUT_S: Final = 600.0


class Turn:
    """One attempt's time in a slot; it begins when the turn before it is over.

    Args:
        slot: whose turn it is.
        before: set when the turn before it is over.
    """

    def __init__(self, slot: Slot, before: threading.Event) -> None:
        self.slot = slot
        self._before = before
        self.over = threading.Event()
        self._settles = False
        self._zygote: ZygoteHandle | None = None
        #: Whether its zygote is another than that of the turn before, which knows nothing of that one's trial.
        self.changes_zygote = False

    def wait(self) -> None:
        """Wait until nothing is left of the trial before."""
        self._before.wait()

    def take(self, *, stays: bool) -> bool:
        """Have the slot's devices for a trial; False, and no trial may start, when one of them is quarantined.

        Where there are devices it waits until nothing is left of the trial before, its memory included. A process that stays for
        the trials of another trainable goes.

        Args:
            stays: whether the trial's process may stay for another; what it has in use is then not waited for.
        """
        slot = self.slot
        if slot.memory is None and not slot.zygotes.may_have_stayed(self._zygote):
            return True
        self._before.wait()
        slot.zygotes.make_way(self._zygote)
        if slot.memory is None:
            return True
        taken = slot.memory.enter(slot.index, slot.devices)
        self._settles = taken and not stays
        return taken

    def end(self) -> None:
        """Say that no process of this turn's trial is left; returns when its devices' memory is back, or they are quarantined.

        A turn that was never used ends when it would have begun.
        """
        self._before.wait()
        try:
            if self._settles and self.slot.memory is not None:
                self._settles = False
                self.slot.memory.settle(self.slot.index, self.slot.devices)
        finally:
            self.use(None)
            self.over.set()

    def use(self, zygote: ZygoteHandle | None) -> None:
        """Have a zygote in use until the end, and no other."""
        before, self._zygote = self._zygote, zygote
        if before is not None:
            self.slot.zygotes.leave(before)


class Slot:
    """One place where one trial runs; the next attempt may prepare while the last one's process is taken down."""

    def __init__(
        self,
        index: int,
        plan: SlotPlan,
        log_root: Path,
        memory: DeviceMemory | None = None,
        *,
        most_bytes: float = math.inf,
    ) -> None:
        self.index = index
        self.devices = plan.devices[index]
        self.memory = memory
        self._last_over = threading.Event()
        self._last_over.set()
        #: What its zygotes print.
        self.log = log_root / ".zygotes" / f"slot-{index}.log"
        self.zygotes = KeptZygotes(
            plan.environment(index), self.log, most_bytes=most_bytes, on_close=self._on_zygote_closed
        )
        self._last_zygote: ZygoteHandle | None = None

    @property
    def is_vacant(self) -> bool:
        """Whether nothing of a trial is here."""
        return self._last_over.is_set()

    @property
    def is_quarantined(self) -> bool:
        """Whether a device of it is too full for a trial."""
        return self.memory is not None and any(device in self.memory.quarantined for device in self.devices)

    def next_turn(self) -> Turn:
        """Return the turn after the last one; only who has acquired the slot may ask."""
        turn = Turn(self, self._last_over)
        self._last_over = turn.over
        return turn

    def zygote(self, key: ZygoteKey, turn: Turn) -> ZygoteHandle:
        """Return a zygote for this trainable and the code as it is now, which is the turn's until its end."""
        zygote = self.zygotes.use(key, turn.wait)
        turn.use(zygote)
        turn.changes_zygote = zygote is not self._last_zygote
        self._last_zygote = zygote
        return zygote

    def _on_zygote_closed(self, zygote: ZygoteHandle) -> None:
        if zygote.key.reuse and self.memory is not None:
            # With it went a process that had stayed.
            self.memory.leave(self.index, self.devices)


class Slots:
    """The slots that are free or about to be; those used last are given out first, because their zygotes are warm.

    Those with a quarantined device are set aside until ``review`` finds it in use again.

    Args:
        plan: the slots.
        log_root: the folder for their zygotes' output.
        memory: watches their devices; None where there are none.
        most_bytes: how much memory the zygotes that wait in all slots may have.
    """

    def __init__(
        self, plan: SlotPlan, log_root: Path, memory: DeviceMemory | None = None, *, most_bytes: float = math.inf
    ) -> None:
        count = len(plan.devices)
        self.all = [Slot(index, plan, log_root, memory, most_bytes=most_bytes / count) for index in range(count)]
        self.back_off = BackOff()
        #: How many of them have no quarantined device.
        self.usable = len(self.all)
        self._offered: queue.LifoQueue[Slot] = queue.LifoQueue()
        self._aside: list[Slot] = []
        self._reviewing = threading.Lock()
        for slot in reversed(self.all):
            self._offered.put(slot)

    def acquire(self, timeout_s: float) -> Slot | None:
        """Return a slot, waiting for one; None after *timeout_s* seconds. Its zygote may be used when it is one's turn."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                slot = self._offered.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if not slot.is_quarantined:
                return slot
            with self._reviewing:
                if slot.is_quarantined:
                    self._aside.append(slot)
                    continue
            # It came back in this moment.
            return slot

    def offer(self, slot: Slot) -> None:
        """Let the next attempt have a slot whose trial has ended, or whose process is about to."""
        self._offered.put(slot)

    def review(self) -> None:
        """Count the slots that can be used; to be called when a device is quarantined, or no more."""
        with self._reviewing:
            self.usable = sum(not slot.is_quarantined for slot in self.all)
            aside, self._aside = self._aside, []
        for slot in aside:
            # If it is still quarantined, whoever gets it puts it aside again.
            self._offered.put(slot)

    def trim(self, idle_s: float) -> None:
        """Close zygotes that no trial has used for *idle_s* seconds, and those that have too much memory."""
        for slot in self.all:
            slot.zygotes.trim(idle_s)


class ZygoteFinder:
    """Finds the zygotes that run attempts, and checks what these need before they are claimed.

    Args:
        worker: the worker's name, for errors.
        code_root: the folder below which trainables are.
        manifests: the files that each experiment's code consists of.
        check_store: raises an error unless this worker can write to the checkpoint store at a URL.
    """

    def __init__(
        self, worker: str, code_root: Path, manifests: CodeManifests, check_store: Callable[[str], None]
    ) -> None:
        self._worker = worker
        self._code_root = code_root
        self._manifests = manifests
        self._check_store = check_store

    def find(
        self, turn: Turn, experiment: str, definition: Mapping[str, Any], on_import: Callable[[], None]
    ) -> tuple[ZygoteHandle | None, Problem]:
        """Return a zygote that has imported an experiment's trainable, or the reason why there is none. Never raises.

        It is called before the claim, because an import may take minutes, in which another worker may have a slot that is
        ready. *on_import* is called before it waits for an import.
        """
        where = f"on worker {self._worker}"
        try:
            if store := definition.get("store"):
                self._check_store(store)
            spec = TrainableSpec.decode(definition["trainable"])
            where += f", trainable {spec} below code root {self._code_root}"
            manifest = self._manifests.of(experiment, definition)
            zygote = import_in(turn, ZygoteKey.of(experiment, definition, self._code_root, manifest), on_import)
            if definition.get("code") == "strict" and (differing := zygote.environment.get("differs")):
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
            logger.exception("%s: an attempt of experiment %s could not be prepared", where, experiment)
            return None, (type(error).__name__, f"{where}: {type(error).__name__}: {error}")
        return zygote, NO_PROBLEM


def import_in(
    turn: Turn, key: ZygoteKey, on_import: Callable[[], None] = lambda: None, *, again: bool = True
) -> ZygoteHandle:
    """Return a ready zygote in the slot of a turn; *on_import* is called before it waits for an import.

    Raises:
        ImportFailed: the trainable can't be imported.
        ZygoteDied: the import ended its process. One that was killed from outside is tried once more, if *again*.
    """
    slot = turn.slot
    zygote = slot.zygote(key, turn)
    try:
        if not zygote.is_ready:
            on_import()
        zygote.wait_ready(IMPORT_TIMEOUT_S)
    except BaseException as error:
        slot.zygotes.drop(zygote)
        # A kill from outside says nothing about the trainable; a second one may be for the memory that it needs.
        if again and isinstance(error, ZygoteDied) and zygote.was_killed:
            return import_in(turn, key, on_import, again=False)
        raise
    return zygote
