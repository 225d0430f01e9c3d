"""The process of a submitted script: it runs the script as Python would, and ends with its worker.

What it is to run comes through standard input, so that the broker's password and the key for code stand in no process's
initial environment, which others of the same user can read.
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
from mqtune.trainable.process.descendants import die_with_parent

#: The command of such a process; without the current folder among those of modules, as the worker's.
COMMAND: Final = (sys.executable, "-P", "-m", "mqtune.worker.script_process")
#: The exit code of a script that has given up waiting for the server, or met another driver that lives, such as its
#: last run on a worker that was cut off: a later run may do better. sysexits.h calls it a temporary failure.
AGAIN_CODE: Final = os.EX_TEMPFAIL


def start_message(script: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> bytes:
    """Return what such a process reads: its script, and what its environment has besides."""
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
        exec(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True), vars(program))  # noqa: S102 - that is what it is for
    except SystemExit:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever the script raises ends it
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
