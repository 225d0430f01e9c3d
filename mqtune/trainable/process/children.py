"""Child processes of a trial: they can't report, and leave an error note for its worker.

Only the trial's own process may use the pipe to the worker. A child's error may be lost with the child, such as in
``multiprocessing.Process``, so the trial's error repeats it if the trial ends without a report.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, NoReturn

#: Environment variable with the path of the note. All descendants of a trial have it, including spawned ones.
NOTE: Final = "MQTUNE_CHILD_NOTE"
#: The file's name, in the attempt's folder.
_FILE: Final = ".child"
#: Maximum bytes read: user code may have written the file.
_MAX_BYTES: Final = 1_000


def mark_descendants(folder: str) -> None:
    """Mark all further child processes as descendants of the attempt with this folder."""
    os.environ[NOTE] = os.path.join(folder, _FILE)


def refuse(call: str, whose: str = "trial") -> NoReturn:
    """Raise the error of a child process that reports or saves, and note it for the worker.

    Args:
        whose: owner of the permitted process: the trial, or its script.
    """
    why = (
        f"{call}: this is a child process of the {whose}, which can't report or save: pass the values to the {whose}'s own process, such "
        "as through a multiprocessing.Queue or a file, and report them there"
    )
    # The attempt may have ended, on another machine or before this process.
    with contextlib.suppress(OSError, KeyError):
        path = Path(os.environ[NOTE])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(why, encoding="utf-8")
    raise RuntimeError(why)


def refusal_in(folder: Path) -> str:
    """Return the error of a child process that called ``report``, or an empty text."""
    try:
        with (folder / _FILE).open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
