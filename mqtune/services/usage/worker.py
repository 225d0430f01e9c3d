"""The worker's part of usage: samples attempts, and warns of idle GPUs."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from mqtune.core.clock import Clock
from mqtune.core.errors import AccessDenied
from mqtune.core.resources import in_gb
from mqtune.core.timing import Timing
from mqtune.core.usage import DeviceUse, LiveUse, Usage
from mqtune.services.usage.board import UsageBoard
from mqtune.services.usage.settings import UsageSettings
from mqtune.trainable import children_of
from mqtune.worker import GpuProbe, SlotPlan, WorkerSettings
from mqtune.worker.ports import AttemptHere, WorkerHost, WorkerService

logger = logging.getLogger(__name__)

#: For how many rounds a sample counts at most: a worker that was frozen does not know what happened meanwhile.
_MOST_ROUNDS: Final = 3
#: A device that computed for a smaller part of a sample counts as idle. A display, or a query of its memory, makes for
#: a percent or two.
IDLE_PERCENT: Final = 5.0
#: How long a device may be idle before a warning, if the attempt has not reported yet. It may fetch its data, or
#: compile its model, for longer than ``idle_s``.
IDLE_UNREPORTED_S: Final = 1_800.0
#: The number of decimals of a figure.
_DIGITS: Final = 3
#: The fields of /proc/PID/stat behind the name: the time of the process and its ended children, and its resident pages.
_TIMES: Final = slice(11, 15)
_RESIDENT: Final = 21


class ProcessUse(NamedTuple):
    """The use of processes: processor seconds so far, and resident bytes of memory."""

    cpu_s: float
    memory_bytes: int


def use_of_process(pid: int) -> ProcessUse | None:
    """Return the use of a process and its descendants; None if it is gone, or outside Linux."""
    fields = _stat(pid)
    if not fields:
        return None
    cpu_s = sum(map(int, fields[_TIMES])) / os.sysconf("SC_CLK_TCK")
    memory_bytes = int(fields[_RESIDENT]) * os.sysconf("SC_PAGE_SIZE")
    below = [use for child in children_of(pid) if (use := use_of_process(child)) is not None]
    return ProcessUse(cpu_s + sum(use.cpu_s for use in below), memory_bytes + sum(use.memory_bytes for use in below))


def _bytes_on(pid: int, devices: Iterable[str], sizes: Mapping[str, Mapping[int, int]]) -> int | None:
    """Return the bytes that a process and its descendants have on devices; None if unknown.

    It is unknown if no device lists one of them: a GPU driver may list the ids that processes have outside a container.
    """
    family = set(_family(pid))
    own = [size for device in devices for number, size in sizes.get(device, {}).items() if number in family]
    return sum(own) if own else None


def _family(pid: int) -> Iterator[int]:
    yield pid
    for child in children_of(pid):
        yield from _family(child)


def _stat(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


class Sample(NamedTuple):
    """The use of an attempt at one moment.

    Attributes:
        at: the time of the sample, by a monotonic clock.
        devices: how each of its devices is used.
        processes: the use of its processes; None if it is unknown.
        slots: how many slots share each of its devices.
        has_reported: whether it has reported yet.
        shares_memory: whether its devices are shared by memory; others then have memory there, too.
        own_bytes: how much its own processes have on shared devices; None if it is unknown.
    """

    at: float
    devices: Mapping[str, DeviceUse]
    processes: ProcessUse | None = None
    slots: int = 1
    has_reported: bool = True
    shares_memory: bool = False
    own_bytes: int | None = None


class UsageMeter:
    """Computes an attempt's figures from its samples, in constant memory. Thread-safe."""

    def __init__(self, timing: Timing = Timing()) -> None:
        self._timing = timing
        self._lock = threading.Lock()
        #: When the last sample was taken, or the process started; None before that.
        self._at: float | None = None
        self._processes: ProcessUse | None = None
        self._sampled_s = 0.0
        #: For each figure, its sum over time and the seconds for which it was known.
        self._sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._most: dict[str, float] = {}
        #: For how many seconds each device has been idle, and the devices of which a warning was given.
        self._idle: dict[str, float] = {}
        self._told: set[str] = set()
        self._number = 0
        self._last = Sample(0.0, {})
        self._cpus: float | None = None

    def begin(self, at: float) -> None:
        """Set the time of the process's start. A second process of the same attempt changes nothing."""
        with self._lock:
            if self._at is None:
                self._at = at

    def take(self, sample: Sample) -> list[str]:
        """Add a sample. Return devices that have become idle for too long, once per idle period."""
        with self._lock:
            before = sample.at if self._at is None else self._at
            for_s = min(sample.at - before, _MOST_ROUNDS * self._timing.round_s)
            self._at, self._last = sample.at, sample
            self._sampled_s += for_s
            self._take_devices(list(sample.devices.values()), for_s)
            self._take_device_memory(sample)
            self._take_processes(sample.processes, sample.at - before, for_s)
            if sample.slots > 1:
                self._most["gpu_slots"] = sample.slots
            return self._idle_since(sample, for_s)

    def _take_devices(self, uses: Sequence[DeviceUse], for_s: float) -> None:
        percents = [use.percent for use in uses if use.percent is not None]
        if percents:
            self._add("gpu_percent", sum(percents) / len(percents), for_s)
            self._raise("gpu_percent_peak", max(percents))
        if watts := [use.power_w for use in uses if use.power_w is not None]:
            self._add("gpu_power_w", sum(watts), for_s)

    def _take_device_memory(self, sample: Sample) -> None:
        memory = [use.memory_bytes for use in sample.devices.values()]
        sizes = [size for size in ([sample.own_bytes] if sample.shares_memory else memory) if size is not None]
        if sizes:
            self._raise("gpu_memory_bytes_peak", sum(sizes))

    def _take_processes(self, use: ProcessUse | None, passed_s: float, for_s: float) -> None:
        before, self._processes, self._cpus = self._processes, use, None
        if use is None:
            return
        self._raise("memory_bytes_peak", use.memory_bytes)
        if before is not None and passed_s > 0:
            # The time of an exited process is lost if nobody has waited for it, so the sum may decrease.
            self._cpus = max(0.0, use.cpu_s - before.cpu_s) / passed_s
            self._add("cpus", self._cpus, for_s)

    def _idle_since(self, sample: Sample, for_s: float) -> list[str]:
        bound_s = self._timing.idle_s if sample.has_reported else IDLE_UNREPORTED_S
        for device, (percent, *_) in sample.devices.items():
            # An unknown percentage neither ends an idle period nor makes it longer.
            if percent is not None and percent >= IDLE_PERCENT:
                self._idle.pop(device, None)
                self._told.discard(device)
            elif percent is not None:
                self._idle[device] = self._idle.get(device, 0.0) + for_s
        new = [device for device, idle_s in self._idle.items() if idle_s >= bound_s and device not in self._told]
        self._told.update(new)
        for device in self._told:
            self._raise("gpu_idle_s", self._idle[device])
        return new

    def _add(self, name: str, value: float, for_s: float) -> None:
        total = self._sums[name]
        total[0] += value * for_s
        total[1] += for_s

    def note_asked(self, memory_bytes: int) -> bool:
        """Record the GPU memory that an attempt asked for and exceeded. Return whether that is new."""
        with self._lock:
            is_new = "gpu_memory_bytes_asked" not in self._most
            self._most["gpu_memory_bytes_asked"] = memory_bytes
            return is_new

    def _raise(self, name: str, value: float) -> None:
        self._most[name] = max(value, self._most.get(name, 0.0))

    def figures(self) -> Usage:
        """Return the figures so far; empty before the first sample."""
        with self._lock:
            return self._figures()

    def final(self, waited_s: float) -> Usage:
        """Return the figures of an ended attempt whose data has waited *waited_s* seconds for Redis."""
        waits = {"redis_wait_s": round(waited_s, _DIGITS)} if waited_s >= self._timing.least_wait_s else {}
        return {**self.figures(), **waits}

    def _figures(self) -> Usage:
        if not self._sampled_s:
            return {}
        figures = {name: total / for_s for name, (total, for_s) in self._sums.items() if for_s}
        if "gpu_power_w" in figures:
            figures["gpu_energy_j"] = self._sums["gpu_power_w"][0]
        return {
            name: round(value, _DIGITS)
            for name, value in {"sampled_s": self._sampled_s, **figures, **self._most}.items()
        }

    def live(self, attempt: int) -> LiveUse:
        """Return the last sample, and the figures so far."""
        with self._lock:
            memory_bytes = None if self._processes is None else self._processes.memory_bytes
            idle = {device: round(self._idle[device], _DIGITS) for device in sorted(self._told)}
            cpus = None if self._cpus is None else round(self._cpus, _DIGITS)
            return LiveUse(attempt, self._last.devices, cpus, memory_bytes, idle, self._figures())


