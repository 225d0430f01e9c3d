"""Walk through pages as a reader would: write their files, type their commands, and expect the output that they show."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from started import free_port
from waiting import eventually

from mqtune.backends import find_binary

_BLOCK: Final = re.compile(r"^```(\w+)(?: title=\"([^\"]*)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: How long one command may take, on a machine that runs ten others.
_PATIENCE_S: Final = 150.0


class Block(NamedTuple):
    """A block of a page: ``title`` is the file that it is, or the terminal that its commands are typed into."""

    language: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text())]


class Walkthrough:
    """Goes through a page in a folder of its own.

    A block with a title is a file of that name. A ``console`` block is typed in, and each line that it shows has to be printed;
    in such lines ``…`` stands for anything, a number for any number and spaces for any spaces. One whose title begins with
    "Terminal" stays open: once its output is printed, the page continues. ``pip`` is not run, and port 6379 is a free one.

    Args:
        folder: a new folder.
        patience_s: how long a command may take.
        trials: the most trials of an experiment. None for those of the page.
    """

    #: Whether the next programs find Optuna, whose import takes longer than most of their experiments.
    imports_optuna = True

    def __init__(self, folder: Path, patience_s: float = _PATIENCE_S, trials: int | None = None) -> None:
        self._folder = folder
        self._patience_s = patience_s
        self._trials = trials
        self._port = str(free_port())
        programs = folder / ".bin"
        programs.mkdir(parents=True)
        (programs / "redis-server").symlink_to(find_binary().path)
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        # Lines are as long as they get, and a log is written when it is made.
        self._environment = {**os.environ, "PATH": path, "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        (programs / "sitecustomize.py").write_text("import sys\nsys.modules['optuna'] = None\n")
        paths = os.pathsep.join(filter(None, [str(programs), os.environ.get("PYTHONPATH")]))
        self._no_optuna = {"PYTHONPATH": paths}
        self._open: list[subprocess.Popen[bytes]] = []

    def follow(self, page: Path) -> None:
        for block in blocks_of(page):
            self.take(block)

    def take(self, block: Block) -> None:
        if block.language == "console":
            self._type(block)
        elif block.title:
            (self._folder / block.title).write_text(self._fewer(block.text.replace("6379", self._port)))

    def _fewer(self, program: str) -> str:
        def limit(found: re.Match[str]) -> str:
            return found[0] if self._trials is None else f"max_trials={min(int(found[1]), self._trials)}"

        return re.sub(r"max_trials=(\d+)", limit, program)

    def _type(self, block: Block) -> None:
        text = block.text.replace("6379", self._port)
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            wanted = [line for line in shown.splitlines() if line.strip(" …")]
            if command.startswith("export "):
                self._environment |= dict(pair.split("=", 1) for pair in shlex.split(command)[1:])
            elif block.title.startswith("Terminal"):
                self._leave_open(command, wanted)
            elif not command.startswith("pip "):
                self._run(command, wanted)

    @property
    def _variables(self) -> dict[str, str]:
        return self._environment if self.imports_optuna else self._environment | self._no_optuna

    def _run(self, command: str, wanted: list[str]) -> None:
        done = subprocess.run(
            ["bash", "-c", command], cwd=self._folder, env=self._variables, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=self._patience_s,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        assert absent(wanted, done.stdout) == [], f"{command}\n{done.stdout}"

    def _leave_open(self, command: str, wanted: list[str]) -> None:
        log = self._folder / f".terminal-{len(self._open)}"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self._folder, env=self._variables,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._open.append(process)
        eventually(lambda: not absent(wanted, log.read_text()), self._patience_s, f"{command}: {wanted}")

    def close(self) -> None:
        """Close the terminals, the last one first."""
        for process in reversed(self._open):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(_PATIENCE_S)


def absent(wanted: list[str], printed: str) -> list[str]:
    """Return the lines that should have been printed and were not."""
    return [line for line in wanted if not re.search(_pattern(line), printed)]


def _pattern(line: str) -> str:
    known = re.split(r"(…|\s+|\d[\d.]*(?:e[-+]?\d+)?)", line.strip())
    return "".join(re.escape(part) if number % 2 == 0 else _any(part) for number, part in enumerate(known))


def _any(part: str) -> str:
    return ".*" if part == "…" else r"\s+" if part.isspace() else r"\d[\d.]*(?:e[-+]?\d+)?"


@contextlib.contextmanager
def walkthrough(folder: Path, *given: Any, **options: Any) -> Iterator[Walkthrough]:
    """Yield a walkthrough with these arguments, and close its terminals afterwards."""
    walked = Walkthrough(folder, *given, **options)
    try:
        yield walked
    finally:
        walked.close()
