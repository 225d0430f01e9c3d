"""Child processes of a trial: they can't report, and leave an error note for the worker.

Only the trial's own process may use the pipe to the worker. A child's error may be lost with the child, for instance in
``multiprocessing.Process``. So if the trial ends without a report, the worker adds the note to the trial's error.
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
    """Set the variable that tells child processes where to write the error note.

    Args:
        folder: the attempt's folder.
    """
    os.environ[NOTE] = os.path.join(folder, _FILE)


def refuse(call: str, whose: str = "trial") -> NoReturn:
    """Raise an error, because a child process reports or saves. Note it for the worker, too.

    Args:
        call: name of the called function.
        whose: owner of the process that may report: "trial", or "trial's script".
    """
    why = (
        f"{call}: this is a child process of the {whose}, which can't report or save: pass the values to the {whose}'s "
        "own process, such as through a multiprocessing.Queue or a file, and report them there"
    )
    # The attempt may have ended already. The error is raised in any case.
    with contextlib.suppress(OSError, KeyError):
        path = Path(os.environ[NOTE])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(why, encoding="utf-8")
    raise RuntimeError(why)


def refusal_in(folder: Path) -> str:
    """Return the note of a child process that tried to report or save. It is empty without one.

    Args:
        folder: the attempt's folder.
    """
    try:
        with (folder / _FILE).open("rb") as file:
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
