"""TLS before a Redis that has none: a proxy with certificates of an authority made for the test."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import quote, unquote, urlencode, urlsplit

import trustme
from faulty_proxy import FaultyProxy


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


class TlsProxy(FaultyProxy):
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
        self._password = unquote(urlsplit(upstream).password or "")
        super().__init__(upstream, tls=authority.context(name, wants_certificates=wants_certificates))

    def url(self, **options: object) -> str:  # type: ignore[override]
        """The Redis as it is seen through here; *options* go into the URL."""
        query = f"?{urlencode({name: str(value) for name, value in options.items()})}" if options else ""
        return f"rediss://:{quote(self._password, safe='')}@localhost:{self.port}/0{query}"
