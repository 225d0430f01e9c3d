"""One synthetic learning curve, and 64 configs that every system tries in the same order."""

from __future__ import annotations

import math
import random
from typing import Final, TypedDict

__all__ = ["CONFIGS", "MAX_EPOCHS", "loss"]

MAX_EPOCHS: Final = 27


class CurveConfig(TypedDict):
    """The config of one trial of the ASHA work."""

    lr: float
    seed: int


def loss(lr: float, epoch: int, seed: int) -> float:
    """Return the loss after *epoch* epochs.

    It is a decay towards a floor, with noise. The floor is lowest at lr = 10^-2.5.
    """
    distance = math.log10(lr) + 2.5
    floor = 0.1 + 0.3 * distance * distance
    noise = random.Random(seed * 1_000 + epoch).gauss(0.0, 0.02)
    return floor + 2.0 * math.exp(-epoch / 6.0) + noise


def _configs(count: int) -> list[CurveConfig]:
    rng = random.Random(20)
    return [{"lr": 10 ** rng.uniform(-4.0, -1.0), "seed": number} for number in range(count)]


CONFIGS: Final = _configs(64)
