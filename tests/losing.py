"""A journal's server, in memory, that loses what it had."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

from mqtune.journal.memory import MemoryServer


def snapshot(server: MemoryServer) -> Any:
    """All that a server holds."""
    return copy.deepcopy(server.experiments)


def set_back(server: MemoryServer, before: Any = None) -> None:
    """Have a server hold what it did then, or nothing; journals that are in use notice nothing of it."""
    server.losses += 1
    for name, state in server.experiments.items():
        held = copy.deepcopy((before or {}).get(name, type(state)()))
        for field in fields(state):
            setattr(state, field.name, getattr(held, field.name))
