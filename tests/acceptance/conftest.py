from __future__ import annotations

from running import broker, fleet, own_broker, tune

__all__ = ["broker", "fleet", "own_broker", "tune"]
