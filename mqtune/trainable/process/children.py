"""Child processes of a trial: they can't report, and leave the reason where the trial's worker finds it.

Only the trial's own process has the pipe to the worker to itself. A child's error may be lost with the child, such as in
``multiprocessing.Process``, so the trial's error repeats it if the trial ends without a report.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, NoReturn

#: The environment variable with the path of the file for the reason. All processes below a trial have it, also spawned ones.
NOTE: Final = "MQTUNE_CHILD_NOTE"
#: The file's name, in the attempt's folder.
_FILE: Final = ".child"
#: How much of the file is read, in bytes: user code may have written it.
_MAX_BYTES: Final = 1_000


def mark_descendants(folder: str) -> None:
    """Have processes that this one starts know that they are below a trial, whose attempt has this folder."""
    os.environ[NOTE] = os.path.join(folder, _FILE)


def refuse(call: str, whose: str = "trial") -> NoReturn:
    """Raise the error of a child process that has called ``report`` or ``save_checkpoint``, and leave it for the trial's worker.

    Args:
        call: the called function.
        whose: the owner of the process that may call it: the trial, or its script.
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
    """Return the error of a child process that called ``report`` in vain. It is empty without such a call."""
    try:
        with (folder / _FILE).open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
