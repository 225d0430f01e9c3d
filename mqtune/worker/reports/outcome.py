"""Decides how an attempt ended, from everything that is known about it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from mqtune.core.machine import signal_name
from mqtune.core.trial import DEVICE_BROKEN, AttemptEnd, Intent
from mqtune.trainable.process.protocol import PIPE_CLOSED, PIPE_CLOSED_CODE, STOP_SIGNAL

#: How much of an attempt's output the journal keeps; the files have all of it.
TAIL_BYTES: Final = 2_000
TAIL_BYTES_FAILED: Final = 16_000
_OUT_OF_MEMORY: Final = (
    "the system killed it because memory ran out: give trials fewer, larger slots, or a config that needs less"
)
#: Errors that ended the trial's process; any other error kept it from starting.
_ZYGOTES_FAULT: Final = frozenset({"ZygoteDied", "ZygoteSilent"})
#: A shell whose command was ended by a signal exits with this number plus the signal's.
_KILLED: Final = 128
#: The words of CUDA and NVIDIA's driver for a broken device. Indented lines are quoted code, and don't count.
#: "unspecified launch failure", "device-side assert" and the like come from a trial's own computations.
_BROKEN: Final = re.compile(
    r"^\S.*?(uncorrectable (?:ECC|NVLink) error|ECC_?UNCORRECTABLE|NVLINK_?UNCORRECTABLE|\bXid \(PCI[^)]*\)|"
    r"GPU has fallen off the bus|GPU is lost)",
    re.IGNORECASE | re.MULTILINE,
)


def broken_device(error: str) -> str:
    """Return the words of an error that name a broken device; empty without such words."""
    named = _BROKEN.search(error)
    return named[1] if named else ""


def describe_noise(fault: str) -> tuple[str, str]:
    """Return type and text of the error of a trial that has sent malformed data."""
    return "Noise", (
        f"the trial's process sent malformed data: {fault}; some code in it has written to the pipe to its worker: "
        f"don't write to file "
        "descriptors that the trainable has not opened"
    )


class Ending(NamedTuple):
    """An attempt's end, and its error if there is one."""

    end: AttemptEnd
    error_type: str = ""
    error: str = ""

    @property
    def tail_bytes(self) -> int:
        """How many bytes of each output file the journal keeps."""
        return TAIL_BYTES_FAILED if self.end is AttemptEnd.FAILED or self.error_type == DEVICE_BROKEN else TAIL_BYTES


@dataclass(frozen=True, slots=True)
class RunResult:
    """How an attempt ended on this worker.

    ``end`` is None if it was not claimed, or the journal refused its end. ``note`` gives the reason or error. If it
    ``goes_back``, it may run elsewhere, and its task returns to the far end of its queue.
    """

    end: AttemptEnd | None
    note: str
    error_type: str = ""
    goes_back: bool = False


