"""Access control of the live page: by token, origin and host name.

The token is in the URL's fragment, which browsers don't send to servers or proxies. The page exchanges the token for a
cookie.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})
#: Addresses that stand for all of the machine's. Clients may use any of its names.
_EVERY: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared
_READING: Final = frozenset({"GET", "HEAD"})
#: A header with a secret that requests for changes must have. Other sites can't read the secret, nor send the header.
CSRF_HEADER: Final = "x-mqtune"
#: Only the page's own scripts and style sheets are allowed. Plotly needs style attributes.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; img-src 'self' data: "
    "blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Access:
    """Checks requests. It has the token of this run of the server, and the host names to accept.

    Args:
        host: the address that the server listens on.
        port: the server's port. It is in the cookie's name, as several servers may run on one machine.
        names: further host names to accept, such as a proxy's.
    """

    def __init__(self, host: str, port: int, names: Iterable[str] = ()) -> None:
        self.token = secrets.token_urlsafe(24)
        self.csrf = hmac.digest(self.token.encode(), b"csrf", "sha256").hex()
        self._cookie = f"mqtune_{port}"
        self._names = _HERE | {host, *names}
        self._is_open = host in _EVERY

    def refusal(self, request: Request) -> Response | None:
        """Return the error response to a request, or None if the request is allowed."""
        if not self._is_named(request.headers.get("host", "")):
            return _refused(421, "the address has another host name than this machine; allow it with --allow-host NAME")
        if request.method not in _READING and not self._is_own_page(request):
            return _refused(
                403,
                "the request came from another site; if the page is behind a proxy, start it with --allow-host NAME",
            )
        path = request.scope["path"]
        if path.startswith("/api/") and path != "/api/login" and not self._is_known(request):
            return _refused(401, "open the URL that mqtune ui printed, with its token")
        return None

    def let_in(self, request: Request, token: object) -> Response:
        """Check a login's token. Return a response with a cookie, or an error."""
        if not isinstance(token, str) or not _equal(token, self.token):
            return _refused(401, "this is not the token that mqtune ui printed; each start has a new token")
        response = Response(status_code=204)
        secure = request.url.scheme == "https"
        response.set_cookie(self._cookie, self.token, path="/", httponly=True, samesite="strict", secure=secure)
        return response

    def may_change(self, request: Request) -> bool:
        """Return whether a request for a change comes from the page itself."""
        return _equal(request.headers.get(CSRF_HEADER, ""), self.csrf)

    def _is_known(self, request: Request) -> bool:
        return _equal(request.cookies.get(self._cookie, ""), self.token)

    def _is_named(self, host: str) -> bool:
        return self._is_open or _name_of(f"//{host}") in self._names

    def _is_own_page(self, request: Request) -> bool:
        origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
        is_own = not origin or _host_of(origin) == host or _name_of(origin) in self._names
        return is_own and request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def _name_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None


def _equal(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"error": why}, status)


class Gate:
    """Middleware that applies ``Access`` to each request, and adds headers to responses."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                is_public = not scope["path"].startswith("/api/")
                headers.setdefault("Cache-Control", "no-cache" if is_public else "no-store")
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._access.refusal(Request(scope)) or self._app
        await answer(scope, receive, send_with_headers)
