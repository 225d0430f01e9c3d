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

#: How long what a worker has written counts: three of its samples.
KEPT_S: Final = 30.0
#: The names of an experiment, and of a worker that runs trials of it.
Whose = tuple[str, str]


class UsageBoard:
    """Where workers write what their attempts use: a key for each of an experiment's workers, which expires.

    No call waits for a server that is away: that sample is lost, and the next one takes its place.

    Args:
        client: a checked connection.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def write(self, whose: Whose, uses: Mapping[str, LiveUse]) -> None:
        """Write the samples of a worker's attempts of an experiment, by trial, in place of the last ones.

        Raises:
            AccessDenied: the account may not.
        """
        try:
            self._client.set(_key(whose), encode_uses(uses), px=round(KEPT_S * 1000))
        except NoPermissionError as error:
            raise AccessDenied(str(error)) from None
        except (redis.RedisError, OSError):
            # Other parts of the worker report that the server is away.
            return

    def read(self, many: Collection[Whose]) -> dict[Whose, dict[str, LiveUse]]:
        """Return what the attempts of these workers use, by their trials; without those that nothing is known of."""
        try:
            found = cast("list[bytes | None]", self._client.mget(map(_key, many))) if many else []
        except (redis.RedisError, OSError):
            # An account that an earlier version has made may not read it either.
            return {}
        return {whose: decode_uses(data) for whose, data in zip(many, found, strict=True) if data is not None}


def _key(whose: Whose) -> str:
    experiment, worker = whose
    return ExperimentKeys(experiment).usage(worker)
