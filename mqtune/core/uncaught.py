"""What a script's user sees of an error that mqtune raised and nobody caught: one line."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Final

from mqtune.core.errors import MqtuneError, UserCodeFailed

__all__ = ["say_in_one_line"]

_PACKAGE: Final = str(Path(__file__).parents[1])


def say_in_one_line() -> None:
    """Have errors that mqtune raises on purpose end a script with one line, which names where in the script it was.

    Before it stands the traceback of what a scheduler, searcher or rule of the user's raised, if that is the cause.

    Other errors, and those that user code raised, keep their traceback. Nothing changes in Python's development mode
    (``python -X dev``), nor where somebody has another hook.
    """
    if sys.excepthook is sys.__excepthook__ and not sys.flags.dev_mode:
        sys.excepthook = _show


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    if not isinstance(error, MqtuneError) or not frames or frames[-1] in own:
        sys.__excepthook__(kind, error, trace)
        return
    if isinstance(error, UserCodeFailed) and error.__cause__ is not None:
        # Where in the user's scheduler, searcher or rule it was.
        cause = traceback.TracebackException.from_exception(error.__cause__)
        theirs = [frame for frame in cause.stack if not frame.filename.startswith(_PACKAGE)]
        cause.stack = traceback.StackSummary.from_list(theirs)
        print(*cause.format(), sep="", end="", file=sys.stderr)
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    print(f"mqtune: {kind.__name__}: {error}{place}", file=sys.stderr)
