"""Scopes: how a trial's ranking value is computed from the values of its reports."""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Final

from mqtune.core.errors import ConfigurationError

#: At most six digits: a window of a million reports or more is a mistake.
_LAST_ONES: Final = re.compile(r"last-([1-9][0-9]{0,5})-avg")


def checked_scope(owner: str, scope: object) -> str:
    """Return *scope* if ``ScopedValue`` has it.

    Args:
        owner: the argument's owner, such as ``ASHA``; empty for a direct argument of the user.

    Raises:
        ConfigurationError: the scope is invalid.
    """
    if isinstance(scope, str) and (scope in ("all", "last", "avg") or _LAST_ONES.fullmatch(scope)):
        return scope
    given = f"{owner}: scope={scope!r}" if owner else f"scope={scope!r}"
    raise ConfigurationError(f"{given} is none of 'all', 'last', 'avg' and 'last-N-avg', such as 'last-5-avg'")


class ScopedValue:
    """The value that a trial is ranked by after each of its reports.

    - "all": its best value so far, without NaN.
    - "last": its last value.
    - "avg": the mean of its values so far, without NaN.
    - "last-n-avg", such as "last-5-avg": the mean of its last n values, or of all while there are fewer. It is NaN if
      one of them is. Ray Tune has it for n = 5 and 10.

    Memory is constant for the first three. "last-n-avg" keeps n values and sums them up for each report.

    Args:
        scope: one of these.
        mode: "min" or "max".
    """

    __slots__ = ("_best", "_count", "_last", "_total")

    def __init__(self, scope: str, mode: str) -> None:
        last_ones = _LAST_ONES.fullmatch(scope)
        #: For "last" and "last-n-avg", the values that count; else empty.
        self._last: deque[float] = deque(maxlen=int(last_ones[1]) if last_ones else int(scope == "last"))
        self._best = (min if mode == "min" else max) if scope == "all" else None
        #: For "all" the best value; for "avg" the sum of the counted values.
        self._total = math.nan
        self._count = 0

    def add(self, value: float) -> float:
        """Add the next value. Return the value that ranks the trial now, or NaN."""
        if self._last.maxlen:
            self._last.append(value)
            return sum(self._last) / len(self._last)
        if not math.isnan(value):
            self._count += 1
            self._total = self._combined(value) if self._count > 1 else value
        return self._total if self._best else self._total / max(1, self._count)

    def _combined(self, value: float) -> float:
        return self._best(self._total, value) if self._best else self._total + value
