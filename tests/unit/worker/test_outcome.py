"""The ends of attempts: before a trial is told to end, its own acts count, and afterwards the order counts."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from mqtune.core.trial import DEVICE_BROKEN, AttemptEnd, Intent
from mqtune.trainable import STOP_SIGNAL
from mqtune.worker import AttemptOutcome, Ending, MemoryKills, broken_device, find_counter

COMPLETED, STOPPED, PAUSED = AttemptEnd.COMPLETED, AttemptEnd.STOPPED, AttemptEnd.PAUSED
FAILED, LOST, HANDED_BACK = AttemptEnd.FAILED, AttemptEnd.LOST, AttemptEnd.HANDED_BACK
WANTED = {
    Intent.STOP: STOPPED,
    Intent.ABANDON: STOPPED,
    Intent.PAUSE: PAUSED,
    Intent.COMPLETE: COMPLETED,
    Intent.HAND_BACK: HANDED_BACK,
}


def said(end: str, heard: str = "", error_type: str = "", error: str = "") -> dict[str, Any]:
    return {"end": end, "heard": heard, "error_type": error_type, "error": error}


RAISED = said("failed", error_type="ValueError", error="no luck")
SCRIPT = said("failed", error_type="Killed", error="script a.py was killed by SIGKILL")
ZYGOTE_DIED = ("ZygoteDied", "gone")


def exited(code: int) -> int:
    return code << 8


def ending(intent: Intent = Intent.RUN, **evidence: Any) -> Ending:
    return AttemptOutcome(intent=intent, **evidence).ending()


@pytest.mark.parametrize("intent", Intent)
def test_a_trainable_that_ended_before_it_knew_has_completed_unless_reports_are_missing(intent: Intent) -> None:
    for how in ("completed", "stopped"):
        assert ending(intent, said=said(how), status=0) == Ending(COMPLETED)
    assert ending(intent, said=said("completed"), status=0, has_gap=True)[:2] == (LOST, "Gap")


@pytest.mark.parametrize("intent", WANTED)
def test_a_trainable_that_was_told_ends_as_was_wanted_and_its_error_is_told(intent: Intent) -> None:
    heard = "pause" if intent in (Intent.PAUSE, Intent.HAND_BACK) else "stop"

    for how in ("stopped", "paused", "completed"):
        assert ending(intent, said=said(how, heard), status=0) == Ending(WANTED[intent])
    raised = ending(intent, said={**RAISED, "heard": "pause"}, status=exited(1))
    assert raised == Ending(WANTED[intent], "ValueError", "no luck")


@pytest.mark.parametrize(
    ("evidence", "kind"),
    [
        ({"said": RAISED, "status": exited(1)}, "ValueError"),
        ({"status": signal.SIGSEGV}, "Killed"),
        ({"status": exited(3)}, "Exited"),
        ({"status": signal.SIGKILL, "forced": True}, None),
        # User code has removed the handler.
        ({"status": STOP_SIGNAL}, None),
        ({"problem": ZYGOTE_DIED}, None),
    ],
)
def test_a_pause_hides_no_failure_from_before_it_and_no_worse_end_makes_it_one(evidence: Any, kind: str | None) -> None:
    found = ending(Intent.PAUSE, **evidence)
    assert found.end is PAUSED if kind is None else found[:2] == (FAILED, kind)


@pytest.mark.parametrize(
    ("evidence", "end", "kind"),
    [
        ({"said": RAISED, "status": exited(1)}, FAILED, "ValueError"),
        ({"problem": ZYGOTE_DIED}, LOST, "ZygoteDied"),
        ({"problem": ("TrainableNotFound", "where?")}, HANDED_BACK, "TrainableNotFound"),
        *(({"status": number}, FAILED, "Killed") for number in sorted(signal.valid_signals())),
        ({"status": exited(0)}, FAILED, "Exited"),
        ({"said": said("stopped", "stop"), "status": 0}, COMPLETED, ""),
        ({"status": signal.SIGTERM, "outlived_s": 2.5}, FAILED, "AttemptTimeout"),
        # The system has killed it for lack of memory, or its script; or somebody else has, or another signal.
        ({"status": signal.SIGKILL, "memory_ran_out": lambda: True}, FAILED, "OutOfMemory"),
        (
            {"status": exited(128 + signal.SIGKILL), "memory_ran_out": lambda: True, "said": SCRIPT},
            FAILED,
            "OutOfMemory",
        ),
        ({"status": signal.SIGKILL, "memory_ran_out": lambda: True, "forced": True}, FAILED, "Killed"),
        ({"status": signal.SIGSEGV, "memory_ran_out": lambda: True}, FAILED, "Killed"),
        ({"status": exited(1), "memory_ran_out": lambda: True}, FAILED, "Exited"),
    ],
)
def test_an_attempt_that_nobody_has_told_anything_ended_as_it_did(evidence: dict[str, Any], end: AttemptEnd, kind: str):
    assert ending(**evidence)[:2] == (end, kind)


def test_the_texts_of_ends_name_the_signal_the_limit_and_the_trials_own_error() -> None:
    killed = ending(status=signal.SIGKILL, memory_ran_out=lambda: True).error.splitlines()
    plain = ending(Intent.STOP, status=signal.SIGTERM, outlived_s=2.5)
    raised = ending(Intent.STOP, said={**RAISED, "heard": "stop"}, outlived_s=2.5)

    assert killed[0] == "the trial's process was killed by SIGKILL"
    assert "memory ran out" in killed[-1]
    assert "SIGSEGV" in ending(status=signal.SIGSEGV).error
    assert "timeout_s of 2.5 s" in plain.error
    assert raised.error.endswith("no luck")
    assert ending(Intent.STOP, said=said("completed"), outlived_s=2.5).end is COMPLETED


TORCH = (
    'Traceback (most recent call last):\n  File "train.py", line 3, in train\n    loss.backward()\n{}\n'
    "CUDA kernel errors might be asynchronously reported at some other API call"
)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "uncorrectable ECC error"),
        ("torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected", "uncorrectable NVLink error"),
        ("RuntimeError: cudaErrorECCUncorrectable: device 0", "ECCUncorrectable"),
        ("pycuda.driver.Error: CUDA_ERROR_ECC_UNCORRECTABLE", "ECC_UNCORRECTABLE"),
        ("pynvml.NVMLError_GpuIsLost: GPU is lost", "GPU is lost"),
        ("RuntimeError: NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.", "Xid (PCI:0000:1a:00)"),
        ("RuntimeError: CUDA error: unspecified launch failure", ""),
        ("RuntimeError: CUDA error: device-side assert triggered", ""),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", ""),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB", ""),
        ("ValueError: maxid 12 is unknown", ""),
        ('    raise ValueError("uncorrectable ECC error")', ""),
    ],
)
def test_an_error_that_says_that_its_device_is_broken_hands_the_attempt_back(line: str, words: str) -> None:
    error = TORCH.format(line)
    failed = said("failed", error_type="RuntimeError", error=error)

    broken = Ending(HANDED_BACK, DEVICE_BROKEN, error)
    assert ending(said=failed, has_devices=True) == (broken if words else Ending(FAILED, "RuntimeError", error))
    assert broken_device(error)[: len(words) or None] == words
    assert ending(said=failed).end is FAILED, "it has no device"
    assert ending(Intent.STOP, said={**failed, "heard": "stop"}, has_devices=True).end is STOPPED


def count(path: Path, kills: int) -> Path:
    """Write a group's counter as the kernel does."""
    path.write_text(f"low 0\nhigh 7\noom 9\noom_kill {kills}\noom_group_kill 0\n")
    return path


def test_a_kill_for_lack_of_memory_shows_until_two_heartbeats_later(tmp_path: Path) -> None:
    counter = count(tmp_path / "memory.events", 5)
    kills = MemoryKills(counter)
    assert not kills.happened(), "those before the worker are none of its own"

    count(counter, 6)
    assert kills.happened()
    kills.read_counter()
    assert kills.happened()
    assert kills.happened(), "another that died in the same seconds"
    kills.read_counter()

    assert not kills.happened()


def test_the_counter_of_the_workers_own_group_comes_before_the_machines(tmp_path: Path) -> None:
    machine = count(tmp_path / "vmstat", 0)
    assert find_counter(tmp_path, machine) == machine

    group = count(tmp_path / "memory.events", 0)
    assert find_counter(tmp_path, machine) == group
