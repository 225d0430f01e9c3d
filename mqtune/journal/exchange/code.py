"""Code bundles of experiments and submissions in Redis, from where workers fetch them."""

from __future__ import annotations

import math
import threading
from typing import Final, cast

import redis

from mqtune.core.keys import ExperimentKeys
from mqtune.journal.server.retry import RetryingCaller
from mqtune.trainable.bundle import MOST_BYTES, Bundle

_SIGNATURE: Final = ":signature"


class CodeExchange(RetryingCaller):
    """Stores and fetches the code bundle of one experiment. A worker's account can only read it.

    Args:
        submitted: whether to use the bundle of the submission of that name instead. Only a driver's account may read
            it.
    """

    def __init__(
        self,
        client: redis.Redis,
        experiment: str,
        *,
        submitted: bool = False,
        patience_s: float = math.inf,
        closing: threading.Event | None = None,
    ) -> None:
        super().__init__(client, patience_s=patience_s, closing=closing)
        keys = ExperimentKeys(experiment)
        self._key = keys.submitted_code if submitted else keys.code

    def put(self, bundle: Bundle, signature: str, *, before: str = "") -> None:
        """Store a signed bundle, and delete all others except the one with the digest *before*.

        If the server already has the bundle, only its signature is written.

        Raises:
            BrokerUnavailable: no server answers.
        """
        fields: dict[str, str | bytes] = {bundle.digest + _SIGNATURE: signature}

        def write() -> None:
            others = {name.decode(errors="replace") for name in self._client.hkeys(self._key)}
            if bundle.digest not in others:
                fields[bundle.digest] = bundle.data
            others -= {name + end for name in (bundle.digest, before) for end in ("", _SIGNATURE)}
            with self._client.pipeline() as pipe:
                pipe.hset(self._key, mapping=fields)
                if others:
                    pipe.hdel(self._key, *others)
                pipe.execute()

        self._retrying(write)

    def signature(self, digest: str) -> str | None:
        """Return the unchecked signature of the bundle with this digest, or None if it is missing."""
        signature = self._get(digest + _SIGNATURE)
        return None if signature is None else signature.decode(errors="replace")

    def bundle(self, digest: str) -> Bundle | None:
        """Return the unchecked bundle with this digest.

        None if it is missing or too large for a bundle.
        """
        data = self._get(digest)
        return None if data is None else Bundle(digest, data)

    def _get(self, name: str) -> bytes | None:
        def fetch() -> bytes | None:
            # An account with write access could fill a worker's memory.
            if not 0 < self._client.hstrlen(self._key, name) <= 2 * MOST_BYTES:
                return None
            return cast("bytes | None", self._client.hget(self._key, name))

        return self._retrying(fetch)
