"""The process of a submitted script, which runs it like Python and ends with its worker.

The script and its secrets come through standard input. So the broker's password and the key for code are in no initial
environment, which other processes of the same user can read.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final

from mqtune.core.errors import BrokerRefused, BrokerTooOld, BrokerUnavailable, NameTaken
from mqtune.core.machine import INTERRUPTED_CODE
from mqtune.trainable import die_with_parent

#: Command of such a process. Modules are not imported from the current folder, as in the worker.
COMMAND: Final = (sys.executable, "-P", "-m", "mqtune.services.submissions.script_process")
#: Exit code of a script that found no server, or another living driver. A later run may succeed. sysexits.h calls it a
#: temporary failure.
AGAIN_CODE: Final = os.EX_TEMPFAIL


def start_message(script: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> bytes:
    """Return the input of such a process: its script, and additions to its environment."""
    return json.dumps([os.getpid(), str(script), arguments, environment]).encode()


def main() -> int:
    """Run the script, and return the exit code."""
    parent, path, arguments, environment = json.load(sys.stdin.buffer)
    die_with_parent(parent)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.update(environment)
    sys.argv[:] = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    program = sys.modules["__main__"] = ModuleType("__main__")
    program.__file__, program.__loader__ = path, SourceFileLoader("__main__", path)
    try:
        exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(program))  # noqa: S102 - its purpose
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - any error ends the script
        # Without the frame of this function.
        trace = error.__traceback__ and error.__traceback__.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            return INTERRUPTED_CODE
        return AGAIN_CODE if _may_pass(error) else 1
    return 0


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, NameTaken):
        return error.left_s > 0
    return isinstance(error, BrokerUnavailable) and not isinstance(error, BrokerRefused | BrokerTooOld)


if __name__ == "__main__":
    sys.exit(main())
