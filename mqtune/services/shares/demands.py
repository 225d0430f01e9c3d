"""Exchanges demands and shares through Redis.

Each driver writes its demand and reads its share. One of the drivers divides the fleet for all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final

import redis

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.crews import Crew, Register, register_of
from mqtune.core.errors import AccessDenied
from mqtune.core.keys import DEMANDS, QUOTAS, SHARES
from mqtune.core.plain import field_values, from_plain, unusual_fields
from mqtune.core.timing import Timing
from mqtune.journal import Fleet, retrying, script_in, timing_of
from mqtune.services.shares.divider import Demand, Share, Table, divide, held_to
from mqtune.services.shares.quotas import decoded_aging, decoded_caps, decoded_quotas

logger = logging.getLogger(__name__)

#: The package of the Lua scripts.
_PACKAGE: Final = "mqtune.services.shares"
#: An upper bound for the slots of a fleet. Its inverse is the smallest weight that a demand may have.
_HUGE: Final = 10**9
#: More digits than any valid time has.
_DIGITS: Final = 20
#: Letters of a version of crews.
_VERSION_CHARS: Final = 12
#: The fields of a demand that its driver sets. The others follow from quotas and caps.
_SAID: Final = frozenset({attribute.name for attribute in fields(Demand)} - {"quotas", "capped"})


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


class Demands:
    """The demands of all experiments of a broker, and the table of their shares.

    A driver without a share in the table becomes the dividing driver: it reads all demands and the register of workers,
    and publishes the shares of all. So each new driver does, and the next one to call after the table has expired. The
    number of a dividing driver fences off the previous one. Not thread-safe.

    Args:
        client: a checked connection.
        patience_s: how long a call retries while the server is away.
    """

    def __init__(self, client: redis.Redis, *, patience_s: float) -> None:
        # redis-py's types also cover the results of other settings.
        self._client: Any = client
        self._fleet = Fleet(client, patience_s=patience_s)
        self._patience_s = patience_s
        self._timing = timing_of(client)
        #: The register of workers, as the dividing driver has published it, or as this process has read it.
        self.register = Register()
        self._version = ""
        #: The number of this process as the dividing driver; empty while another driver divides.
        self._number = ""
        #: The last published table: this process's number, the time at which it had read the register, and the shares.
        self._published: tuple[str, float, dict[str, Share]] | None = None
        #: When this process read the register, and when it last knew that its register is current; both monotonic.
        self._read_at = self._heard_at = -math.inf
        #: The error of a script that was logged last.
        self._problem = ""

    def exchange(self, experiment: str, demand: Demand) -> Share | None:
        """Publish an experiment's demand for ``lock_s`` seconds, and return its share.

        The share is None if this account may not read it. Malformed demands, quotas and shares are ignored.
        """
        said = {name: value for name, value in unusual_fields(demand).items() if name in _SAID}
        # In Redis this text follows the time of its expiry, and the patterns that the name matches.
        answer = self._write_demand(demand.experiment, json.dumps(said, separators=(",", ":")), experiment)
        if answer is None:
            return None
        number, *rest = answer
        if number:
            return self._divide(demand.experiment, number.decode(), *rest)
        self._number = ""
        share, crews = rest
        self._heard_at = time.monotonic()
        if crews:
            self._take_crews(crews)
        return _decode_share(share)

    def leave(self, experiment: str) -> None:
        """Withdraw the demand of the experiment with this token."""
        self._write_demand(experiment, "", "")
        self._number = ""

    def refresh(self) -> Register:
        """Return the register of workers, as crews.

        It is the one that the dividing driver has published. If this process divides, or no driver does, it reads the
        workers itself.
        """
        if not self._number and time.monotonic() - self._heard_at >= self._timing.register_s:
            with contextlib.suppress(AccessDenied, redis.ResponseError):
                if crews := retrying(lambda: self._client.hget(SHARES, "crews"), patience_s=self._patience_s):
                    self._take_crews(crews)
        if self._number or time.monotonic() - self._heard_at >= self._timing.register_s:
            self._read_workers()
        return self.register

    def busy(self) -> Mapping[str, Mapping[str, int]]:
        """Return the number of busy slots by experiment token and queue, as of some seconds ago."""
        if self._number or time.monotonic() - self._read_at < self._timing.register_s:
            return self.register.busy
        with contextlib.suppress(AccessDenied, redis.ResponseError):
            return _decode_busy(retrying(lambda: self._client.hget(SHARES, "busy"), patience_s=self._patience_s) or b"")
        return {}

    def table(self) -> Table | None:
        """Return all experiments' demands without writing; None if the account may not read them."""

        def look() -> Table:
            with self._client.pipeline(transaction=False) as pipe:
                pipe.time()
                pipe.hgetall(DEMANDS)
                pipe.hgetall(QUOTAS)
                (seconds, microseconds), kept, quotas = pipe.execute()
            now_ms = seconds * 1000 + microseconds // 1000
            lasting = [item for item in kept.items() if _until_ms(item[1]) > now_ms]
            return _table(lasting, [*quotas.items()], now_ms + round(self._timing.lock_s * 1000), self._timing)

        with contextlib.suppress(AccessDenied, redis.ResponseError):
            return retrying(look, patience_s=self._patience_s)
        return None

    def _write_demand(self, token: str, packed: str, experiment: str) -> Any:
        demand_ms, table_ms = (
            round(duration_s * 1000) for duration_s in (self._timing.lock_s, self._timing.share_table_s)
        )
        args = [token, packed, demand_ms, experiment, self._number, self._version, table_ms]
        return self._run_script("demand", [DEMANDS, QUOTAS, SHARES], args)

    def _run_script(self, name: str, keys: list[str], args: list[object]) -> Any:
        try:
            return retrying(lambda: script_in(_PACKAGE, name)(self._client, keys, args), patience_s=self._patience_s)
        except (AccessDenied, redis.ResponseError) as error:
            # A driver that may not read the demands of others uses the free slots, as if it were alone.
            if str(error) != self._problem:
                logger.warning("the fleet is not shared fairly with other experiments: %s", error)
                self._problem = str(error)
            return None

    # Dividing.

    def _divide(
        self,
        token: str,
        number: str,
        demands: list[bytes],
        quotas: list[bytes],
        crews: bytes,
        busy: bytes,
        known_ms: int,
    ) -> Share | None:
        """Compute the shares of all experiments, publish them, and return the share of *token*."""
        now = time.monotonic()
        if number != self._number and now - self._read_at >= self._timing.register_s:
            if crews and known_ms < self._timing.register_s * 1000:
                self._take_crews(crews)
                self.register = self.register._replace(busy=_decode_busy(busy))
                self._read_at = now - known_ms / 1000
            else:
                self._read_workers()
        self._number = number
        wanted = _pairs(demands)
        # The demand that the script has just written. Other drivers' demands may be malformed.
        own_until_ms = _until_ms(dict(wanted).get(token.encode(), b""))
        table_of_all = _table(wanted, _pairs(quotas), own_until_ms, self._timing, self.register.busy)
        shares = divide(table_of_all, self.register.slots, self.register.busy)
        now, table = time.monotonic(), (number, self._read_at, shares)
        args: list[object] = [number, round(self._timing.share_table_s * 1000)]
        if table != self._published:
            crews = _encode_crews(self.register.crews)
            args += [_version_of(crews), crews, encode_value(self.register.busy), round((now - self._read_at) * 1000)]
            for name, share in shares.items():
                args += (name, _encode_share(share))
        if self._run_script("divide", [SHARES], args):
            self._published = table
        return shares.get(token)

    def _read_workers(self) -> None:
        self.register = register_of(self._fleet.workers())
        self._version = _version_of(_encode_crews(self.register.crews))
        self._read_at = self._heard_at = time.monotonic()

    def _take_crews(self, data: bytes) -> None:
        self.register, self._version = Register(_decode_crews(data)), _version_of(data)
        self._heard_at, self._read_at = time.monotonic(), -math.inf


