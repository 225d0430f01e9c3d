"""Everything that a Redis holds, and that goes over its channels."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import redis

from mqtune.journal import connect


class Tap:
    """Hears every channel of a server, and takes down its values when it is told to."""

    def __init__(self, url: str) -> None:
        self.values: list[bytes] = []
        self._client: Any = connect(url, role="tap")
        self._pubsub = self._client.pubsub()
        self._pubsub.psubscribe("*")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="tap", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._closing.is_set():
            heard = self._pubsub.get_message(timeout=0.2)
            if heard is not None and heard["type"] == "pmessage":
                self.values.append(heard["data"])

    def look(self) -> None:
        """Take down every value that the server holds."""
        client = self._client
        for key in client.keys("*"):
            with contextlib.suppress(redis.ResponseError):
                match client.type(key):
                    case b"string":
                        self.values.append(client.get(key) or b"")
                    case b"list":
                        self.values += client.lrange(key, 0, -1)
                    case b"hash":
                        self.values += client.hgetall(key).values()
                    case b"zset":
                        self.values += client.zrange(key, 0, -1)
                    case b"set":
                        self.values += client.smembers(key)
                    case b"stream":
                        self.values += [value for _, fields in client.xrange(key) for value in fields.values()]

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._pubsub.close()
        self._client.close()
