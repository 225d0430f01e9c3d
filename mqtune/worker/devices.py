"""A worker's devices.

It finds them, divides them into slots, and checks that the memory of ended trials is free again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, Final, Protocol

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import BYTES_PER_GB, Resources
from mqtune.core.timing import Timing
from mqtune.core.usage import DeviceUse
from mqtune.trainable.process.descendants import signal_group
from mqtune.worker.gpu_probe import Gpu, matching
from mqtune.worker.impairments import Cause, Impairments
from mqtune.worker.privileges import without_secrets

logger = logging.getLogger(__name__)

#: Offered GPU memory is rounded down to a multiple of this: GPUs of one kind then share a queue, and its name stays
#: readable.
_MEMORY_STEP_MB: Final = 100
_BYTES_PER_MB: Final = 1_000_000
_MB_PER_GB: Final = 1_000
#: Variables that limit the threads and processes of libraries in a trial to its slot's cores, unless the user has set
#: them.
_CORE_LIMITS: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    # joblib's and scikit-learn's n_jobs=-1 would start a process for each core of the machine.
    "LOKY_MAX_CPU_COUNT",
    "POLARS_MAX_THREADS",
    # Libraries in Rust, such as Hugging Face's tokenizers.
    "RAYON_NUM_THREADS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlan:
    """A worker's slots: all of one shape, each with its devices.

    ``is_strict`` says whether a trial is ended that takes more GPU memory than it has asked for, where trials share
    GPUs by that.
    """

    offer: Resources
    devices: tuple[tuple[str, ...], ...]
    is_strict: bool = False

    @property
    def device_bytes(self) -> int:
        """How much memory each device has; 0 if that is unknown."""
        # A slot of a GPU that is shared by memory offers all of it.
        share = min(self.offer.gpus, 1) or 1
        return round(self.offer.gpu_memory_gb / share * BYTES_PER_GB)

    @property
    def varies(self) -> frozenset[str]:
        """The names of those variables that are not the same in all slots."""
        return frozenset(_visible_by() if len(set(self.devices)) > 1 else ())

    def environment(self, slot: int) -> dict[str, str]:
        """Return the environment variables of a slot's processes, set before any user code is imported."""
        limits = {name: str(self.offer.cpus) for name in _CORE_LIMITS if name not in os.environ}
        visible = dict.fromkeys(_visible_by(), ",".join(self.devices[slot]))
        return {**visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **limits}


def _visible_by() -> tuple[str, ...]:
    """Return the variables that say which GPUs a process sees.

    They are NVIDIA's, which AMD's libraries know too, and there AMD's own.
    """
    return ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if _is_amds() else ("CUDA_VISIBLE_DEVICES",)


def _is_amds() -> bool:
    """Whether this machine has AMD's tools, and none of NVIDIA's."""
    return shutil.which("nvidia-smi") is None and shutil.which("rocm-smi") is not None


def without_devices() -> dict[str, str]:
    """Return the environment variables of a process that is to see no GPU."""
    return dict.fromkeys(_visible_by(), "")


def _visible() -> str | None:
    """Return which GPUs this process sees, as its environment says; None where it says nothing.

    Raises:
        ConfigurationError: it says so by ROCR_VISIBLE_DEVICES, by which the other variables would count anew.
    """
    if _is_amds() and "ROCR_VISIBLE_DEVICES" in os.environ:
        raise ConfigurationError(
            f"ROCR_VISIBLE_DEVICES={os.environ['ROCR_VISIBLE_DEVICES']!r} renumbers GPUs; unset it, and name those "
            f"that the worker may "
            "use: --gpus 0,1, or HIP_VISIBLE_DEVICES"
        )
    return next((os.environ[name] for name in reversed(_visible_by()) if name in os.environ), None)


