"""Has a thread of a worker raise an error in the middle of its work, when the run says so; and sees whether it lives on.

It is in the worker's process alone, and alters nothing of it until it is told to.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

#: In a worker's environment: the file in which it is told which thread is to raise what, and when; see order.
ORDER: Final = "MQTUNE_CHAOS_ORDER"
#: The threads that take steps for as long as a worker lives.
THREADS: Final = tuple(f"mqtune-{name}" for name in ("uplink", "control", "logs", "log-server", "heartbeat", "rounds"))
#: What is raised: errors that any line may raise on a machine that has run short of something.
ERRORS: Final = ("MemoryError", "RuntimeError", "OSError")
#: How often it looks whether it is told something, in seconds; and how often in a row a thread must be missed to be dead.
_LOOK_S: Final = 0.1


def order(path: Path, thread: str, error: str, after: int) -> None:
    """Tell a worker to have a thread raise an error when it calls its *after*-th function of mqtune's from now on."""
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"thread": thread, "error": error, "after": after}))
    draft.replace(path)


def struck(path: Path) -> str:
    """Return where the error was raised, or an empty text."""
    where = path.with_suffix(".struck")
    return where.read_text() if where.exists() else ""


def is_dead(path: Path) -> bool:
    """Whether the thread was gone afterwards, and its worker lived on without it."""
    return path.with_suffix(".dead").exists()


class Breaker:
    """Breaks one thread of this process, once, in code of a package, when a file says so."""

    def __init__(self, path: Path, package: Path) -> None:
        self._path = path
        self._package = str(package) + os.sep
        self._order: dict[str, Any] | None = None
        self._is_struck = False

    def start(self) -> None:
        """Look from now on whether it is told something."""
        threading.Thread(target=self._watch, name="chaos-breaker", daemon=True).start()

    def _watch(self) -> None:
        while not self._path.exists():
            time.sleep(_LOOK_S)
        self._order = json.loads(self._path.read_text())
        while not self._is_struck:
            time.sleep(_LOOK_S)
        missed = 0
        while missed < 5:
            time.sleep(_LOOK_S)
            is_there = any(each.name == self._order["thread"] for each in threading.enumerate())
            missed = 0 if is_there else missed + 1
        self._path.with_suffix(".dead").touch()

    def steps(self, name: str, steps: Callable[[], Iterable[Callable[[], object]]]) -> Iterator[Callable[[], object]]:
        """Yield the steps of a thread, each of which may be the one that raises."""
        for step in steps():
            yield partial(self._take, name, step)

    def _take(self, name: str, step: Callable[[], object]) -> None:
        if self._order is None or self._order["thread"] != name or self._is_struck:
            step()
            return
        sys.settrace(self._called)
        try:
            step()
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if self._order is None or self._is_struck or not frame.f_code.co_filename.startswith(self._package):
            return
        self._order["after"] -= 1
        if self._order["after"] > 0:
            return
        self._is_struck = True
        where = f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_qualname}"
        self._path.with_suffix(".struck").write_text(where)
        raise getattr(builtins, self._order["error"])(f"broken by the campaign in {where} ({event})")
