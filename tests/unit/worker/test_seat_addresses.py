"""Where the seats of a gang reach this machine, and the port that is kept for them."""

from __future__ import annotations

import contextlib
import errno
import socket
from types import SimpleNamespace
from typing import Any, Self

import pytest

from mqtune.worker import Address, advertised, seats as module


@pytest.fixture(autouse=True)
def no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MQTUNE_ADVERTISE", raising=False)
    module._warn_unreachable.cache_clear()


def with_routes(monkeypatch: pytest.MonkeyPatch, routes: dict[int, str]) -> None:
    """Have this machine reach others by these addresses, by their families, and by no other."""

    class Probe:
        """A datagram socket."""

        def __init__(self, family: int, kind: int) -> None:
            assert kind == socket.SOCK_DGRAM
            self.family = family

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def connect(self, address: object) -> None:
            if self.family not in routes:
                raise OSError(errno.ENETUNREACH, "Network is unreachable")

        def getsockname(self) -> tuple[str, int]:
            return routes[self.family], 9

    monkeypatch.setattr(module, "socket", SimpleNamespace(**{**vars(socket), "socket": Probe}))


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ({socket.AF_INET: "10.1.2.3", socket.AF_INET6: "fd00::7"}, "10.1.2.3"),
        ({socket.AF_INET6: "fd00::7"}, "[fd00::7]"),
    ],
)
def test_a_machine_is_reached_by_its_route_to_others(
    monkeypatch: pytest.MonkeyPatch, routes: dict[int, str], expected: str
) -> None:
    with_routes(monkeypatch, routes)

    assert advertised() == expected


def test_a_machine_without_a_route_to_others_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_routes(monkeypatch, {})

    assert advertised() == advertised() == "127.0.0.1"
    (said,) = caplog.messages
    assert "no route to others" in said
    assert "MQTUNE_ADVERTISE" in said


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_nobody_else_gets_the_port_before_it_is_given_up(family: socket.AddressFamily) -> None:
    if family is socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    with contextlib.closing(socket.socket(family)) as other, _kept() as address:
        to: Any = ("", int(address.text.rpartition(":")[2]))
        with pytest.raises(OSError, match="in use"):
            other.bind(to)
        address.give_up()
        other.bind(to)


@contextlib.contextmanager
def _kept() -> Any:
    address = Address()
    try:
        yield address
    finally:
        address.give_up()
