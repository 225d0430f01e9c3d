"""What tests of population-based training share: schedulers, and curves to play with."""

from __future__ import annotations

import math
from typing import Any

from scheduler_play import scattered
from scheduler_table import Table, bound

from mqtune import PBT, randint, uniform
from mqtune.core.trial import Config, Metrics


def pbt(mode: str = "min", interval: float = 2, **arguments: Any) -> PBT:
    scheduler: PBT = bound(PBT(interval, **{"hyperparam_mutations": {"lr": uniform(0, 1)}, **arguments}), mode)
    return scheduler


def population(mode: str = "min", interval: float = 2, **arguments: Any) -> Table:
    """A table whose reports save checkpoints."""
    return Table(pbt(mode, interval, **arguments), saves=True)


def curve(config: Config, now: int) -> Metrics | None:
    value = scattered(int(config["lr"] * 1e6), now, values=9)
    return None if now > 12 else {} if value == 8 else {"loss": math.nan if value == 7 else value}


def starting(number: int) -> Config:
    return {"lr": (number % 10) / 10, "deep": {"layers": 1 + number % 4}}


MUTATIONS = {"lr": uniform(0, 1), "deep": {"layers": randint(1, 8)}}
