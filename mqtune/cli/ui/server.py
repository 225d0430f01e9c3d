"""Run the live page's server."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
from collections.abc import Iterable
from types import FrameType
from typing import Final
from urllib.parse import quote

import click
import uvicorn

from mqtune.cli.ui.access import Access
from mqtune.cli.ui.app import Page
from mqtune.cli.ui.places import Places
from mqtune.core.text import printable

#: Seconds that a computing thread keeps the GIL while another thread waits. News of a report needs the GIL some ten
#: times, so Python's default of 5 ms would delay it by 50 ms while a picture is drawn.
_SWITCH_S: Final = 0.001
#: Thresholds of the garbage collector. A collection of the young generation takes some milliseconds. A full one would
#: stop everything for 0.2 s with 10,000 trials, so it is made very rarely.
_COLLECTIONS: Final = (50_000, 20, 100)


class Server(uvicorn.Server):
    """A server that ends event streams when it exits. Otherwise it would wait for them."""

    def __init__(self, config: uvicorn.Config, page: Page) -> None:
        super().__init__(config)
        self._page = page

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.end()

    def end(self) -> None:
        """End the server. Any thread may call this."""
        self.should_exit = True
        self._page.end()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._page.loop = asyncio.get_running_loop()
        await super().startup(sockets)


def server_of(page: Page) -> Server:
    """Return the server of a page."""
    config = uvicorn.Config(
        page.app(), log_level="critical", access_log=False, ws="none", server_header=False, timeout_graceful_shutdown=3
    )
    return Server(config, page)


def serve(listening: socket.socket, host: str, places: Places, names: Iterable[str], *, steers: bool) -> None:
    """Print the URL, and serve until Ctrl-C."""
    sys.setswitchinterval(_SWITCH_S)
    port = listening.getsockname()[1]
    access = Access(host, port, names)
    shown = host if host not in ("", "0.0.0.0", "::") else socket.gethostname()  # noqa: S104 - compared
    shown = f"[{shown}]" if ":" in shown else shown
    one = f"/e/{quote(places.only, safe='')}" if places.only else ""
    click.echo(f"http://{printable(shown)}:{port}/#token={access.token}{one}  (Ctrl-C ends)")
    page = Page(places, access, steers=steers)
    # The state of experiments is no garbage, and scanning it would block everything.
    page.feeds.settled = gc.freeze
    gc.set_threshold(*_COLLECTIONS)
    server_of(page).run(sockets=[listening])
