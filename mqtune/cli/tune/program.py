"""Find the program in a command line, such as train.py in ``python train.py --epochs 3``.

Trials run files of the user, by the worker's Python or directly. An interpreter in front of the file is left out if
that changes nothing. Otherwise it is an error, whose text names a way out.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple

from mqtune.core.errors import TrainableNotFound

_PYTHON: Final = re.compile(r"pythonw?(\d+(\.\d+)*)?")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
#: Options of Python that change nothing in a trial: its output is unbuffered anyway.
_WITHOUT_EFFECT: Final = frozenset({"-u"})
_MODULE_OPTION: Final = "-m"
#: The most bytes of a program's first line, which names its interpreter.
_FIRST_LINE_BYTES: Final = 200


class TunedProgram(NamedTuple):
    """The user's program in a command line.

    Attributes:
        begin: the program as a ``Script`` begins: a path, or ``-m`` and a module.
        rest: the words after the program.
        env: the variables that a leading ``env`` sets for it.
        notes: lines for the user about differences to a start by hand.
    """

    begin: list[str]
    rest: list[str]
    env: dict[str, str]
    notes: Sequence[str] = ()

    @property
    def stem(self) -> str:
        """The name of the file or module, without its folders and its ending."""
        return self.begin[1].rpartition(".")[2] if self.begin[0] == _MODULE_OPTION else Path(self.begin[0]).stem


def program_of(words: Sequence[str]) -> TunedProgram:
    """Return the program of a command line.

    Raises:
        TrainableNotFound: the program is missing or does not exist, or trials can't run it as it is written.
    """
    env, words = _without_env(words)
    if not words:
        raise TrainableNotFound("the program is missing; write it last: mqtune tune … -- python train.py --lr …")
    first, rest = words[0], words[1:]
    if _PYTHON.fullmatch(Path(first).name):
        begin, rest = _of_python(first, rest)
        return TunedProgram(begin, rest, env, _other_python(first))
    if not _is_own(first):
        return TunedProgram([_of_interpreter(first, rest)], rest[1:], env)
    return TunedProgram([first], rest, env)


def _is_own(program: str) -> bool:
    """Return whether a program is a file of the user, and not an installed program."""
    # Installed programs are in a folder of $PATH. Some people have the current folder there.
    folders = {Path(folder).resolve() for folder in os.get_exec_path()} - {Path.cwd()}
    return Path(program).is_file() and Path(program).resolve().parent not in folders


def _without_env(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a leading ``env``, and the words after them."""
    rest, env = list(words), dict[str, str]()
    if not rest or Path(rest[0]).name != "env" or _is_own(rest[0]):
        return env, rest
    del rest[0]
    while rest and (match := _ASSIGNMENT.fullmatch(rest[0])) is not None:
        env[match[1]] = match[2]
        del rest[0]
    if rest and rest[0].startswith("-"):
        raise TrainableNotFound(
            f"env {rest[0]}: trials can't have options of env; leave it out, or write it into a run.sh"
        )
    return env, rest


def _of_python(python: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the beginning of a ``Script`` that Python runs, and the words after it."""
    rest = [*words]
    while rest and rest[0] in _WITHOUT_EFFECT:
        del rest[0]
    if rest[:1] == [_MODULE_OPTION] and len(rest) > 1:
        return rest[:2], rest[2:]
    has_script = rest and (not rest[0].startswith("-") or any(word.endswith(".py") for word in rest))
    if not has_script:
        raise TrainableNotFound(f"{python} has no script; write {python} train.py, or {python} -m package.train")
    if rest[0].startswith("-"):
        raise TrainableNotFound(
            f"{python} {rest[0]}: trials run with the options of their worker's Python; leave {rest[0]} out, or "
            f"{_way_by_shell(python, words)}"
        )
    if not Path(rest[0]).is_file():
        raise TrainableNotFound(_missing_program(rest[0]))
    if Path(rest[0]).suffix != ".py":
        raise TrainableNotFound(f"{rest[0]} is run by Python, but its name does not end with .py; rename it")
    return rest[:1], rest[1:]


def _other_python(python: str) -> list[str]:
    """Return a line for the user if *python* is another Python than the one that trials run by."""
    path = shutil.which(python)
    if path is None or Path(path).absolute().parent == Path(sys.executable).absolute().parent:
        return []
    return [f"trials run by the Python of their worker (on this machine {sys.executable}), and not by {path}"]


def _of_interpreter(interpreter: str, words: Sequence[str]) -> str:
    """Return the file after an interpreter's name, if its first line names that interpreter.

    Raises:
        TrainableNotFound: the file is missing, or its first line names another interpreter.
    """
    if shutil.which(interpreter) is None:
        raise TrainableNotFound(_missing_program(interpreter))
    name, file = Path(interpreter).name, Path(words[0] if words else "")
    if not words or not file.is_file():
        raise TrainableNotFound(
            f"{interpreter} is an installed program, but trials run files of yours; {_way_by_shell(name, words)}"
        )
    with file.open("rb") as opened:
        first_line = opened.read(_FIRST_LINE_BYTES).partition(b"\n")[0].decode(errors="replace")
    if not first_line.startswith("#!") or name not in re.split(r"[\s/]", first_line) or not os.access(file, os.X_OK):
        raise TrainableNotFound(
            f"{interpreter} {words[0]}: trials run the file itself; begin it with a line #!/usr/bin/env {name}, and "
            f"run: chmod +x {words[0]}"
        )
    return words[0]


def _way_by_shell(program: str, words: Sequence[str]) -> str:
    """Return how to write a shell script that starts a program which trials can't start."""
    shown = " ".join([program, *words[:2], "…"] if words else [program])
    return f'write a run.sh of two lines, #!/bin/sh and exec {shown} "$@", run: chmod +x run.sh, and give ./run.sh'


def _missing_program(name: str) -> str:
    path = Path(name)
    try:
        others = [file.name for file in path.parent.iterdir() if file.is_file()]
    except OSError:
        others = []
    similar = get_close_matches(path.name, others, n=1)
    hint = f"do you mean {path.with_name(similar[0])}?" if similar else f"give its path from here, {Path.cwd()}"
    return f"there is no program {name!r}; {hint}"
