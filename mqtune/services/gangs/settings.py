"""The operator's settings for gangs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqtune.core.errors import ConfigurationError
from mqtune.services.gangs.address import advertised
from mqtune.worker import ServiceSettings, option

if TYPE_CHECKING:
    from mqtune.worker import WorkerSettings

#: The longest time that an operator may give: a day, in seconds.
LONGEST_SEAT_S: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSettings(ServiceSettings):
    """The shortest time for which a seat is held until the others are taken.

    Workers take their tasks within a second, and a slot should not stay unused for long because one of them is busy.

    Raises:
        ConfigurationError: that time, or the address of this machine, is invalid.
    """

    seat_s: float = option(
        30.0,
        "Seconds that a reserved slot waits for the other slots of a trial over several machines.",
        name="hold_seats",
    )

    def check(self, settings: WorkerSettings) -> None:
        if not math.isfinite(self.seat_s) or not 0 < self.seat_s <= LONGEST_SEAT_S:
            raise ConfigurationError(
                f"--hold-seats {self.seat_s:g} is invalid; give the seconds for which a slot waits for the other seats "
                f"of a gang, up to {LONGEST_SEAT_S:g}"
            )
        advertised()