class UseQuery(Protocol):
    """Reports how devices are used."""

    def use(self, devices: Sequence[str]) -> dict[str, DeviceUse]:
        """Return the use of each device, within seconds. It never raises, and may leave devices out."""

    def processes(self, devices: Sequence[str]) -> dict[str, dict[int, int]]:
        """Return by device the bytes of each process on it, by process id. It behaves as ``use``."""

    def close(self) -> None:
        """End; later questions get no answer."""


class UsageSampler(WorkerService):
    """Samples the resource use of running attempts.

    Args:
        worker: the worker's name.
        plan: the worker's slots.
        query: reports how devices are used. No other service may use it, because a slow GPU driver must not delay
            trials.
        attempts: returns the attempts that are here.
        board: gets the samples.
        is_strict: whether a trial that takes more of a shared GPU's memory than it asked for is ended.
    """

    def __init__(
        self,
        worker: str,
        plan: SlotPlan,
        query: UseQuery,
        attempts: Callable[[], Iterable[AttemptHere]],
        board: UsageBoard,
        timing: Timing = Timing(),
        clock: Clock = time,
        *,
        is_strict: bool = False,
    ) -> None:
        self._clock = clock
        self._timing = timing
        self._worker = worker
        self._slots_of = Counter(device for devices in plan.devices for device in devices)
        self._shares_memory, self._is_strict = plan.offer.is_shared_by_memory, is_strict
        self._query = query
        self._attempts = attempts
        #: The meter of each attempt that has had a process. It is deleted with the attempt.
        self._meters: WeakKeyDictionary[AttemptHere, UsageMeter] = WeakKeyDictionary()
        self._board = board
        self._may_write = True

    def close(self) -> None:
        """Stop asking for the use of devices.

        It does not wait for a running sample, because a GPU driver may hang.
        """
        self._query.close()

    def started(self, run: AttemptHere) -> None:
        """Begin to sample an attempt. A second process of it changes nothing."""
        if run.began_at is not None:
            self.meter_of(run).begin(run.began_at)

    def meter_of(self, run: AttemptHere) -> UsageMeter:
        """Return the meter of an attempt."""
        return self._meters.setdefault(run, UsageMeter(self._timing))

    def measured(self, run: AttemptHere) -> Usage:
        """Return the figures of an attempt whose processes have ended."""
        return self.meter_of(run).final(run.waited_s)

    def tick(self) -> tuple[Callable[[], object], ...]:
        """Return the step that samples attempts."""
        return (self.sample,)

    def sample(self) -> None:
        """Sample each attempt that has a process, and write the samples to the board."""
        runs = [(run, pid) for run in self._attempts() if (pid := run.process) is not None]
        devices = sorted({device for run, _ in runs for device in run.devices})
        uses = self._query.use(devices) if devices else {}
        sizes = self._query.processes(devices) if devices and self._shares_memory else {}
        sampled = []
        for run, pid in runs:
            processes = use_of_process(pid)
            if run.process != pid:
                # It has ended meanwhile: the device is nobody's, or the next one's.
                continue
            own_bytes = _bytes_on(pid, run.devices, sizes)
            self._warn(run, self.meter_of(run).take(self._sample_of(run, uses, processes, own_bytes)))
            sampled.append((run, own_bytes))
        board: defaultdict[str, dict[str, LiveUse]] = defaultdict(dict)
        for run, own_bytes in sampled:
            # After all samples, because an attempt that is ended here gets no further sample.
            if own_bytes is not None and own_bytes > run.shared_bytes > 0:
                self._on_excess(run, own_bytes)
            board[run.journal.experiment][run.claim.trial] = self.meter_of(run).live(run.claim.attempt)
        self._write(board)

    def _on_excess(self, run: AttemptHere, own_bytes: int) -> None:
        """Warn of an attempt with more GPU memory than it has asked for. End it if ``is_strict``."""
        error = (
            f"the trial took {in_gb(own_bytes)} of its GPU's memory, and it had asked for {in_gb(run.shared_bytes)}, "
            "beside others that share the GPU: ask for more by gpu_memory_gb=, which counts what the GPU's driver "
            "needs for each process, or take less"
        )
        if self.meter_of(run).note_asked(run.shared_bytes):
            place = f"experiment {run.journal.experiment}, trial {run.claim.trial} attempt {run.claim.attempt}"
            logger.warning("%s: %s", place, error)
        if self._is_strict:
            run.fail("GpuMemoryExceeded", error)

    def _sample_of(
        self, run: AttemptHere, uses: Mapping[str, DeviceUse], processes: ProcessUse | None, own_bytes: int | None
    ) -> Sample:
        return Sample(
            at=self._clock.monotonic(),
            devices={device: uses.get(device, DeviceUse()) for device in run.devices},
            processes=processes,
            slots=max((self._slots_of[device] for device in run.devices), default=1),
            has_reported=run.has_reported,
            shares_memory=self._shares_memory,
            own_bytes=own_bytes,
        )

    def _warn(self, run: AttemptHere, idle: Sequence[str]) -> None:
        for device in idle:
            shared = f", as do the other trials there ({self._slots_of[device]} slots share it)"
            logger.warning(
                "experiment %s, trial %s attempt %d holds device %s and leaves it idle%s: it has computed for less "
                "than %.0f %% of the time for %.0f minutes%s",
                run.journal.experiment,
                run.claim.trial,
                run.claim.attempt,
                device,
                shared if self._slots_of[device] > 1 else "",
                IDLE_PERCENT,
                (self._timing.idle_s if run.has_reported else IDLE_UNREPORTED_S) / 60,
                "" if run.has_reported else ", and the trial has not reported yet",
            )

    def _write(self, board: Mapping[str, Mapping[str, LiveUse]]) -> None:
        if not self._may_write:
            return
        with contextlib.suppress(AccessDenied):
            for experiment, uses in board.items():
                self._board.write((experiment, self._worker), uses)
            return
        self._may_write = False
        logger.warning(
            "this worker's account may not write the resource use of running trials, so it is known only after "
            "they have ended: create the account again with the rules that `mqtune fleet acl` of this version prints"
        )


def for_worker(host: WorkerHost, settings: WorkerSettings) -> tuple[WorkerService]:
    """Return the sampler. It has a GPU probe of its own: a slow one must not delay trials."""
    query, board = GpuProbe(timing=host.timing), UsageBoard(host.client)
    is_strict = settings.of(UsageSettings).strict_gpu_memory
    return (UsageSampler(host.name, host.plan, query, host.attempts, board, host.timing, is_strict=is_strict),)
