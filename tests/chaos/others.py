"""The other seats of a trial, with which each counts in step: a training in which no seat goes on without the others."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Final, Self

import mqtune

#: How long a seat waits for another one that is late: longer than anything that brings it, or ends both.
_PATIENCE_S: Final = 60.0
_AGAIN_S: Final = 0.05
_STEP: Final = b"."


class Others:
    """Connections between seat 0 and each other one; without other seats there are none.

    Raises:
        OSError: they do not come, or seat 0's port is in use.
    """

    def __init__(self) -> None:
        self._peers: list[socket.socket] = []
        context = mqtune.get_context()
        self._mine = f"{context.experiment}/{context.trial}/{context.attempt}\n".encode()
        if context.seats > 1:
            host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            deadline = time.monotonic() + _PATIENCE_S
            if context.seat:
                self._peers.append(self._connected(host, port, deadline))
            else:
                self._accept(port, context.seats - 1, deadline)

    def _accept(self, port: int, number: int, deadline: float) -> None:
        with socket.create_server(("", port)) as server:
            while len(self._peers) < number:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                peer, _ = server.accept()
                peer.settimeout(_PATIENCE_S)
                # A seat of an attempt that is over may have found whoever has its port by now.
                if _line(peer) == self._mine:
                    self._peers.append(peer)
                else:
                    peer.close()

    def _connected(self, host: str, port: int, deadline: float) -> socket.socket:
        while True:
            try:
                peer = socket.create_connection((host, port), timeout=_PATIENCE_S)
                peer.sendall(self._mine)
                return peer
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_AGAIN_S)

    def wait(self) -> None:
        """Return once all seats have come to their next step.

        Raises:
            ConnectionError: one of them is gone.
            TimeoutError: one does not come.
        """
        for peer in self._peers:
            peer.sendall(_STEP)
        for peer in self._peers:
            if not peer.recv(1):
                raise ConnectionError("another seat is gone")

    def close(self) -> None:
        """Leave them."""
        for peer in self._peers:
            peer.close()
        self._peers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(peer: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(OSError):
        while not found.endswith(b"\n") and (more := peer.recv(1)):
            found += more
    return found
