"""Searchers made again from their descriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mqtune.core.registry import rebuilt
from mqtune.search.base import Searcher
from mqtune.search.grid import GridSearcher
from mqtune.search.points import PointsFirst
from mqtune.search.random import RandomSearcher
from mqtune.search.space import Space
from mqtune.search.space.described import space_of

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
