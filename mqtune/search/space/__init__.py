"""Search spaces: which configs an experiment may try."""

from __future__ import annotations

from mqtune.search.space.domains import Domain
from mqtune.search.space.functions import (
    choice,
    grid_search,
    lograndint,
    loguniform,
    normal,
    qloguniform,
    qrandint,
    quniform,
    randint,
    sample_from,
    uniform,
)
from mqtune.search.space.space import Space
from mqtune.search.space.values import plain_value

__all__ = [
    "Domain",
    "Space",
    "choice",
    "grid_search",
    "lograndint",
    "loguniform",
    "normal",
    "plain_value",
    "qloguniform",
    "qrandint",
    "quniform",
    "randint",
    "sample_from",
    "uniform",
]
