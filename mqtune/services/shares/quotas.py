"""Quotas, which limit the running attempts of all experiments with a matching name.

Workers' claims are held to them.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypedDict, Unpack

import redis

from mqtune.core.checks import positive, whole_number
from mqtune.core.errors import ConfigurationError
from mqtune.core.keys import QUOTAS, quota_key
from mqtune.core.priorities import PRIORITIES, Priority
from mqtune.core.resources import check_experiments, is_pattern
from mqtune.core.trial import is_number
from mqtune.journal import retrying
from mqtune.services.shares.divider import AGING_S, Cap

#: Field of the aging time among the quotas. It is no valid pattern.
_AGING: Final = b":aging_s"
#: Prefix of a cap's pattern.
_CAP: Final = b":cap "
#: Minimum of each numeric part of a cap.
_LEAST: Final = {
    "share": sys.float_info.min,
    "journal_mb": sys.float_info.min,
}
#: A number of slots has fewer digits.
_DIGITS: Final = 20


class Quota(NamedTuple):
    """A quota, and the number of attempts that run under it."""

    pattern: str
    slots: int
    running: int


class CapParts(TypedDict, total=False):
    """The parts of a cap. A part that is None or missing does not change."""

    priority: Priority | None
    share: float | None
    journal_mb: float | None


class Quotas:
    """The quotas of a broker.

    Args:
        client: a checked connection. To change quotas it needs the account of an operator for all experiments.
        patience_s: how long a call retries while the server is away.
    """

    def __init__(self, client: redis.Redis, *, patience_s: float) -> None:
        # redis-py's types include the results of other settings.
        self._client: Any = client
        self._patience_s = patience_s

    def set(self, pattern: str, slots: int) -> None:
        """Set a quota: no more attempts start while *slots* run.

        Running attempts continue, and count within a heartbeat.

        Raises:
            ConfigurationError: the pattern matches no valid name, or the number is below 0.
        """
        check_experiments(pattern)
        whole_number("quota", "slots", slots, 0)
        retrying(lambda: self._client.hset(QUOTAS, pattern, str(slots)), patience_s=self._patience_s)

    def drop(self, pattern: str) -> bool:
        """Drop a quota and a cap. Return whether there was one."""
        names = pattern.encode(), _CAP + pattern.encode()
        return bool(retrying(lambda: self._client.hdel(QUOTAS, *names), patience_s=self._patience_s))

    def set_aging(self, aging_s: float) -> None:
        """Give an experiment of any priority a slot after *aging_s* seconds without one.

        Infinite means never.

        Raises:
            ConfigurationError: *aging_s* is not above 0.
        """
        if not aging_s > 0:
            raise ConfigurationError(
                f"quota: aging_s={aging_s!r} is no time above 0; give seconds, or infinity for never"
            )
        retrying(lambda: self._client.hset(QUOTAS, _AGING, repr(float(aging_s))), patience_s=self._patience_s)

    def aging_s(self) -> float:
        """Return the seconds without a slot after which an experiment gets one; infinite for never."""
        return decoded_aging(self._kept())

    def set_cap(self, pattern: str, by: str, **parts: Unpack[CapParts]) -> None:
        """Cap the priority, share and journal of each experiment with a matching name.

        Drivers apply it within seconds. Missing parts are unchanged. If two users set a cap of one pattern at the same
        moment, the later one counts.

        Raises:
            ConfigurationError: the pattern matches no valid name, or a number is too low.
        """
        check_experiments(pattern)
        cap = self.caps().get(pattern, Cap())._replace(by=by)
        if (priority := parts.get("priority")) is not None:
            cap = cap._replace(priority=priority)
        if (share := parts.get("share")) is not None:
            cap = cap._replace(share=positive("quota", "share", share))
        if (journal_mb := parts.get("journal_mb")) is not None:
            cap = cap._replace(journal_mb=positive("quota", "journal_mb", journal_mb))
        packed = json.dumps({name: None if value == math.inf else value for name, value in cap._asdict().items()})
        retrying(lambda: self._client.hset(QUOTAS, _CAP + pattern.encode(), packed), patience_s=self._patience_s)

    def caps(self) -> dict[str, Cap]:
        """Return the caps by pattern."""
        return dict(sorted(decoded_caps(self._kept()).items()))

    def _kept(self) -> Iterable[tuple[bytes, bytes]]:
        packed: dict[bytes, bytes] = retrying(lambda: self._client.hgetall(QUOTAS), patience_s=self._patience_s)
        return packed.items()

    def all(self) -> list[Quota]:
        """Return the quotas, sorted by pattern."""

        def look() -> list[Quota]:
            seconds, _ = self._client.time()
            quotas = decoded_quotas(self._client.hgetall(QUOTAS).items())
            with self._client.pipeline(transaction=False) as pipe:
                for pattern in quotas:
                    pipe.zcount(quota_key(pattern), f"({seconds * 1000}", "+inf")
                return [Quota(*quota, count) for quota, count in zip(quotas.items(), pipe.execute(), strict=True)]

        return sorted(retrying(look, patience_s=self._patience_s))


def decoded_aging(pairs: Iterable[tuple[bytes, bytes]]) -> float:
    """Return the aging time, in seconds, among the stored fields.

    Without a readable one, return the default.
    """
    for name, value in pairs:
        if name == _AGING:
            with contextlib.suppress(ValueError):
                if (aging_s := float(value)) > 0:
                    return aging_s
    return AGING_S


def decoded_caps(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, Cap]:
    """Return the caps among the stored fields. Unreadable ones are left out."""
    caps = {}
    for name, value in pairs:
        pattern = name.removeprefix(_CAP).decode(errors="replace")
        if not name.startswith(_CAP) or not is_pattern(pattern):
            continue
        with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):
            said = json.loads(value)
            most = {name: math.inf if said[name] is None else said[name] for name in _LEAST}
            are_numbers = all(map(is_number, most.values())) and type(said["by"]) is str
            is_sound = are_numbers and all(most[name] >= least for name, least in _LEAST.items())
            if is_sound and said["priority"] in PRIORITIES:
                caps[pattern] = Cap(said["priority"], **most, by=said["by"])
    return caps


def decoded_quotas(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, int]:
    """Return the quotas among the stored fields. Unreadable ones are left out."""
    texts = ((pattern.decode(errors="replace"), slots) for pattern, slots in pairs)
    # Python refuses to parse thousands of digits.
    return {
        pattern: int(slots)
        for pattern, slots in texts
        if slots.isdigit() and len(slots) < _DIGITS and is_pattern(pattern)
    }
