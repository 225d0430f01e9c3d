"""Every server that is here: tests of what a server is asked run on each of them."""

from __future__ import annotations

import os
from typing import Final

import pytest

from mqtune.backends import ServerBinary, find_binaries, find_binary
from mqtune.core.errors import NoServer

__all__ = ["EACH_SERVER", "started_on", "the_server"]


def the_server() -> ServerBinary:
    """The first program of a server; without one the tests that need it are skipped, but not in CI."""
    try:
        return find_binary()
    except NoServer as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def _versions() -> dict[str, ServerBinary]:
    found: dict[str, ServerBinary] = {}
    for binary in find_binaries([]):
        # Debian's redis-server and valkey-server may be one program by two names.
        found.setdefault(f"{binary.path.name}-{binary.version_text}", binary)
    return found


#: Parameters of a fixture that starts one: every program that is here, or None where there is none.
EACH_SERVER: Final = [pytest.param(binary, id=name) for name, binary in _versions().items()] or [None]


def started_on(request: pytest.FixtureRequest) -> ServerBinary:
    """The program that a fixture with the parameters ``EACH_SERVER`` is to start."""
    return request.param or the_server()
