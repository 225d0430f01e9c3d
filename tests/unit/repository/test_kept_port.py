"""A port that a test keeps for a server: nobody else is given it, and the server can listen on it."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest
from kept_port import KeptPort


@pytest.fixture
def port() -> Iterator[KeptPort]:
    kept = KeptPort()
    yield kept
    kept.close()


def test_a_server_can_listen_there_again_and_again(port: KeptPort):
    for _ in range(2):
        with (
            socket.create_server(("127.0.0.1", port.number)),
            socket.create_connection(("127.0.0.1", port.number), timeout=30),
        ):
            pass


def test_connections_are_refused_while_no_server_listens(port: KeptPort):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.number), timeout=30)


def test_nobody_who_asks_for_any_port_gets_it():
    with contextlib.ExitStack() as stack:
        kept = [stack.enter_context(contextlib.closing(KeptPort())).number for _ in range(200)]
        others = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(200)]

    assert len({*kept, *others}) == 400