def find_gpus(asked: str) -> tuple[str, ...]:
    """Return the devices for ``--gpus``: ``auto``, a number, or a list such as ``0,1`` or ``3,`` or ``GPU-…,GPU-…``.

    Raises:
        ConfigurationError: *asked* is malformed, names a device twice, or asks for more than are visible; or it is
            ``auto``, and the driver fails.
    """
    asked = asked.strip()
    if asked == "auto":
        return _visible_gpus()
    if asked.isdecimal():
        names = tuple(str(index) for index in range(int(asked)))
        visible = _visible()
        if visible is None:
            return names
        seen = _listed(visible)
        if len(seen) < len(names):
            raise ConfigurationError(
                f"--gpus {asked}: CUDA_VISIBLE_DEVICES={visible!r} shows only {len(seen)}; ask for fewer, or name "
                f"them: --gpus 0,1"
            )
        return seen[: len(names)]
    devices = _listed(asked)
    if not devices or not all(re.fullmatch(r"\d+|(GPU|MIG)-[\w/-]+", device) for device in devices):
        raise ConfigurationError(f"--gpus {asked!r} is invalid; give auto, a number, or a list such as 0,1")
    if len(set(devices)) < len(devices):
        raise ConfigurationError(
            f"--gpus {asked!r} names a device twice; for two trials on one GPU use --slots-per-gpu 2"
        )
    return devices


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _visible_gpus() -> tuple[str, ...]:
    visible = _visible()
    if visible is not None:
        return _listed(visible)
    try:
        return tuple(gpu.number for gpu in _installed())
    except _NoAnswer as error:
        # As a worker without GPUs it would be lost to the fleet until somebody notices; a supervisor tries again.
        raise ConfigurationError(
            f"which GPUs this machine has is not known, because its GPU driver fails: {error}; repair it, or go on "
            f"without "
            "GPUs by --gpus 0 (MQTUNE_GPUS=0)"
        ) from None


def find_gpu_memory(asked: str, gpus: tuple[str, ...], timing: Timing = Timing()) -> int:
    """Check that the driver knows the GPUs, and return the memory of each for ``--gpu-memory``, in MB (10⁶ bytes).

    It is 0 when it is unknown. If GPUs differ, the smallest counts, because all slots of a worker have one shape. A
    device that the driver does not list, such as a part of a GPU, makes it unknown.

    Args:
        asked: ``auto`` to ask the driver, or a number of GB.
        gpus: the devices, from ``find_gpus``.

    Raises:
        ConfigurationError: *asked* is malformed, or there are no GPUs, or the driver answers and does not list one of
            them.
    """
    asked = asked.strip()
    declared_mb = None if asked == "auto" else _declared_mb(asked)
    if not gpus and declared_mb is not None:
        raise ConfigurationError(
            f"--gpu-memory {asked} is for workers with GPUs; leave it out, or name them: --gpus 0,1"
        )
    if not gpus:
        return 0
    installed = _installed_if_known(timing)
    _check_known(gpus, installed)
    if declared_mb is not None:
        return declared_mb
    found = [_memory_mb(gpu, installed) for gpu in gpus]
    if all(found) and len({*found}) > 1:
        shown = ", ".join(f"{gpu}: {mb / _MB_PER_GB:.1f} GB" for gpu, mb in zip(gpus, found, strict=True))
        logger.warning(
            "the GPUs differ (%s): each slot offers what the smallest has; start a worker for each kind: --gpus %s,",
            shown,
            gpus[0],
        )
    return min(found)


def _declared_mb(asked: str) -> int:
    with contextlib.suppress(ValueError):
        gigabytes = float(asked)
        if math.isfinite(gigabytes) and gigabytes * _MB_PER_GB >= _MEMORY_STEP_MB:
            return round(gigabytes * _MB_PER_GB)
    raise ConfigurationError(f"--gpu-memory {asked!r} is invalid; give auto, or the GB of each GPU, such as 24")


def _memory_mb(device: str, installed: Iterable[Gpu]) -> int:
    """Return a device's memory; 0 when it is not known."""
    gpu = matching(device, installed)
    return gpu.total // _BYTES_PER_MB if gpu is not None else 0


def _installed(timing: Timing = Timing()) -> list[Gpu]:
    """Return the GPUs of this machine; none where there is no driver.

    Raises:
        _NoAnswer: there is a driver, and it fails.
    """
    if shutil.which("nvidia-smi") is None and find_spec("pynvml") is None and not _is_amds():
        return []
    with contextlib.closing(GpuProbe(timing=timing)) as probe:
        try:
            return probe.gpus()
        except _NoAnswer as error:
            # A machine without a driver may have the package.
            if error.is_final:
                return []
            raise


