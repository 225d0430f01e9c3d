"""The last samples of running attempts, in Redis.

Workers write them, and accounts with read access to an experiment read them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, cast

import redis
from redis.exceptions import NoPermissionError

from mqtune.core.errors import AccessDenied
from mqtune.core.keys import ExperimentKeys
from mqtune.core.usage import LiveUse, decode_uses, encode_uses

#: Lifetime of a worker's samples: three intervals.
KEPT_S: Final = 30.0
#: Names of an experiment, and of a worker that runs its trials.
Whose = tuple[str, str]


class UsageBoard:
    """The stored samples: an expiring key for each of an experiment's workers.

    No call waits for an unavailable server: that sample is lost, and the next one replaces it.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def write(self, whose: Whose, uses: Mapping[str, LiveUse]) -> None:
        """Replace a worker's samples of one experiment. *uses* has them by trial.

        Raises:
            AccessDenied: the account may not write them.
        """
        try:
            self._client.set(_key(whose), encode_uses(uses), px=round(KEPT_S * 1000))
        except NoPermissionError as error:
            raise AccessDenied(str(error)) from None
        except (redis.RedisError, OSError):
            # Other parts of the worker report that the server is away.
            return

    def read(self, many: Collection[Whose]) -> dict[Whose, dict[str, LiveUse]]:
        """Return the samples of these workers' attempts, by trial. Unknown workers are left out."""
        try:
            packed = cast("list[bytes | None]", self._client.mget(map(_key, many))) if many else []
        except (redis.RedisError, OSError):
            # An account made by an earlier version may not read them either.
            return {}
        return {whose: decode_uses(data) for whose, data in zip(many, packed, strict=True) if data is not None}


def _key(whose: Whose) -> str:
    experiment, worker = whose
    return ExperimentKeys(experiment).usage(worker)
