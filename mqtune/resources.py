"""What a trial asks for, what a slot offers, and the Celery queue that brings the two together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from mqtune.errors import ConfigurationError
from mqtune.version import __version__

__all__ = ["Resources", "queue_name"]

#: Trials and workers meet only within one minor version: the queue's name carries it.
QUEUE_VERSION: Final = "-".join(__version__.split(".")[:2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one trial asks for, or one slot of a worker offers.

    Args:
        gpus: number of GPUs; below 1 it is a share of one GPU (0.5 lets two trials share it),
            above 1 it must be whole.
        cpus: number of CPU cores, a whole number of at least 1.

    Raises:
        ConfigurationError: a count is negative, not finite, or not whole where it must be.
    """

    gpus: float = 0
    cpus: int = 1

    def __post_init__(self) -> None:
        gpus, cpus = self.gpus, self.cpus
        if isinstance(gpus, bool) or not isinstance(gpus, int | float) or not math.isfinite(gpus):
            raise ConfigurationError(f"resources: gpus={gpus!r} is not a number; give 0, 0.5, 1, 2, …")
        if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise ConfigurationError(
                f"resources: gpus={gpus!r} can't be had; give 0, a share below 1 such as 0.5, or a whole number"
            )
        if isinstance(cpus, bool) or not isinstance(cpus, int) or cpus < 1:
            raise ConfigurationError(f"resources: cpus={cpus!r} can't be had; give a whole number of at least 1")

    def fits(self, offer: Resources) -> bool:
        """Whether a slot that offers *offer* may run a trial that asks for this.

        GPUs match exactly (a trial without a GPU never blocks a slot that has one); CPU cores may be more than asked for.
        """
        return math.isclose(self.gpus, offer.gpus, abs_tol=1e-6) and self.cpus <= offer.cpus

    def encode(self) -> dict[str, Any]:
        """Return plain values for a message."""
        return {"gpus": self.gpus, "cpus": self.cpus}

    def __str__(self) -> str:
        cores = f"{self.cpus} CPU" + "s" * (self.cpus != 1)
        return cores if not self.gpus else f"{self.gpus:g} GPU" + "s" * (self.gpus > 1) + f", {cores}"


def queue_name(offer: Resources) -> str:
    """Return the Celery queue that slots of this shape consume, such as ``mqtune-0-1.gpu1.cpu4``."""
    return f"mqtune-{QUEUE_VERSION}.gpu{offer.gpus:g}.cpu{offer.cpus}"
