"""The Lua scripts, loaded by hash; each file's head is its contract."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Any, Final

import redis

__all__ = ["Script", "script"]

_PRELUDE: Final = "prelude"


class Script:
    """One Lua script, which any Redis from 6.2 on runs by its hash."""

    __slots__ = ("_sha", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def __call__(self, client: redis.Redis, keys: list[str], args: list[Any]) -> Any:
        """Run the script; a server that doesn't know it, such as one that was restarted, is sent the text."""
        try:
            return client.evalsha(self._sha, len(keys), *keys, *args)
        except redis.exceptions.NoScriptError:
            return client.eval(self._text, len(keys), *keys, *args)


@cache
def script(name: str) -> Script:
    """Return the script in ``lua/<name>.lua`` with the prelude before it."""
    folder = resources.files("mqtune.journal") / "lua"
    return Script("\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in (_PRELUDE, name)))
