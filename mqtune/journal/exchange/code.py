"""A bundle of an experiment or a submission on its server, from which workers fetch it."""

from __future__ import annotations

import math
import threading
from typing import Final, cast

import redis

from mqtune.core.keys import ExperimentKeys
from mqtune.journal.server.retry import retrying
from mqtune.trainable.bundle import MOST_BYTES, Bundle

_SIGNATURE: Final = ":signature"
#: The type of a hash's field for redis-py.
_Field = bytes | bytearray | memoryview | str | int | float


class CodeExchange:
    """The bundle of one experiment, in a key that a worker's account can read and not write.

    Args:
        client: a checked connection.
        experiment: the experiment's name.
        submitted: whether the bundle of the submission of that name is meant, which a driver alone may read.
        patience_s: how long calls are repeated while the server is away.
        closing: once set, calls stop trying.
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
        self._client = client
        keys = ExperimentKeys(experiment)
        self._key = keys.submitted_code if submitted else keys.code
        self._patience_s = patience_s
        self._closing = closing

    def put(self, bundle: Bundle, signature: str, *, before: str = "") -> None:
        """Leave a bundle there, signed, in place of any other but that of the digest *before*.

        An existing bundle is only signed.

        Raises:
            BrokerUnavailable: no server answers.
        """
        fields: dict[_Field, _Field] = {bundle.digest + _SIGNATURE: signature}

        def write() -> None:
            # redis-py's types allow for the answers of other settings.
            names = cast("list[bytes]", self._client.hkeys(self._key))
            others = {name.decode(errors="replace") for name in names}
            if bundle.digest not in others:
                fields[bundle.digest] = bundle.data
            others -= {name + end for name in (bundle.digest, before) for end in ("", _SIGNATURE)}
            with self._client.pipeline() as pipe:
                pipe.hset(self._key, mapping=fields)
                if others:
                    pipe.hdel(self._key, *others)
                pipe.execute()

        retrying(write, patience_s=self._patience_s, closing=self._closing)

    def signature(self, digest: str) -> str | None:
        """Return the signature of the bundle of a digest, as somebody has written it.

        Return None if there is no such bundle.
        """
        signature = self._get(digest + _SIGNATURE)
        return None if signature is None else signature.decode(errors="replace")

    def bundle(self, digest: str) -> Bundle | None:
        """Return the bundle of a digest, unchecked.

        Return None if it is not there, or larger than any that a driver brings.
        """
        data = self._get(digest)
        return None if data is None else Bundle(digest, data)

    def _get(self, name: str) -> bytes | None:
        def look() -> bytes | None:
            # An account with write access could fill a worker's memory.
            if not 0 < self._client.hstrlen(self._key, name) <= 2 * MOST_BYTES:
                return None
            return cast("bytes | None", self._client.hget(self._key, name))

        return retrying(look, patience_s=self._patience_s, closing=self._closing)
