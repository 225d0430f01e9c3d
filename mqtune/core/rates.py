"""How often something of an experiment may come, and which cap says so."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, Self

from mqtune.core.fields import FIELDS, Field

#: The lowest caps: each must let something through within the time after which the server forgives what came too fast.
LEAST_REPORTS_PER_S: Final = 0.1
LEAST_REQUESTS_PER_MIN: Final = 1
#: For how long an experiment counts as too fast after its trials may go on, in seconds: a driver and people look more
#: seldom than trials wait.
TOO_FAST_S: Final = 10.0
_US: Final = 10**6
#: More microseconds than any cap has for each.
_HUGE: Final = 10**9


class Rate(NamedTuple):
    """How often something may come: the microseconds for each, 0 for any number, and the cap that says so, in words."""

    each_us: int = 0
    cap: str = ""

    @classmethod
    def of(cls, most: float, per_s: float, cap: str) -> Self:
        """Return the rate of *most* in each *per_s* seconds, which is any number where it is infinite."""
        return cls() if most == math.inf else cls(max(1, math.ceil(per_s * _US / most)), cap)


class Rates(NamedTuple):
    """How many reports a second, and how many requests a minute, an experiment may have."""

    reports: Rate = Rate()
    requests: Rate = Rate()

    def slower(self, other: Self) -> Rates:
        """Return the slower one of each."""
        return Rates(*map(max, self, other))


#: No cap bounds them.
ANY_RATES: Final = Rates()


def _rates(values: list[list[object]]) -> Rates:
    """Return the rates of plain values.

    Raises:
        TypeError, ValueError: they are none.
    """
    rates = []
    for each_us, cap in values:
        if type(each_us) is not int or type(cap) is not str or not 0 <= each_us <= _HUGE:
            raise ValueError(f"rate={each_us!r:.80}")
        rates.append(Rate(each_us, cap))
    return Rates(*rates)


FIELDS["Rates"] = Field((list,), _rates, list)


def too_fast(cap: str) -> str:
    """Return the sentence that says that trials report faster than a cap lets them."""
    return f"its trials report faster than they may, and report() waits: {cap}"