def _installed_if_known(timing: Timing = Timing()) -> list[Gpu]:
    try:
        return _installed(timing)
    except _NoAnswer as error:
        logger.warning(
            "which GPUs there are is not known (%s); neither is how much memory they have: --gpu-memory 24 says it",
            error,
        )
        return []


def _check_known(gpus: Iterable[str], installed: Sequence[Gpu]) -> None:
    """Raise ConfigurationError if the driver lists GPUs, and one of *gpus* is not among them.

    It lists no parts of GPUs (MIG).
    """
    unknown = [gpu for gpu in gpus if not gpu.startswith("MIG-") and matching(gpu, installed) is None]
    if installed and unknown:
        known = ",".join(gpu.number for gpu in installed)
        raise ConfigurationError(
            f"the GPU driver does not know the GPUs {','.join(unknown)} of --gpus, or of CUDA_VISIBLE_DEVICES: this "
            f"machine has {known}; name some of these: --gpus {installed[0].number},"
        )


def plan_slots(
    gpus: tuple[str, ...],
    *,
    slots_per_gpu: int = 1,
    gpus_per_slot: int = 1,
    pack_gpus: int | None = None,
    cpus: int | None = None,
    slots: int | None = None,
    gpu_memory_mb: int = 0,
    tags: Iterable[str] = (),
) -> SlotPlan:
    """Return the slots that a worker offers.

    Args:
        gpus: the devices, from ``find_gpus``; without one the slots are CPU slots.
        slots_per_gpu: how many trials share a GPU.
        gpus_per_slot: how many GPUs a trial gets.
        pack_gpus: how many trials share a GPU at most, where each gets the memory that it asks for; None to share none
            so.
        cpus: cores that the worker may use; all that this process may run on by default. Slots share them evenly.
        slots: number of CPU slots; one for each core by default.
        gpu_memory_mb: memory of each GPU in MB, from ``find_gpu_memory``; trials that share a GPU share it evenly.
        tags: what every slot has besides.

    Raises:
        ConfigurationError: the numbers don't go together.
    """
    for name, value in (
        ("slots-per-gpu", slots_per_gpu),
        ("gpus-per-slot", gpus_per_slot),
        ("pack-gpus", pack_gpus),
        ("cpus", cpus),
        ("slots", slots),
    ):
        if value is not None and value < 1:
            raise ConfigurationError(f"--{name} {value}: must be at least 1")
    cores = cpus or usable_cpus()
    if not gpus and pack_gpus is None:
        number = slots or cores
        return SlotPlan(offer=Resources(cpus=max(1, cores // number), tags=tags), devices=((),) * number)
    if slots is not None:
        raise ConfigurationError(f"--slots {slots} is for workers without GPUs; use --slots-per-gpu or --gpus-per-slot")
    if pack_gpus is not None:
        return _packed(gpus, pack_gpus, slots_per_gpu * gpus_per_slot, cores, gpu_memory_mb, tags)
    if slots_per_gpu > 1 and gpus_per_slot > 1:
        raise ConfigurationError("--slots-per-gpu and --gpus-per-slot can't both be more than 1")
    if len(gpus) % gpus_per_slot:
        raise ConfigurationError(
            f"--gpus-per-slot {gpus_per_slot} does not divide the {len(gpus)} GPUs {','.join(gpus)}"
        )
    if gpus_per_slot > 1:
        devices = tuple(gpus[at : at + gpus_per_slot] for at in range(0, len(gpus), gpus_per_slot))
    else:
        devices = tuple((gpu,) for gpu in gpus for _ in range(slots_per_gpu))
    share = gpus_per_slot if gpus_per_slot > 1 else 1 / slots_per_gpu
    memory_steps = gpu_memory_mb // slots_per_gpu // _MEMORY_STEP_MB
    offer = Resources(
        gpus=share,
        cpus=max(1, cores // len(devices)),
        gpu_memory_gb=memory_steps / (_MB_PER_GB // _MEMORY_STEP_MB),
        tags=tags,
    )
    return SlotPlan(offer=offer, devices=devices)


def _packed(
    gpus: tuple[str, ...], most: int, in_slots: int, cores: int, gpu_memory_mb: int, tags: Iterable[str]
) -> SlotPlan:
    """Return the slots of GPUs that trials share by memory."""
    if not gpus:
        raise ConfigurationError(f"--pack-gpus {most} is for workers with GPUs; leave it out, or name them: --gpus 0,1")
    if in_slots > 1:
        raise ConfigurationError(
            f"--pack-gpus {most} goes neither with --slots-per-gpu nor with --gpus-per-slot: trials share a GPU "
            f"evenly, or by memory"
        )
    steps = gpu_memory_mb // _MEMORY_STEP_MB
    if not steps:
        raise ConfigurationError(
            f"--pack-gpus {most}: how much memory the GPUs have is not known; say it: --gpu-memory 24, the GB of each"
        )
    offer = Resources(
        cpus=max(1, cores // (most * len(gpus))), gpu_memory_gb=steps / (_MB_PER_GB // _MEMORY_STEP_MB), tags=tags
    )
    return SlotPlan(offer=offer, devices=tuple((gpu,) for gpu in gpus for _ in range(most)))


def usable_cpus() -> int:
    """Return how many cores this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


#: The process that asks; its module says what it is asked and answers.
COMMAND: Final = (sys.executable, "-P", "-m", "mqtune.worker.gpu_probe")
#: A killed process is gone at once, unless it hangs in the driver; then it is not waited for.
_GONE_S: Final = 1.0
_READ_BYTES: Final = 1 << 16


class _NoAnswer(Exception):
    """The driver can't be asked; ``is_final`` if asking again is useless."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class GpuProbe:
    """Asks the GPU driver through a process of its own, started for the first question and again when it has died.

    Every answer has a deadline, so a driver that hangs blocks nothing else. Any thread may ask; close it at the end.
    """

    def __init__(self, command: Sequence[str] = COMMAND, timing: Timing = Timing()) -> None:
        self._timing = timing
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._asks_from = 0.0
        self._said: set[str] = set()

    def gpus(self) -> list[Gpu]:
        """Return the GPUs of this machine, within some ``gpu_list_s``.

        Raises:
            _NoAnswer: the driver can't be asked.
        """
        with self._lock:
            try:
                answer = self._ask("gpus", self._timing.gpu_list_s)
                return [Gpu(*gpu) for gpu in answer["gpus"]]
            except _NoAnswer:
                self._end()
                raise

    def used(self, devices: Sequence[str]) -> dict[str, int]:
        """Return the bytes in use on each device, within some ``gpu_answer_s``.

        Devices whose use is unknown are left out.
        It never raises: a fault is logged once, and nobody is asked again for a while.
        """
        answer = self._asked([*devices], "the worker does not wait for it to be freed")
        for device, reason in answer.get("unknown", {}).items():
            self._say_once(
                f"the memory in use on device {device} is unknown ({reason}); the worker does not wait for it to be "
                f"freed"
            )
        return {device: int(used) for device, used in answer.get("used", {}).items()}

    def use(self, devices: Sequence[str]) -> dict[str, DeviceUse]:
        """Return how each device is used, by any process; as ``used``, but what is unknown of a device is None."""
        answer = self._asked({"use": [*devices]}, "so is how its trials use them")
        return {device: DeviceUse(*use) for device, use in answer.get("use", {}).items()}

    def processes(self, devices: Sequence[str]) -> dict[str, dict[int, int]]:
        """Return how many bytes each process has on each device, by its number.

        It is as ``used``, without the devices that do not say it.
        """
        answer = self._asked({"processes": [*devices]}, "so is how much of it each trial has")
        return {
            device: {int(pid): int(size) for pid, size in those.items()}
            for device, those in answer.get("processes", {}).items()
        }

    def _asked(self, question: list[str] | dict[str, list[str]], otherwise: str) -> dict[str, Any]:
        """Return the answer to a question about devices, or an empty one after a fault, and for a while then."""
        with self._lock:
            if time.monotonic() < self._asks_from:
                return {}
            try:
                return self._ask(question, self._timing.gpu_answer_s)
            except _NoAnswer as error:
                self._end()
                self._asks_from = float("inf") if error.is_final else time.monotonic() + self._timing.gpu_pause_s
                self._say_once(f"the memory in use on its devices is unknown ({error}); {otherwise}")
                return {}

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)

    def _ask(self, question: object, timeout_s: float) -> dict[str, Any]:
        try:
            if self._process is not None and self._process.poll() is not None:
                self._end()
            if self._process is None:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    env=without_secrets(),
                    # A Ctrl-C in the worker's terminal is not meant for it. In the worker's own session it is no orphan
                    # (see mqtune.worker.processes).
                    process_group=0,
                )
            assert self._process.stdin is not None  # noqa: S101 - both are pipes
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._read_line(timeout_s))
        except (OSError, ValueError) as error:
            raise _NoAnswer(f"{type(error).__name__}: {error}") from None
        if "error" in answer:
            raise _NoAnswer(answer["error"], is_final=answer["final"])
        return answer

    def _read_line(self, timeout_s: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None  # noqa: S101, PT018 - made by the caller
        fd, line = self._process.stdout.fileno(), b""
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        deadline = time.monotonic() + timeout_s
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise _NoAnswer(f"no answer within {timeout_s:g} s")
            read = os.read(fd, _READ_BYTES)
            if not read:
                raise _NoAnswer("the process that asks has died")
            line += read
        return line

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        _kill(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GONE_S)

    def close(self) -> None:
        """End the process; whoever waits for an answer gets none, and later questions get none either."""
        self._asks_from = float("inf")
        process = self._process
        if process is not None:
            _kill(process)
        if self._lock.acquire(timeout=_GONE_S):
            self._asks_from = float("inf")
            self._end()
            self._lock.release()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and the nvidia-smi that it may have started."""
    if process.returncode is None:
        signal_group(process.pid, signal.SIGKILL)


#: How much more memory a device may have in use than before a trial: displays and monitoring vary by some ten MiB,
#: while the smallest thing that a trial can leave behind, a CUDA context, takes at least 300 MiB.
TOLERANCE_BYTES: Final = 256 << 20
#: How much of a device's memory others may have in use where a trial begins: a share, and always so much. Displays and
#: desktops take less.
OTHERS_SHARE: Final = 0.1
OTHERS_BYTES: Final = 2_000_000_000
_MEMORY: Final = "memory"


class DeviceQuery(Protocol):
    """Says how much memory of devices is in use."""

    def used(self, devices: Sequence[str]) -> dict[str, int]:
        """Return the bytes in use on each device, by any process; devices whose use is unknown are left out.

        Any thread may call it. It answers within seconds and never raises.
        """

    def close(self) -> None:
        """End; later questions get no answer."""


class DeviceMemory:
    """Checks that devices have freed the memory of ended trials, and that nobody else has it.

    Quarantines those that are too full.

    **The rule.** The memory in use on a device is recorded when a trial begins on it and no other slot has a process
    there; if others have too much of it then, no trial begins. When the last trial there has ended, it must return to
    that, within a tolerance and a time. While another slot that shares the device has a process there, nothing is
    compared; a process that is kept for further trials counts as one. Devices whose use is unknown count as empty.

    Any thread may call anything here.

    Args:
        query: says how much memory is in use.
        impairments: takes the devices that are too full.
        total_bytes: how much memory each device has; 0 if that is unknown.
    """

    def __init__(
        self, query: DeviceQuery, impairments: Impairments, total_bytes: int = 0, timing: Timing = Timing()
    ) -> None:
        self._timing = timing
        self._query = query
        self._impairments = impairments
        self._others_bytes = max(OTHERS_BYTES, round(total_bytes * OTHERS_SHARE))
        self._lock = threading.Lock()
        #: Held while a baseline is recorded, so that no other slot's trial starts on the device meanwhile.
        self._entering = threading.Lock()
        self._closing = threading.Event()
        #: The slots that have a process on each device.
        self._here: defaultdict[str, set[int]] = defaultdict(set)
        #: The baseline that each device must return to, until it has.
        self._before: dict[str, int] = {}

    def look(self, devices: Collection[str]) -> None:
        """Quarantine those devices of which others have too much memory in use; for a worker that starts."""
        self._refuse(self._query.used(sorted(devices)))

    def _refuse(self, used: Mapping[str, int]) -> bool:
        """Quarantine devices that others have filled; return whether there are any."""
        full = {device: size for device, size in used.items() if size > self._others_bytes}
        for device, size in full.items():
            cause = Cause(
                f"others have {in_gb(size)} of its memory in use",
                "its memory is free",
                is_over=partial(self._is_within, device, self._others_bytes),
            )
            text = (
                f"{in_gb(size)} of its memory is in use by others. No trial starts there until it is free; nvidia-smi "
                "shows who has it"
            )
            self._impairments.put([device], _MEMORY, cause, says=text)
        return bool(full)

    def _is_within(self, device: str, most: int) -> bool:
        return self._query.used([device]).get(device, math.inf) <= most

    def enter(self, slot: int, devices: Sequence[str]) -> bool:
        """Record that a slot's trial is about to start on its devices.

        Return False, and it must not, if one of them is too full.
        """
        with self._entering:
            with self._lock:
                if any(self._impairments.cause_of(device, _MEMORY) for device in devices):
                    return False
                new = [d for d in devices if d not in self._before and not self._here[d] - {slot}]
                for device in devices:
                    self._here[device].add(slot)
            if new:
                used = self._query.used(new)
                if self._refuse(used):
                    self.leave(slot, devices)
                    return False
                with self._lock:
                    self._before.update(used)
        return True

    def kept(self, slot: int, devices: Sequence[str]) -> dict[str, int]:
        """Return the growth of each device's memory in use since before its process, in bytes.

        Devices on which another slot has a process are left out.
        """
        with self._lock:
            before = {d: self._before[d] for d in devices if d in self._before and self._here[d] == {slot}}
        used = self._query.used(list(before)) if before else {}
        return {device: used[device] - before[device] for device in used}

    def leave(self, slot: int, devices: Sequence[str]) -> None:
        """Record that a slot has no process on its devices any more, without checking their memory."""
        with self._lock:
            for device in devices:
                self._here[device].discard(slot)

    def settle(self, slot: int, devices: Sequence[str]) -> None:
        """Record that a slot's process group is gone; return when its devices' memory is free, or they are quarantined.

        It returns within about ``gpu_return_s``, and at once when the worker is shutting down.
        """
        self.leave(slot, devices)
        deadline = time.monotonic() + self._timing.gpu_return_s
        while too_full := self._too_full(devices):
            if time.monotonic() >= deadline:
                self._hold(too_full)
                return
            self._closing.wait(self._timing.gpu_poll_s)

    def _too_full(self, devices: Sequence[str]) -> dict[str, int]:
        """Return the use of those devices that exceed their baseline, and forget the baseline of the others."""
        with self._lock:
            watched = [device for device in devices if device in self._before and not self._here[device]]
        if not watched or self._closing.is_set():
            return {}
        used = self._query.used(watched)
        too_full = {}
        with self._lock:
            for device in watched:
                # Another slot's trial may have started meanwhile.
                if device not in self._before or self._here[device]:
                    continue
                if used.get(device, 0) > self._before[device] + TOLERANCE_BYTES:
                    too_full[device] = used[device]
                else:
                    del self._before[device]
        return too_full

    def _hold(self, too_full: dict[str, int]) -> None:
        # In the lock, so that no other slot's trial starts there in between.
        with self._lock:
            for device, used in too_full.items():
                if self._here[device] or self._closing.is_set():
                    continue
                before = self._before[device]
                cause = Cause(
                    f"{in_gb(used - before)} of its memory did not come back",
                    "its memory is back",
                    is_over=partial(self._is_back, device),
                )
                text = (
                    f"{in_gb(used)} of its memory is in use {self._timing.gpu_return_s:.0f} s after the last trial's "
                    f"processes ended, and {in_gb(before)} was "
                    "before it began. No trial starts there until it is free; nvidia-smi shows which process has it"
                )
                self._impairments.put([device], _MEMORY, cause, says=text)

    def _is_back(self, device: str) -> bool:
        if not self._is_within(device, self._before[device] + TOLERANCE_BYTES):
            return False
        with self._lock:
            del self._before[device]
        return True

    def close(self) -> None:
        """Stop waiting for memory, and end the query."""
        self._closing.set()
        self._query.close()


def in_gb(size: float) -> str:
    """Return a number of bytes in words."""
    return f"{size / BYTES_PER_GB:.1f} GB"
