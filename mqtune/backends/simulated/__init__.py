"""The simulated backend: the same driver, schedulers and searchers in virtual time.

It needs neither broker nor workers.
"""

from __future__ import annotations

from mqtune.backends.simulated.backend import Delay, Simulated, SimulatedBackend

__all__ = ["Delay", "Simulated", "SimulatedBackend"]
