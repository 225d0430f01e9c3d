"""Searchers: what to try next."""

from __future__ import annotations

from mqtune.searchers.base import Searcher
from mqtune.searchers.grid import GridSearcher
from mqtune.searchers.points import PointsFirst
from mqtune.searchers.random import RandomSearcher

__all__ = ["GridSearcher", "PointsFirst", "RandomSearcher", "Searcher"]
