"""What experiments want of the fleet that they share, in Redis: each driver keeps its own demand there, and reads those of all."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Final

import redis

from mqtune.core.errors import AccessDenied
from mqtune.core.keys import DEMANDS, QUOTAS
from mqtune.core.shares import PRIORITIES, Demand, Table
from mqtune.journal.lock import LOCK_S
from mqtune.journal.quotas import decoded_quotas
from mqtune.journal.redis import retrying, script

logger = logging.getLogger(__name__)

#: How long a demand holds unless it is written again: a driver that is silent for longer may be replaced.
DEMAND_S: Final = LOCK_S


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
        demands = (_decode(token, data) for token, data in _pairs(found))
        return Table([demand for demand in demands if demand is not None], decoded_quotas(_pairs(quotas)))


def _decode(token: bytes, data: bytes) -> Demand | None:
    """Return a demand, or None for a malformed one: any driver of the broker may have written it."""
    try:
        body = json.loads(data)
        demand = Demand(**{each.name: body[each.name] for each in fields(Demand) if each.name in body})
        is_sound = (
            demand.experiment == token.decode()
            and demand.priority in PRIORITIES
            and 0 < float(demand.weight) < float("inf")
            and 0 <= float(demand.used) < float("inf")
            and type(demand.wanted) is type(demand.running) is int
            and all(type(name) is str for name in (*demand.queues, *demand.quotas))
        )
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return demand if is_sound else None
