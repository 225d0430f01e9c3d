from __future__ import annotations

from running import broker, fleet, tune

__all__ = ["broker", "fleet", "tune"]
