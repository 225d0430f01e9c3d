"""The simulated backend: experiments in virtual time, without a broker or workers."""

from __future__ import annotations

from mqtune.backends.simulated.backend import Delay, Simulated, SimulatedBackend

__all__ = ["Delay", "Simulated", "SimulatedBackend"]
