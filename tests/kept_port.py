"""A port that is a server's alone, also before it listens there and while it is down."""

from __future__ import annotations

import socket


class KeptPort:
    """A free port of 127.0.0.1, which nobody who asks for any free port gets until it is closed.

    A server that sets ``SO_REUSEADDR``, as Redis and asyncio do, can listen there all the same; while none does, connections
    are refused.
    """

    def __init__(self) -> None:
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.number = int(self._holder.getsockname()[1])

    def close(self) -> None:
        """Give it up; nothing happens the second time."""
        self._holder.close()
