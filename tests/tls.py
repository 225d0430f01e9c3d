"""TLS before a Redis that has none: a forwarder with certificates of an authority made for the test."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlencode, urlsplit

import trustme

_READ_BYTES: Final = 64 * 1024
_DEADLINE_S: Final = 10.0


class Authority:
    """Issues certificates, and keeps what clients need as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._authority = trustme.CA()
        self.certificate = folder / "ca.pem"
        self.client_certificate, self.client_key = folder / "client.pem", folder / "client.key"
        self._authority.cert_pem.write_to_path(self.certificate)
        client = self._authority.issue_cert("client@example.org")
        client.cert_chain_pems[0].write_to_path(self.client_certificate)
        client.private_key_pem.write_to_path(self.client_key)

    def context(self, name: str, *, wants_certificates: bool) -> ssl.SSLContext:
        """What a server of that name needs."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(name).configure_cert(context)
        if wants_certificates:
            self._authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class TlsProxy(contextlib.AbstractContextManager):
    """A server with TLS on 127.0.0.1 that hands everything on to a Redis on a Unix socket.

    Args:
        upstream: URL of the Redis, ``unix://…``.
        authority: who issues the server's certificate.
        name: whose certificate that is.
        wants_certificates: whether clients must show one of the authority's.
    """

    def __init__(
        self, upstream: str, authority: Authority, *, name: str = "localhost", wants_certificates: bool = False
    ) -> None:
        parts = urlsplit(upstream)
        self._path, self._password = unquote(parts.path), unquote(parts.password or "")
        self._context = authority.context(name, wants_certificates=wants_certificates)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tls-proxy", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_DEADLINE_S)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def url(self, **options: object) -> str:
        """The Redis as it is seen through here; *options* go into the URL."""
        query = f"?{urlencode({name: str(value) for name, value in options.items()})}" if options else ""
        return f"rediss://:{quote(self._password, safe='')}@localhost:{self.port}/0{query}"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to = None
        try:
            upstream, to = await asyncio.open_unix_connection(self._path)
            both = [asyncio.create_task(_pump(reader, to)), asyncio.create_task(_pump(upstream, writer))]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in both:
                    each.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        except OSError:
            pass
        finally:
            for each in (writer, to):
                if each is not None:
                    each.transport.abort()
            self._tasks.discard(task)

    async def _end(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Reset all connections, and end."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(_DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_DEADLINE_S)
        self._loop.close()

    def __exit__(self, *_: object) -> None:
        self.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
