"""What experiments want of the fleet that they share, in Redis: each driver keeps its own demand there, and reads those of all."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Final

import redis

from mqtune.core.errors import AccessDenied
from mqtune.core.keys import DEMANDS, QUOTAS
from mqtune.core.shares import PRIORITIES, Demand, Table
from mqtune.journal.lock import LOCK_S
from mqtune.journal.quotas import decoded_aging, decoded_caps, decoded_quotas
from mqtune.journal.redis import retrying
from mqtune.journal.script import script

logger = logging.getLogger(__name__)

#: How long a demand holds unless it is written again: a driver that is silent for longer may be replaced.
DEMAND_S: Final = LOCK_S
#: More slots than any fleet has, and its inverse as the least weight: what goes beyond can't be reckoned with.
_HUGE: Final = 10**9
#: More digits than any time has.
_DIGITS: Final = 20


def _pairs(flat: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


class Demands:
    """The demands of all experiments of a broker.

    Args:
        client: a checked connection.
        patience_s: how long a call goes on trying while the server is away.
    """

    def __init__(self, client: redis.Redis, *, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s
        #: Why demands can't be read or written, as far as that was logged.
        self._problem = ""

    def exchange(self, demand: Demand) -> Table | None:
        """Keep an experiment's demand for ``DEMAND_S`` more seconds and return those of all; None where this account may not.

        Demands and quotas that can't be read are left out.
        """
        # Behind the time up to which it holds, that is text.
        return self._run(demand.experiment, json.dumps(asdict(demand)))

    def leave(self, experiment: str) -> None:
        """Want nothing any more for the experiment of this token."""
        self._run(experiment, "")

    def _run(self, experiment: str, packed: str) -> Table | None:
        args = [experiment, packed, round(DEMAND_S * 1000)]
        try:
            found, quotas = retrying(
                lambda: script("demand")(self._client, [DEMANDS, QUOTAS], args), patience_s=self._patience_s
            )
        except (AccessDenied, redis.ResponseError) as error:
            # Who can't know what others want takes what is free, as if it were alone.
            if str(error) != self._problem:
                logger.warning("the fleet is not shared fairly with other experiments: %s", error)
                self._problem = str(error)
            return None
        return _table(_pairs(found), [*_pairs(quotas)])

    def table(self) -> Table | None:
        """Return what all experiments want, as ``exchange`` does, and write nothing; None where this account may not know."""

        def look() -> Table:
            with self._client.pipeline(transaction=False) as pipe:
                pipe.time()
                pipe.hgetall(DEMANDS)
                pipe.hgetall(QUOTAS)
                (seconds, microseconds), kept, quotas = pipe.execute()
            now_ms = seconds * 1000 + microseconds // 1000
            parted = ((token, data.partition(b" ")) for token, data in kept.items())
            lasting = ((token, data) for token, (until, _, data) in parted if _is_later(until, now_ms))
            return _table(lasting, [*quotas.items()])

        with contextlib.suppress(AccessDenied, redis.ResponseError):
            return retrying(look, patience_s=self._patience_s)
        return None


def _table(demands: Iterable[tuple[bytes, bytes]], quotas: Sequence[tuple[bytes, bytes]]) -> Table:
    return Table(_decoded(demands), decoded_quotas(quotas), decoded_aging(quotas), decoded_caps(quotas))


def _is_later(until: bytes, now_ms: int) -> bool:
    # Python makes no number of thousands of digits.
    return until.isdigit() and len(until) < _DIGITS and int(until) > now_ms


def _decoded(pairs: Iterable[tuple[bytes, bytes]]) -> list[Demand]:
    return [demand for token, data in pairs if (demand := _decode(token, data)) is not None]


def _decode(token: bytes, data: bytes) -> Demand | None:
    """Return a demand, or None for a malformed one: any driver of the broker may have written it."""
    try:
        body = json.loads(data)
        demand = Demand(**{each.name: body[each.name] for each in fields(Demand) if each.name in body})
        is_sound = (
            demand.experiment == token.decode()
            and demand.priority in PRIORITIES
            and 1 / _HUGE <= float(demand.weight) <= _HUGE
            and 0 <= float(demand.used) <= _HUGE
            and 0 <= float(demand.waiting_s) <= _HUGE
            and type(demand.wanted) is type(demand.running) is int
            and 0 <= demand.wanted <= _HUGE
            and 0 <= demand.running <= _HUGE
            and all(type(name) is str for name in (*demand.queues, *demand.quotas))
        )
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None
    return demand if is_sound else None