#: The end of an attempt after a loss of reports in Redis that this worker can't send again.
LACKS_REPORTS: Final = Ending(
    AttemptEnd.LOST, "Gap", "Redis lacks reports that this attempt sent before, and so it refused the later ones"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOutcome:
    """Everything that is known about an attempt whose process group is gone.

    Attributes:
        intent: the driver's last intent, or the worker's.
        said: the trainable's own message about its end; None without one.
        problem: type and text of the error that kept it from running; both empty without one.
        status: the wait status of its process; None without a process, or when it is unknown.
        forced: whether its group was terminated or killed.
        memory_ran_out: returns whether the kernel has just killed a process for lack of memory.
        outlived_s: its time limit in seconds, if it ran longer; None otherwise.
        has_gap: whether the journal lacks reports that it sent.
        dropped: how many of its reports were dropped, as it was told to end while the server was full.
        fault: type and text of the error for which its worker has ended it; None without one.
        refusal: the error of a child process that has tried to report, if the trial itself has made no report; else
            empty.
    """

    intent: Intent
    said: dict[str, Any] | None = None
    problem: tuple[str, str] = ("", "")
    status: int | None = None
    forced: bool = False
    memory_ran_out: Callable[[], bool] = lambda: False
    outlived_s: float | None = None
    has_gap: bool = False
    dropped: int = 0
    fault: tuple[str, str] | None = None
    has_devices: bool = False
    refusal: str = ""

    def ending(self) -> Ending:
        """Return how the attempt ended.

        If the trainable ended before it received the intent, its own end counts. Otherwise the intent counts, with the
        error that was raised meanwhile, if any.
        """
        said, intent = self.said, self.intent
        if self.has_gap:
            return LACKS_REPORTS
        heard = said is not None and bool(said.get("heard"))
        if self.fault is not None:
            return Ending(AttemptEnd.FAILED, *self.fault)
        if self.dropped and intent is not Intent.RUN:
            # This holds also if the trainable was complete before it received the intent: its last reports are not in
            # the journal.
            return Ending(intent.effect.end, "", _say_dropped(self.dropped))
        # A trainable that raises StopTrial without an intent has ended by itself.
        if said is not None and said["end"] != AttemptEnd.FAILED.value and (not heard or intent is Intent.RUN):
            return Ending(AttemptEnd.COMPLETED, error=self.refusal)
        error = self.problem if said is None else (said["error_type"], said["error"])
        if self.outlived_s is not None:
            return Ending(AttemptEnd.FAILED, "AttemptTimeout", _say_outlived(self.outlived_s, error[1]))
        if intent is not Intent.RUN and not (intent is Intent.PAUSE and self._failed_before(heard=heard)):
            return Ending(intent.effect.end, *error)
        if said is None and error[0]:
            # It never ran, and another worker may be able to run it.
            return Ending(AttemptEnd.LOST if error[0] in _ZYGOTES_FAULT else AttemptEnd.HANDED_BACK, *error)
        if said is None:
            error = _describe_exit(self.status)
        if not self.forced and _was_killed(self.status):
            if self.memory_ran_out():
                error = ("OutOfMemory", f"{error[1]}\n{_OUT_OF_MEMORY}")
            elif said is None:
                error = (error[0], f"{error[1]}; the kernel does so when memory runs out")
        end = AttemptEnd.FAILED if said is None else AttemptEnd(said["end"])
        if end is AttemptEnd.FAILED and self.has_devices and broken_device(error[1]):
            return Ending(AttemptEnd.HANDED_BACK, DEVICE_BROKEN, error[1])
        if self.refusal and self.refusal not in error[1]:
            error = (error[0], f"{self.refusal}\n{error[1]}")
        return Ending(end, *error)

    def _failed_before(self, *, heard: bool) -> bool:
        """Whether the attempt had failed before it heard that it should pause."""
        if self.said is not None:
            return not heard and self.said["end"] == AttemptEnd.FAILED.value
        if self.problem[0] or self.forced or self.status is None:
            return False
        # Death by the stop signal itself means that user code had removed the handler.
        return not os.WIFSIGNALED(self.status) or os.WTERMSIG(self.status) != STOP_SIGNAL


def _say_dropped(reports: int) -> str:
    last = "its last report was" if reports == 1 else f"its last {reports:,} reports were"
    return f"{last} dropped: it was told to end while Redis had no memory left (maxmemory)"


def _say_outlived(timeout_s: float, error: str) -> str:
    text = (
        f"the attempt ran longer than its timeout_s of {timeout_s:g} s and was stopped; give trials more time, or "
        "smaller budgets"
    )
    return f"{text}\n{error}" if error else text


def _was_killed(status: int | None) -> bool:
    """Whether SIGKILL ended the process, or the script that it ran."""
    return status is not None and (
        (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
        or (os.WIFEXITED(status) and os.WEXITSTATUS(status) == _KILLED + signal.SIGKILL)
    )


def _describe_exit(status: int | None) -> tuple[str, str]:
    """Return the error's type and text for a process that ended without a message."""
    if status is not None and os.WIFSIGNALED(status):
        return "Killed", f"the trial's process was killed by {signal_name(os.WTERMSIG(status))}"
    code = os.WEXITSTATUS(status) if status is not None else "?"
    if code == PIPE_CLOSED_CODE:
        return "PipeClosed", PIPE_CLOSED
    return "Exited", f"the trial's process exited with code {code} in the middle of the trainable"
