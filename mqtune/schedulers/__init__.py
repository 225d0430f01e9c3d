"""Schedulers: how long to keep trying a config."""

from __future__ import annotations

from mqtune.schedulers.asha import ASHA
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.fifo import FIFO

__all__ = ["ASHA", "FIFO", "Scheduler"]
