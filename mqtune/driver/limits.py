"""How far an experiment goes: numbers, and the rule that ends it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from mqtune.core.checks import optional_count, optional_seconds
from mqtune.core.errors import ConfigurationError
from mqtune.schedulers.stopping.rule import StopRule

__all__ = ["LOOK_S", "FailFast", "Limits"]

FailFast = Literal[False, True, "raise"]

#: How often what goes by the clock is looked at.
LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far an experiment goes; see ``Tuner`` for each.

    Raises:
        ConfigurationError: one of them makes no sense.
    """

    max_trials: int | None = None
    max_concurrent: int | None = None
    ttl_s: float | None = None
    fail_fast: FailFast = False
    rule: StopRule | None = None

    def __post_init__(self) -> None:
        optional_count("max_trials", self.max_trials, 1)
        optional_count("max_concurrent", self.max_concurrent, 1)
        optional_seconds("ttl_s", self.ttl_s)
        if not isinstance(self.fail_fast, bool) and self.fail_fast != "raise":
            raise ConfigurationError(
                f"fail_fast={self.fail_fast!r} is none of False (go on), True (stop all) and 'raise' (raise TrialFailed)"
            )
