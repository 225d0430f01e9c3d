"""Searchers: what to try next."""

from __future__ import annotations

from mqtune.search.base import Searcher
from mqtune.search.grid import GridSearcher
from mqtune.search.points import PointsFirst
from mqtune.search.random import RandomSearcher

__all__ = ["GridSearcher", "PointsFirst", "RandomSearcher", "Searcher"]
