"""A network that fails on demand: a TCP proxy before a Redis that cuts, refuses, delays, holds and loses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from kept_port import KeptPort

#: What one read takes: enough for a batch of reports.
_READ_BYTES: Final = 64 * 1024
#: How long the proxy's thread may take to do what it is told.
_DEADLINE_S: Final = 10.0


class FaultyProxy(contextlib.AbstractContextManager):
    """Stands between clients and a Redis; it works like a good network until it is told otherwise.

    It runs in a thread of its own, and any thread may tell it what to do. What it was told is in force when the call
    returns. It listens on 127.0.0.1, on the same port all its life.

    Args:
        upstream: URL of the Redis, ``redis://…`` or ``unix://…``; it need not be up yet, and may be restarted.
        hears: what becomes of that which the Redis says, piece by piece.
        tls: how clients are spoken to, if with TLS.
    """

    def __init__(
        self, upstream: str, *, hears: Callable[[bytes], bytes] = bytes, tls: ssl.SSLContext | None = None
    ) -> None:
        self._hears, self._tls = hears, tls
        parts = urlsplit(upstream)
        self._path = unquote(parts.path) if parts.scheme == "unix" else None
        self._host, self._port = parts.hostname or "localhost", parts.port or 6379
        #: Seconds by which what is sent, either way, arrives late.
        self.delay_s = 0.0
        #: How many connections were made so far.
        self.accepted = 0
        self._loses = False
        self._pairs: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        #: Connections that bytes were lost of: nothing sensible can come over them any more.
        self._torn: set[asyncio.StreamWriter] = set()
        #: The loop holds its tasks weakly, and one that waits for what only itself knows of could be collected.
        self._carrying: set[asyncio.Task[Any] | None] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)
        self._thread.start()
        self._kept = KeptPort()
        self.port: int = self._kept.number
        self._login = f"{parts.username or ''}:{quote(unquote(parts.password), safe='')}@" if parts.password else ""
        self.accept()

    @property
    def url(self) -> str:
        """The Redis as it is seen through here."""
        return f"redis://{self._login}127.0.0.1:{self.port}/0"

    def cut(self) -> None:
        """Reset all connections that there are; new ones can be made."""
        self._do(self._cut)

    def refuse(self) -> None:
        """Refuse new connections; those that there are go on."""
        self._do(self._refuse)

    def accept(self) -> None:
        """Accept new connections again."""
        self._run(self._accept)

    def hold(self) -> None:
        """Let nothing through, either way, and say nothing: connections stay open, new ones can be made, no byte arrives."""
        self._do(self._flowing.clear)

    def release(self) -> None:
        """Let all through again that was held, and lose nothing more; connections that bytes were lost of are reset."""
        self._do(self._release)

    def drop(self) -> None:
        """Lose whatever is sent from now on, either way, without an error."""
        self._do(self._drop)

    def close(self) -> None:
        """Reset all connections, and end; nothing happens the second time."""
        if self._thread.is_alive():
            self._do(self._refuse)
            self._run(self._end)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_DEADLINE_S)
            self._loop.close()
            self._kept.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, action: Callable[[], Coroutine[Any, Any, object]]) -> None:
        asyncio.run_coroutine_threadsafe(action(), self._loop).result(_DEADLINE_S)

    def _do(self, action: Callable[[], object]) -> None:
        async def do() -> None:
            action()

        self._run(do)

    async def _accept(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port, ssl=self._tls)

    def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _release(self) -> None:
        self._loses = False
        for writer in self._torn:
            writer.transport.abort()
        self._flowing.set()

    def _drop(self) -> None:
        self._loses = True
        self._flowing.set()

    def _cut(self) -> None:
        for pair in self._pairs.items():
            for writer in pair:
                # A connection that ends in good order would be no fault.
                with contextlib.suppress(OSError):
                    _reset_on_close(writer)
                writer.transport.abort()

    async def _end(self) -> None:
        self._release()
        self._cut()
        # Each connection's task ends with it.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=_DEADLINE_S)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        task = asyncio.current_task()
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        try:
            if self._path is not None:
                theirs, to_them = await asyncio.open_unix_connection(self._path)
            else:
                theirs, to_them = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._pairs[writer] = to_them
        pumps = [
            asyncio.create_task(self._pump(reader, to_them, bytes)),
            asyncio.create_task(self._pump(theirs, writer, self._hears)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            del self._pairs[writer]
            self._torn -= {writer, to_them}
            for end in (writer, to_them):
                end.transport.abort()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, passed_on: Callable[[bytes], bytes]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_READ_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                await self._flowing.wait()
                if self._loses:
                    self._torn.add(target)
                    continue
                target.write(passed_on(data))
                await target.drain()
            # The end of a connection is held, and lost, like all that comes over it.
            await self._flowing.wait()
            if self._loses:
                self._torn.add(target)
                await asyncio.Event().wait()


def _reset_on_close(writer: asyncio.StreamWriter) -> None:
    taken = writer.get_extra_info("socket")
    if taken is not None and taken.family != socket.AF_UNIX:
        # struct linger {1, 0}
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00" + b"\x00\x00\x00\x00")
