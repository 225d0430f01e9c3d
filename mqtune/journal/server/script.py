"""Lua scripts. A Redis server runs each one atomically."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any, Final

import redis

_JOURNAL: Final = "mqtune.journal"
_PRELUDE: Final = "prelude"


class LuaScript:
    """A Lua script for Redis 6.2 or later. It is called by its hash."""

    __slots__ = ("_sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: redis.Redis, keys: list[str], args: Sequence[object]) -> Any:
        """Run the script. If the server doesn't know its hash, as after a restart, send its text."""
        try:
            # This is ``evalsha`` without its two calls in between; redis-py has no types for it.
            return client.execute_command("EVALSHA", self._sha, len(keys), *keys, *args)  # type: ignore[no-untyped-call]
        except redis.exceptions.NoScriptError:
            return client.execute_command("EVAL", self.text, len(keys), *keys, *args)  # type: ignore[no-untyped-call]


def _read_script(package: str, name: str) -> str:
    return (resources.files(package) / "lua" / f"{name}.lua").read_text(encoding="utf-8")


@cache
def script(name: str) -> LuaScript:
    """Return the journal's script with this name. See ``script_in``."""
    return script_in(_JOURNAL, name)


@cache
def script_in(package: str, name: str) -> LuaScript:
    """Return the script ``lua/<name>.lua`` of a package, with the shared functions that it uses.

    Other functions of the prelude are left out, because the server defines all functions of a script again in each run.
    """
    text = _read_script(package, name)
    for part in reversed(_read_script(_JOURNAL, _PRELUDE).split("\n\n")):
        defined = re.findall(r"^local (?:function )?(\w+)", part, re.MULTILINE)
        if any(re.search(rf"^(?!--).*\b{function}\b", text, re.MULTILINE) for function in defined):
            text = f"{part}\n\n{text}"
    return LuaScript(text)
