"""How a trainable ended, as its process tells it."""

from __future__ import annotations

import os
import traceback
from typing import Final, NamedTuple

from mqtune.core.trial import AttemptEnd

__all__ = ["PIPE_CLOSED", "PIPE_CLOSED_CODE", "Ending", "describe_error"]

#: A traceback, or a message, that is longer is cut in the middle: its ends tell what happened.
_MAX_ERROR_CHARS: Final = 16_000
#: What a process exits with that can't say how it ended, because user code has closed its pipe to the worker; sysexits.h calls it
#: an error of input and output.
PIPE_CLOSED_CODE: Final = 74
PIPE_CLOSED: Final = (
    "the trial's own code has closed its pipe to the worker, as os.closerange(3, …) or a loop over /proc/self/fd does, so nothing "
    "that it reports can arrive: have it close only what it has opened"
)
_HERE: Final = os.path.dirname(__file__)


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
        while below is not None and os.path.dirname(below.tb_frame.f_code.co_filename) == _HERE:
            below = below.tb_next
        lines = traceback.format_exception(type(error), error, below)
    # A file name that is no Unicode stands in a message as lone surrogates, which can't be sent.
    text = "".join(lines).encode(errors="backslashreplace").decode()
    half = _MAX_ERROR_CHARS // 2
    return text if len(text) <= _MAX_ERROR_CHARS else f"{text[:half]}\n…\n{text[-half:]}"
