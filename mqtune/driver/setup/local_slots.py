"""Computes the slots of a local worker from the resources of its trials."""

from __future__ import annotations

import math
from typing import Final

from mqtune.core.errors import ConfigurationError, InsufficientResources
from mqtune.core.resources import Resources
from mqtune.worker.host.devices import find_gpu_memory, find_gpus, plan_slots, plan_slots_by_memory, usable_cpus

#: A share of a GPU may differ by this from 1/2, 1/3 and so on. Queues use the same tolerance.
_SHARE_TOLERANCE: Final = 1e-6


def slot_settings(asked: Resources, slots: int | None, least_bytes: int = 0) -> dict[str, str | int]:
    """Return the settings of a local worker whose slots fit trials with these resources.

    They are a dict of names and values.

    Args:
        asked: the resources of each trial. This machine counts as having the tags.
        slots: the number of slots. By default as many as fit on this machine.
        least_bytes: if trials share GPUs by memory and their needs differ, the smallest need in bytes.

    Raises:
        InsufficientResources: this machine lacks the resources.
        ConfigurationError: the GPUs can't be divided into *slots* slots, or a trial takes more slots than that.
    """
    if slots is not None and asked.slots > max(1, slots):
        raise ConfigurationError(
            f"Local(slots={slots}): a trial takes {asked.slots} slots; give at least {asked.slots}, or leave slots out"
        )
    cores = usable_cpus()
    shared: dict[str, str | int] = {"cpus": cores, "tags": ",".join(sorted(asked.tags))}
    if asked.cpus > cores:
        raise _lacks(asked, f"it has {cores}")
    if asked.is_shared_by_memory:
        return {**_packed_settings(asked, slots, least_bytes or asked.shared_bytes, cores), **shared}
    if not asked.gpus:
        # For a whole number of trials: slots that are too few for another one would be of no use.
        number = slots if slots is not None else max(1, cores // (asked.cpus * asked.slots)) * asked.slots
        # One core is the default, and no real demand. Therefore there may be more such trials than cores.
        if asked.cpus > 1 and number * asked.cpus > cores:
            raise _lacks(asked, f"with {number} slots they need {number * asked.cpus}, and it has {cores}")
        return {"gpus": "0", "slots": number, **shared}
    return {**_gpu_settings(asked, slots, cores), **shared}


def _gpu_settings(asked: Resources, slots: int | None, cores: int) -> dict[str, str | int]:
    per_slot, per_gpu = _counts(asked)
    gpus = find_gpus("auto")
    if len(gpus) < per_slot:
        seen = f"sees {len(gpus)}: {','.join(gpus)}" if gpus else "sees none"
        raise _lacks(asked, f"it {seen} (by CUDA_VISIBLE_DEVICES, or nvidia-smi)")
    most = len(gpus) // per_slot * per_gpu
    if asked.cpus > 1:
        most = min(most, cores // asked.cpus)
    number = most // per_gpu * per_gpu if slots is None else slots
    if not asked.slots <= number <= most:
        unit = "trials at the same time" if asked.slots == 1 else "slots"
        raise _lacks(asked, f"it has {len(gpus)} GPUs and {cores} CPUs, which is room for {most} such {unit}")
    if number % per_gpu:
        raise ConfigurationError(
            f"Local(slots={number}) does not go with {per_gpu} trials on each GPU; give a multiple of {per_gpu}, and "
            f"RunOptions(max_concurrent={number}) to run no more at the same time"
        )
    used = gpus[: number // per_gpu * per_slot]
    memory_mb = find_gpu_memory("auto", used)
    offer = plan_slots(used, slots_per_gpu=per_gpu, gpus_per_slot=per_slot, gpu_memory_mb=memory_mb).offer
    if asked.gpu_memory_gb > offer.gpu_memory_gb:
        has = f"{offer.gpu_memory_gb:g} GB for each" if memory_mb else "an amount that nvidia-smi does not say"
        raise _lacks(asked, f"its GPUs have {has}")
    # The final comma makes a single GPU a name. Without it, the setting would be a number of GPUs.
    return {"gpus": f"{','.join(used)},", "slots_per_gpu": per_gpu, "gpus_per_slot": per_slot}


def _packed_settings(asked: Resources, slots: int | None, least_bytes: int, cores: int) -> dict[str, str | int]:
    """Return the settings for trials that share GPUs by memory.

    *asked* has the largest need of a trial.
    """
    gpus = find_gpus("auto")
    if not gpus:
        raise _lacks(asked, "it sees no GPU (by CUDA_VISIBLE_DEVICES, or nvidia-smi)")
    memory_mb = find_gpu_memory("auto", gpus)
    if not memory_mb:
        raise _lacks(asked, "its GPUs have an amount that nvidia-smi does not say")
    total = plan_slots_by_memory(gpus, 1, memory_mb).offer
    if asked.gpu_memory_gb > total.gpu_memory_gb:
        raise _lacks(asked, f"its GPUs have {total.gpu_memory_gb:g} GB each")
    most = total.shared_bytes // least_bytes
    if most * len(gpus) < asked.slots:
        raise _lacks(asked, f"its {len(gpus)} GPUs have room for {most} such slots each")
    if slots is None or asked.cpus > 1:
        # By default, no more trials than cores.
        most = min(most, max(math.ceil(asked.slots / len(gpus)), cores // (asked.cpus * len(gpus))))
    if slots is not None and (slots % len(gpus) or not 0 < slots <= most * len(gpus)):
        raise ConfigurationError(
            f"Local(slots={slots}) does not go with {len(gpus)} GPUs that have room for {most} such trials each; give "
            f"a multiple of {len(gpus)} up to {most * len(gpus)}, and RunOptions(max_concurrent={slots}) to run no "
            f"more at the same time"
        )
    return {"gpus": f"{','.join(gpus)},", "pack_gpus": most if slots is None else slots // len(gpus)}


def _counts(asked: Resources) -> tuple[int, int]:
    """Return the number of GPUs of a slot, and the number of slots that share a GPU.

    One of them is 1.
    """
    if asked.gpus >= 1:
        return int(asked.gpus), 1
    sharing = round(1 / asked.gpus)
    if not math.isclose(asked.gpus, 1 / sharing, abs_tol=_SHARE_TOLERANCE):
        raise InsufficientResources(
            f"a trial asks for {asked.gpus:g} of a GPU, which no slot offers, because trials share a GPU evenly; "
            f"give gpus=1/{sharing}"
        )
    return 1, sharing


def _lacks(asked: Resources, reason: str) -> InsufficientResources:
    return InsufficientResources(
        f"a trial asks for {asked}, which this machine can't give: {reason}; ask for less, or give a broker whose "
        f"workers have it"
    )
