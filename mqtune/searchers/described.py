"""Searchers made again from their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mqtune.describing import rebuilt
from mqtune.searchers.base import Searcher
from mqtune.searchers.grid import GridSearcher
from mqtune.searchers.points import PointsFirst
from mqtune.searchers.random import RandomSearcher
from mqtune.space import Space
from mqtune.space.described import space_of

__all__ = ["searcher_of"]

_KINDS: Final = {"grid": GridSearcher, "random": RandomSearcher}


def searcher_of(description: Mapping[str, Any], space: Space) -> Searcher:
    """Return a searcher that describes itself so, at its beginning.

    Args:
        description: what it said of itself.
        space: the experiment's, which it searches unless it had one of its own.

    Raises:
        ConfigurationError: its class, or a function in a space of its own, stands in the user's code alone.
    """
    inner = dict(description)
    points, points_seed = inner.pop("points", None), inner.pop("points_seed", 0)
    own = inner.get("space")
    if isinstance(own, dict):
        inner["space"] = space if own == space.describe() else space_of(own)
    searcher: Searcher = rebuilt("searcher", _KINDS, inner)
    return searcher if points is None else PointsFirst(searcher, space, points, points_seed)
