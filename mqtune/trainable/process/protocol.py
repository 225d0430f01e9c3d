"""What a worker and its trials say to each other: frames from a trial, records to it, and how it ended."""

from __future__ import annotations

import os
import signal
import struct
import traceback
from typing import Final, Literal, NamedTuple

from mqtune.core.trial import AttemptEnd

__all__ = [
    "CLEARED",
    "FRAME",
    "FRAME_CHECKPOINT",
    "FRAME_END",
    "FRAME_REPORT",
    "FRAME_SAVED",
    "PAUSE",
    "PIPE_CLOSED",
    "PIPE_CLOSED_CODE",
    "RECORD",
    "RELAY",
    "SAVE",
    "STOP",
    "STOP_SIGNAL",
    "Ending",
    "Told",
    "describe_error",
]

#: A frame on the pipe from a trial to its worker: length of the body, kind; the body follows.
FRAME: Final = struct.Struct("<IB")
FRAME_REPORT: Final = 1
FRAME_END: Final = 2
#: A checkpoint in memory, as ``[id, bytes]``; it comes before the frame that names it.
FRAME_CHECKPOINT: Final = 3
#: The id of a complete checkpoint that no report came with.
FRAME_SAVED: Final = 4

#: Tells a trial that there is something to read on its control pipe. Not SIGUSR1, which NCCL and Python's faulthandler
#: users take for themselves.
STOP_SIGNAL: Final = signal.SIGUSR2

#: The environment variable that tells a script, which a trial runs, where the channel to that trial is.
RELAY: Final = "MQTUNE_RELAY"

#: One record: its kind, and a number. A pipe takes one this small whole or not at all.
RECORD: Final = struct.Struct("<cQ")
STOP: Final = b"S"
PAUSE: Final = b"P"
#: The number counts the wishes that a checkpoint be saved.
SAVE: Final = b"V"
#: In lockstep: the reports up to this sequence number are decided, and the trial may go on.
CLEARED: Final = b"G"

#: What a trial was told: nothing, to stop for good, or to pause, from which it may be resumed.
Told = Literal["", "stop", "pause"]


#: A traceback, or a message, that is longer is cut in the middle: its ends tell what happened.
_MAX_ERROR_CHARS: Final = 16_000
#: What a process exits with that can't say how it ended, because user code has closed its pipe to the worker; sysexits.h calls it
#: an error of input and output.
PIPE_CLOSED_CODE: Final = 74
PIPE_CLOSED: Final = (
    "the trial's own code has closed its pipe to the worker, as os.closerange(3, …) or a loop over /proc/self/fd does, so nothing "
    "that it reports can arrive: have it close only what it has opened"
)
#: The folder of the code that calls user code.
_HERE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Ending(NamedTuple):
    """How a trainable ended: the kind of the error and its text, if it failed, and the code its process exits with."""

    end: AttemptEnd
    error_type: str = ""
    error: str = ""
    code: int = 0


def describe_error(error: BaseException) -> str:
    """Return an error with its traceback from user code on, as text that can be sent, whatever user code put into it."""
    if isinstance(error, SystemExit):
        lines = [line.rstrip() for line in traceback.format_exception_only(error)]
    else:
        # What stands above user code is the same each time.
        below = error.__traceback__
        while below is not None and below.tb_frame.f_code.co_filename.startswith(_HERE):
            below = below.tb_next
        lines = traceback.format_exception(type(error), error, below)
    # A file name that is no Unicode stands in a message as lone surrogates, which can't be sent.
    text = "".join(lines).encode(errors="backslashreplace").decode()
    half = _MAX_ERROR_CHARS // 2
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:half]}\n…\n{text[-half:]}"
