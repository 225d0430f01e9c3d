"""The systems under test. Their packages are imported only when a measurement runs."""

from __future__ import annotations

from typing import Final

from benchmarks.measurement import System
from benchmarks.systems import mqtune_, optuna_, ray_tune, syne_tune

__all__ = ["SYSTEMS"]

SYSTEMS: Final[dict[str, System]] = {
    module.SYSTEM.name: module.SYSTEM for module in (mqtune_, ray_tune, syne_tune, optuna_)
}