def _table(
    demands: Sequence[tuple[bytes, bytes]],
    quotas: Sequence[tuple[bytes, bytes]],
    new_until_ms: int,
    timing: Timing,
    busy: Mapping[str, Mapping[str, int]] | None = None,
) -> Table:
    """Return the demands of all experiments, and the operator's limits.

    A driver that has been silent for ``lend_after_s`` counts as wanting no more than it has.

    Args:
        demands: the token and the stored demand of each experiment.
        quotas: the stored quotas and caps, by field.
        new_until_ms: the time at which a demand written now expires.
        busy: the number of busy slots by experiment token and queue, if that is known.
    """
    caps = decoded_caps(quotas)
    rows = []
    for token, data in demands:
        _, patterns, said = [*data.split(b" ", 2), b"", b""][:3]
        if (demand := _decode_demand(token, said)) is not None:
            if new_until_ms - _until_ms(data) >= timing.lend_after_s * 1000:
                running = demand.running if busy is None else sum(busy.get(demand.experiment, {}).values())
                demand = replace(demand, wanted=min(demand.wanted, running))
            under = patterns.decode(errors="replace").split(",") if patterns else []
            rows.append(held_to(demand, under, caps))
    return Table(rows, decoded_quotas(quotas), decoded_aging(quotas), caps)


def _until_ms(data: bytes) -> int:
    """Return when a demand expires, in milliseconds by the server's clock; 0 if it is malformed."""
    until = data.partition(b" ")[0]
    # Python makes no number of thousands of digits.
    return int(until) if until.isdigit() and len(until) < _DIGITS else 0


def _decode_demand(token: bytes, data: bytes) -> Demand | None:
    """Return a demand, or None for a malformed one.

    Any driver of the broker may have written it.
    """
    try:
        body = json.loads(data)
        demand = from_plain(Demand, {name: body[name] for name in _SAID if name in body})
        is_sound = (
            demand.experiment == token.decode()
            and 1 / _HUGE <= demand.weight <= _HUGE
            and all(0 <= figure <= _HUGE for figure in (demand.used, demand.waiting_s, demand.wanted, demand.running))
            and demand.journal_mb > 0
        )
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None
    return demand if is_sound else None


# Any driver of the broker may have written a published value, so it is checked.


def _encode_share(share: Share) -> bytes:
    return encode_value(unusual_fields(share))


def _decode_share(data: bytes) -> Share | None:
    try:
        share = from_plain(Share, decode_value(data))
    except (ValueError, TypeError):
        return None
    return share if share.limit >= 0 and share.at_most >= 0 and share.aging_s > 0 and share.journal_mb > 0 else None


def _encode_crews(crews: Sequence[Crew]) -> bytes:
    return encode_value([*map(field_values, crews)])


def _decode_crews(data: bytes) -> list[Crew]:
    try:
        return from_plain(list[Crew], decode_value(data))
    except (ValueError, TypeError):
        return []


def _decode_busy(data: bytes) -> dict[str, dict[str, int]]:
    try:
        return {
            str(token): {str(queue): count for queue, count in queues.items() if type(count) is int}
            for token, queues in decode_value(data).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _version_of(crews: bytes) -> str:
    return hashlib.sha256(crews).hexdigest()[:_VERSION_CHARS]
