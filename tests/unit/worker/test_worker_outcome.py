"""How an attempt ended: what it did before it knew counts as its own doing, later what was wanted of it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from mqtune.core.trial import DEVICE_BROKEN, AttemptEnd, Intent
from mqtune.trainable import STOP_SIGNAL
from mqtune.worker import AttemptOutcome, Ending, broken_device

WANTED = {
    Intent.STOP: AttemptEnd.STOPPED,
    Intent.ABANDON: AttemptEnd.STOPPED,
    Intent.PAUSE: AttemptEnd.PAUSED,
    Intent.COMPLETE: AttemptEnd.COMPLETED,
    Intent.HAND_BACK: AttemptEnd.HANDED_BACK,
}


def said(end: str, heard: str = "", error_type: str = "", error: str = "") -> dict[str, Any]:
    return {"end": end, "heard": heard, "error_type": error_type, "error": error}


FAILED = said("failed", error_type="ValueError", error="no luck")


def exited(code: int) -> int:
    return code << 8


@pytest.mark.parametrize("intent", Intent)
@pytest.mark.parametrize("how", ["completed", "stopped"])
def test_one_that_returned_or_raised_stop_trial_before_it_knew_has_completed_whatever_was_wanted(
    intent: Intent, how: str
) -> None:
    assert AttemptOutcome(intent=intent, said=said(how), status=0).ending() == Ending(AttemptEnd.COMPLETED)


@pytest.mark.parametrize("intent", WANTED)
@pytest.mark.parametrize("how", ["stopped", "paused", "completed"])
def test_one_that_ended_because_it_was_told_ended_as_was_wanted(intent: Intent, how: str) -> None:
    """Also a function that catches StopTrial, saves and returns."""
    heard = "pause" if intent in (Intent.PAUSE, Intent.HAND_BACK) else "stop"

    assert AttemptOutcome(intent=intent, said=said(how, heard), status=0).ending() == Ending(WANTED[intent])


@pytest.mark.parametrize("intent", WANTED)
def test_an_error_on_the_way_out_is_told_and_changes_nothing(intent: Intent) -> None:
    ending = AttemptOutcome(intent=intent, said={**FAILED, "heard": "pause"}, status=exited(1)).ending()

    assert ending == Ending(WANTED[intent], "ValueError", "no luck")


def test_one_that_was_to_pause_and_had_failed_before_it_knew_has_failed() -> None:
    by_error = AttemptOutcome(intent=Intent.PAUSE, said=FAILED, status=exited(1)).ending()
    by_signal = AttemptOutcome(intent=Intent.PAUSE, status=signal.SIGSEGV).ending()
    by_exit = AttemptOutcome(intent=Intent.PAUSE, status=exited(3)).ending()

    assert by_error == Ending(AttemptEnd.FAILED, "ValueError", "no luck")
    assert by_signal[:2] == (AttemptEnd.FAILED, "Killed")
    assert "SIGSEGV" in by_signal.error
    assert by_exit[:2] == (AttemptEnd.FAILED, "Exited")


@pytest.mark.parametrize(
    "evidence",
    [
        AttemptOutcome(intent=Intent.PAUSE, status=signal.SIGKILL, forced=True),
        AttemptOutcome(intent=Intent.PAUSE, status=STOP_SIGNAL),
        AttemptOutcome(intent=Intent.PAUSE, problem=("ZygoteDied", "gone")),
    ],
    ids=["killed by the ladder", "killed by the stop signal itself", "gone with its zygote"],
)
def test_one_that_was_made_to_pause_is_paused(evidence: AttemptOutcome) -> None:
    assert evidence.ending().end is AttemptEnd.PAUSED


@pytest.mark.parametrize(
    ("evidence", "end", "kind"),
    [
        (AttemptOutcome(intent=Intent.RUN, said=FAILED, status=exited(1)), AttemptEnd.FAILED, "ValueError"),
        (AttemptOutcome(intent=Intent.RUN, problem=("ZygoteDied", "gone")), AttemptEnd.LOST, "ZygoteDied"),
        (
            AttemptOutcome(intent=Intent.RUN, problem=("TrainableNotFound", "where?")),
            AttemptEnd.HANDED_BACK,
            "TrainableNotFound",
        ),
        (AttemptOutcome(intent=Intent.RUN, status=signal.SIGKILL), AttemptEnd.FAILED, "Killed"),
        *(
            (AttemptOutcome(intent=Intent.RUN, status=number), AttemptEnd.FAILED, "Killed")
            for number in sorted(signal.valid_signals())
        ),
        (AttemptOutcome(intent=Intent.RUN, status=exited(0)), AttemptEnd.FAILED, "Exited"),
        (AttemptOutcome(intent=Intent.RUN, said=said("stopped", "stop"), status=0), AttemptEnd.COMPLETED, ""),
    ],
)
def test_one_of_which_nothing_was_wanted_ended_as_it_did(evidence: AttemptOutcome, end: AttemptEnd, kind: str) -> None:
    assert evidence.ending()[:2] == (end, kind)


def test_one_that_outlived_its_time_has_failed_with_the_seconds_and_its_own_error() -> None:
    plain = AttemptOutcome(intent=Intent.STOP, said=said("stopped", "stop"), outlived_s=2.5).ending()
    broken = AttemptOutcome(intent=Intent.STOP, said={**FAILED, "heard": "stop"}, outlived_s=2.5).ending()
    in_time = AttemptOutcome(intent=Intent.STOP, said=said("completed"), outlived_s=2.5).ending()

    assert plain[:2] == (AttemptEnd.FAILED, "TimeToLive")
    assert "ttl_s of 2.5 s" in plain.error
    assert broken.error.endswith("no luck")
    assert in_time.end is AttemptEnd.COMPLETED


@pytest.mark.parametrize("intent", Intent)
def test_one_whose_reports_did_not_all_arrive_is_lost_whatever_it_did(intent: Intent) -> None:
    ending = AttemptOutcome(intent=intent, said=said("completed"), status=0, has_gap=True).ending()

    assert (ending.end, ending.error_type) == (AttemptEnd.LOST, "Gap")


# Devices that are broken.

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
    ],
)
def test_an_error_that_says_that_its_device_is_broken_hands_the_attempt_back(line: str, words: str) -> None:
    error = TORCH.format(line)
    failed = said("failed", error_type="RuntimeError", error=error)

    assert AttemptOutcome(intent=Intent.RUN, said=failed, has_devices=True).ending() == Ending(
        AttemptEnd.HANDED_BACK, DEVICE_BROKEN, error
    )
    assert broken_device(error).startswith(words)
    assert AttemptOutcome(intent=Intent.RUN, said=failed).ending().end is AttemptEnd.FAILED, "it has no device"
    stopped = AttemptOutcome(intent=Intent.STOP, said={**failed, "heard": "stop"}, has_devices=True)
    assert stopped.ending().end is AttemptEnd.STOPPED


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB",
        "ValueError: maxid 12 is unknown",
        '    raise ValueError("uncorrectable ECC error")',
    ],
)
def test_errors_of_what_a_trial_computes_are_its_own(line: str) -> None:
    failed = said("failed", error_type="RuntimeError", error=TORCH.format(line))

    assert AttemptOutcome(intent=Intent.RUN, said=failed, has_devices=True).ending().end is AttemptEnd.FAILED
