"""The protocol between a worker, a zygote and a trial's process.

It has messages, frames, records, and the end of a trial.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import traceback
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, TypedDict

from mqtune.core.trial import AttemptEnd, Config

#: A message as it arrives on a channel.
Message = dict[str, Any]


class StartMessage(TypedDict):
    """Starts a trial: a worker sends it to a zygote, which passes it on to the trial's process.

    ``timestamp`` is the time of the trial's last report in an earlier attempt; no later time is before it. ``epoch_s``
    is the time, by the clock that all machines share, when the monotonic clock was 0. ``folder`` is made when it is
    first needed and deleted when the attempt has ended. ``working_dir`` is empty unless the attempt has a working
    directory of its own. ``claim`` is the mark of the worker's claim, which the ids of checkpoints end with.
    ``checkpoint`` is the id of the checkpoint to start from, or empty, and ``checkpoint_data`` its bytes if it is held
    in Redis and still exists. ``store`` is the URL of the experiment's store, or empty. ``sync`` is "lockstep" if
    ``report`` waits for its decision. ``seat`` is the number of this process's seat, ``seats`` how many there are, 1
    but for a gang; ``trial`` is the same in all. Of a gang, ``address`` is seat 0's, as "host:port"; else it is empty.
    ``environment`` has variables for the trial's code.
    """

    config: Config
    timestamp: float
    epoch_s: float
    stdout: str
    stderr: str
    trial: str
    attempt: int
    claim: str
    experiment: str
    checkpoint: str
    checkpoint_data: bytes | None
    store: str
    sync: str
    folder: str
    working_dir: str
    seat: int
    seats: int
    address: str
    environment: Mapping[str, str]
    options: Mapping[str, object]


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

#: A record on the control pipe from a worker to a trial: its kind, and a number. A pipe takes one this small whole or not at all.
RECORD: Final = struct.Struct("<cQ")
STOP: Final = b"S"
PAUSE: Final = b"P"
#: A checkpoint should be saved; the number counts these requests.
SAVE: Final = b"V"
#: The reports up to this sequence number are decided, or answered, and a trial that waits may go on.
CLEARED: Final = b"G"
#: Eight bytes of the answer that comes with the next ``CLEARED``, as a number.
ANSWER: Final = b"A"
#: The most characters of an answer: its records must go through the pipe together.
MAX_ANSWER_CHARS: Final = (select.PIPE_BUF // RECORD.size - 1) * 8

#: An order of a trial: none, to stop for ever, or to pause, from which it may be resumed.
StopOrder = Literal["", "stop", "pause"]

#: The environment variable with the address of the channel from a script to the trial's process that started it.
RELAY: Final = "MQTUNE_RELAY"

#: The environment of a Python script's interpreter from the start, unless a worker has set it otherwise: printed reports
#: should arrive immediately.
UNBUFFERED: Final = {"PYTHONUNBUFFERED": "1"}

#: An error's text, with its traceback, that is longer is cut in the middle: its ends tell what happened.
_MAX_ERROR_CHARS: Final = 16_000
#: The exit code of a process that can't report how it ended, because user code has closed its pipe to the worker;
#: sysexits.h calls it an error of input and output.
PIPE_CLOSED_CODE: Final = 74
PIPE_CLOSED: Final = (
    "the trial's own code has closed its pipe to the worker, as os.closerange(3, …) or a loop over /proc/self/fd does, so nothing "
    "that it reports can arrive: have it close only what it has opened"
)
#: The folder of the code that calls user code.
_HERE: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep


class TrainableEnd(NamedTuple):
    """A trainable's end: the type and text of its error, if any, and its process's exit code."""

    end: AttemptEnd
    error_type: str = ""
    error: str = ""
    code: int = 0


def describe_error(error: BaseException) -> str:
    """Return an error as text that can be sent, with its traceback from user code on."""
    if isinstance(error, SystemExit):
        lines = [line.rstrip() for line in traceback.format_exception_only(error)]
    else:
        # The frames above user code are the same each time.
        below = error.__traceback__
        while below is not None and below.tb_frame.f_code.co_filename.startswith(_HERE):
            below = below.tb_next
        lines = traceback.format_exception(type(error), error, below)
    # A file name that is not Unicode has lone surrogates in its text, which can't be sent.
    text = "".join(lines).encode(errors="backslashreplace").decode()
    half = _MAX_ERROR_CHARS // 2
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:half]}\n…\n{text[-half:]}"
