"""The messages, frames and records between a worker, a zygote and a trial's process."""

from __future__ import annotations

import os
import select
import signal
import struct
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, TypedDict

from mqtune.core.trial import AttemptEnd, Config

#: A message as it arrives on a channel.
Message = dict[str, Any]


class StartMessage(TypedDict):
    """Starts an attempt. A worker sends it to a zygote, which passes it to the trial's process.

    Attributes:
        timestamp: time of the trial's last report in an earlier attempt. Further reports get no earlier time.
        epoch_s: time at which this machine's monotonic clock was 0, by the clock that all machines share.
        stdout: path of the file for standard output; ``stderr`` likewise.
        claim: the token of the worker's claim. The ids of checkpoints end with it.
        checkpoint: id of the checkpoint to start from; empty without one.
        checkpoint_data: bytes of that checkpoint if it is a dict and still exists in Redis.
        store: URL of the experiment's checkpoint store; empty without one.
        sync: "lockstep" if ``report`` waits for the driver's decision.
        folder: the attempt's folder. It is made on first use, and deleted at the end of the attempt.
        working_dir: the attempt's own working directory; else empty.
        seat: number of this process's seat, from 0. All seats of a gang have the same ``trial``.
        seats: how many seats the attempt has; 1 if it is no gang.
        address: "host:port" of seat 0 in a gang, else empty.
        environment: variables for the trial's code.
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

#: Tells a trial to read its control pipe. SIGUSR1 is no alternative: NCCL and users of Python's faulthandler need it.
STOP_SIGNAL: Final = signal.SIGUSR2

#: A record on the control pipe from a worker to a trial: its kind, and a number. Writes of this size are atomic.
RECORD: Final = struct.Struct("<cQ")
STOP: Final = b"S"
PAUSE: Final = b"P"
#: Requests a checkpoint. The number counts these requests.
SAVE: Final = b"V"
#: The reports up to this sequence number have their decision or answer. A waiting ``report`` may return.
CLEARED: Final = b"G"
#: Eight bytes of an answer, as a number. The next ``CLEARED`` completes the answer.
ANSWER: Final = b"A"
#: Maximum length of an answer in characters: all its records must fit into one atomic write.
MAX_ANSWER_CHARS: Final = (select.PIPE_BUF // RECORD.size - 1) * 8

#: The order to a trial: "" for none, "stop" to end for ever, or "pause" to end and perhaps be resumed later.
StopOrder = Literal["", "stop", "pause"]

#: The environment variable with the address of a script's channel to the trial's process.
RELAY: Final = "MQTUNE_RELAY"

#: A Python script starts with these variables, unless the worker sets others: printed reports should arrive
#: immediately.
UNBUFFERED: Final = {"PYTHONUNBUFFERED": "1"}

#: Maximum length of an error's text with its traceback. Longer ones lose their middle, as the ends tell most.
_MAX_ERROR_CHARS: Final = 16_000
#: The exit code of a process that can't report its end, because user code has closed the pipe to the worker. It is
#: EX_IOERR of sysexits.h.
PIPE_CLOSED_CODE: Final = 74
PIPE_CLOSED: Final = (
    "the trial's code has closed its pipe to the worker, as os.closerange(3, …) or a loop over /proc/self/fd does, so "
    "its reports can't arrive: let that code close only the files that it has opened"
)
#: The folder of mqtune's code that calls user code.
_CALLERS: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep


class TrainableEnd(NamedTuple):
    """How a trainable ended: type and text of its error, if any, and the exit code for its process."""

    end: AttemptEnd
    error_type: str = ""
    error: str = ""
    code: int = 0


def user_trace(error: BaseException) -> TracebackType | None:
    """Return an error's traceback from the first frame of user code on.

    mqtune's frames above it are the same in each error.
    """
    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename.startswith(_CALLERS):
        below = below.tb_next
    return below


def describe_error(error: BaseException) -> str:
    """Return an error's text with its traceback, without mqtune's own frames.

    It can be encoded as UTF-8. A long text loses its middle.
    """
    if isinstance(error, SystemExit):
        lines = [line.rstrip() for line in traceback.format_exception_only(error)]
    else:
        lines = traceback.format_exception(type(error), error, user_trace(error))
    # A file name that is not Unicode has lone surrogates in its text, which can't be sent.
    text = "".join(lines).encode(errors="backslashreplace").decode()
    half = _MAX_ERROR_CHARS // 2
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:half]}\n…\n{text[-half:]}"
