"""Scopes: which of its values a trial is ranked by."""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Final

from mqtune.core.errors import ConfigurationError

#: A window of more reports than a million is a mistake.
_LAST_ONES: Final = re.compile(r"last-([1-9][0-9]{0,5})-avg")


def checked_scope(owner: str, scope: object) -> str:
    """Return a scope.

    Args:
        owner: whose argument it is, such as ``ASHA``; empty for what a user gives directly.
        scope: what was given.

    Raises:
        ConfigurationError: it is none that ``ScopedValue`` has.
    """
    if isinstance(scope, str) and (scope in ("all", "last", "avg") or _LAST_ONES.fullmatch(scope)):
        return scope
    given = f"{owner}: scope={scope!r}" if owner else f"scope={scope!r}"
    raise ConfigurationError(f"{given} is none of 'all', 'last', 'avg', and 'last-5-avg' with any number in it")


class ScopedValue:
    """The value that a trial is ranked by after each of its reports.

    - "all": its best value so far; NaN is left out.
    - "last": its last value.
    - "avg": the mean of its values so far; NaN is left out.
    - "last-n-avg", such as "last-5-avg": the mean of its last n values, of fewer as long as it has no more, and NaN if
      one of them is. So Ray Tune has it, for 5 and 10.

    Memory is constant, but for the n values of the last, which each report is summed with.

    Args:
        scope: one of these.
        mode: "min" or "max".
    """

    __slots__ = ("_best", "_count", "_last", "_total")

    def __init__(self, scope: str, mode: str) -> None:
        last_ones = _LAST_ONES.fullmatch(scope)
        #: Of "last" and "last-n-avg", the values that count; else empty.
        self._last: deque[float] = deque(maxlen=int(last_ones[1]) if last_ones else int(scope == "last"))
        self._best = (min if mode == "min" else max) if scope == "all" else None
        #: Of "all" the best value, of "avg" the sum of all, and how many there are.
        self._total = math.nan
        self._count = 0

    def add(self, value: float) -> float:
        """Take the next value in, and return what the trial is ranked by: NaN if there is nothing."""
        if self._last.maxlen:
            self._last.append(value)
            return sum(self._last) / len(self._last)
        if not math.isnan(value):
            self._count += 1
            self._total = self._joined(value) if self._count > 1 else value
        return self._total if self._best else self._total / max(1, self._count)

    def _joined(self, value: float) -> float:
        return self._best(self._total, value) if self._best else self._total + value
