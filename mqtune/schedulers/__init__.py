"""Schedulers: how long to keep trying a config."""

from __future__ import annotations

from mqtune.schedulers.asha import ASHA
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.fifo import FIFO
from mqtune.schedulers.hyperband import HyperBand
from mqtune.schedulers.median import MedianStopping
from mqtune.schedulers.pbt import PBT
from mqtune.schedulers.policy import PBTReplay, PolicyStep, policy_of
from mqtune.schedulers.promotion import PromotionASHA

__all__ = [
    "ASHA",
    "FIFO",
    "PBT",
    "HyperBand",
    "MedianStopping",
    "PBTReplay",
    "PolicyStep",
    "PromotionASHA",
    "Scheduler",
    "policy_of",
]
