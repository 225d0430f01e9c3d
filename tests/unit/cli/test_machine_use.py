"""What attempts use of their machines: as figures, as what stands in Redis, and as text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from mqtune.cli import machine_use as shown
from mqtune.core.codec import VERSION, encode_value
from mqtune.core.trial import Attempt, AttemptEnd
from mqtune.core.usage import DeviceUse, LiveUse, decode_uses, encode_uses

GB = 1e9
FIELDS = ("attempt", "devices", "cpus", "memory_bytes", "idle", "usage")


def replaced(use: LiveUse, **values: Any) -> LiveUse:
    return LiveUse(**{**dict(zip(FIELDS, use, strict=True)), **values})


#: A trial that computes on one device and does nothing on another, which is a part of a GPU.
USE = LiveUse(
    attempt=2,
    devices={"0": DeviceUse(87.0, 31.2 * GB, 412.4), "MIG-7": DeviceUse(None, 5 * GB, None)},
    cpus=3.75,
    memory_bytes=12.4 * GB,
    idle={},
    usage={"sampled_s": 7380.0, "gpu_percent": 80.6, "gpu_percent_peak": 99.0, "gpu_memory_bytes_peak": 33 * GB},
)
IDLE = replaced(USE, devices={"0": DeviceUse(1.0, 31.2 * GB, 71.0)}, idle={"0": 1390.0})
RUNNING = Attempt(2, 1.0, started_at=2.0)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=6,
)
keys = st.sampled_from([*FIELDS, "other"])
bodies = st.dictionaries(keys, values, max_size=7) | st.fixed_dictionaries({"attempt": st.just(1), "devices": values})


def test_what_was_written_is_read_whatever_stands_beside_it() -> None:
    assert decode_uses(encode_uses({"0001": USE, "0002": IDLE})) == {"0001": USE, "0002": IDLE}
    whole = dict(zip(FIELDS, USE, strict=True))
    written = {"0001": whole, "0002": {"attempt": "1"}, "0003": None, 4: whole}

    assert decode_uses(encode_value([VERSION, written])) == {"0001": USE}


@pytest.mark.parametrize("data", [b"", b"\xc1", b"x", encode_value([VERSION + 1, {}]), encode_value([VERSION, [1]])])
def test_what_can_not_be_read_is_nothing(data: bytes) -> None:
    assert decode_uses(data) == {}


@settings(max_examples=30)
@given(found=st.dictionaries(st.text(max_size=5), bodies | values, max_size=3))
def test_whatever_a_worker_writes_can_be_shown(found: dict[str, Any]) -> None:
    for use in decode_uses(encode_value([VERSION, found])).values():
        texts = [shown.use_text(use), shown.short_use_text(use), shown.usage_text(use.usage)]
        texts += [shown.warning_of(RUNNING, use), shown.sharing_of(RUNNING, use), *shown.idle_warnings({"1": use})]
        assert all(text.isprintable() for text in texts)
        assert shown.described_use(use)


def test_what_is_used_now_is_a_line_that_says_what_is_not_known() -> None:
    assert shown.use_text(USE) == (
        "device 0: 87 %, 31.2 GB, 412 W · device MIG-7: 5.0 GB (its driver does not report how busy a part of a GPU is) · "
        "3.8 CPUs, 12.4 GB of memory"
    )
    unknown = LiveUse(1, {"0": DeviceUse()}, None, None, {}, {})
    assert shown.use_text(unknown) == "device 0: its driver reports nothing"
    assert shown.short_use_text(unknown) == ""
    assert shown.short_use_text(None) == ""
    assert shown.short_use_text(USE) == "87 %, 36.2 GB"
    assert shown.short_use_text(replaced(USE, devices={})) == "3.8 CPUs, 12.4 GB of memory"
    assert shown.short_use_text(IDLE) == "idle for 23 min 10 s, 1 %, 31.2 GB"


def test_figures_are_a_line_of_what_is_known_and_say_when_they_are_those_of_a_shared_device() -> None:
    shared = shown.sharing_of(RUNNING, replaced(USE, usage={"gpu_slots": 2}))
    assert shared == "2 slots share each device: its figures include everything that runs there"
    assert shown.sharing_of(RUNNING, USE) == ""
    whole = {**USE.usage, "gpu_power_w": 398.4, "gpu_energy_j": 2.94e6, "cpus": 3.2, "memory_bytes_peak": 12.4 * GB}

    assert shown.usage_text(whole) == (
        "GPU 81 % (up to 99 %), up to 33.0 GB, 398 W (816.7 Wh) · 3.2 CPUs, up to 12.4 GB of memory · sampled for 2 h 03 min"
    )
    assert shown.usage_text({"gpu_memory_bytes_peak": 5 * GB}) == "GPU up to 5.0 GB"
    assert shown.usage_text({"memory_bytes_peak": 13_520_896}) == "up to 14 MB of memory"
    assert shown.usage_text({"gpu_power_w": 400.0, "gpu_energy_j": 7_200_000.0}) == "GPU 400 W (2.0 kWh)"
    assert shown.usage_text({"sampled_s": 7380.0, "redis_wait_s": 690.0}) == (
        "sampled for 2 h 03 min, data waited 11 min 30 s for Redis"
    )
    assert shown.usage_text({}) == ""


def test_a_trial_that_leaves_its_gpu_idle_is_warned_of_while_it_runs_and_afterwards() -> None:
    ended = Attempt(1, 1.0, started_at=2.0, end=AttemptEnd.COMPLETED, usage={"gpu_idle_s": 1390.0})

    assert shown.warning_of(RUNNING, IDLE) == "attempt 2 has device 0 and has left it idle for 23 min 10 s"
    assert shown.warning_of(RUNNING, USE) == shown.warning_of(RUNNING, None) == ""
    assert shown.warning_of(ended, None) == "attempt 1 left a device idle for 23 min 10 s without a break"
    greedy = replace(ended, usage={"gpu_memory_bytes_peak": 8.1 * GB, "gpu_memory_bytes_asked": 6.0 * GB})
    assert shown.warning_of(greedy, None) == "attempt 1 has used 8.1 GB of its GPU's memory, but asked for 6.0 GB"
    assert shown.usage_text(greedy.usage) == "GPU up to 8.1 GB, and it asked for 6.0 GB"
    # What is still in Redis of an attempt that has ended meanwhile.
    assert shown.warning_of(ended, IDLE) == shown.warning_of(ended, None)
    many = {f"{number:04}": replaced(IDLE, idle={"0": 600.0 + number}) for number in range(12)}
    lines = shown.idle_warnings({"1": USE, **many})
    assert (lines[0], lines[-1], len(lines)) == ("trial 0011 has left its GPU idle for 10 min 11 s", "… and 2 more", 11)
