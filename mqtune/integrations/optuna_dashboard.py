"""Optuna's dashboard over an experiment, which it can look at and not change; needs the extra ``optuna-dashboard``."""

from __future__ import annotations

import socketserver
from collections.abc import Callable, Iterable
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from mqtune.core.errors import ConfigurationError

try:
    from optuna.storages import BaseStorage
    from optuna_dashboard import wsgi
except ImportError as error:  # pragma: no cover - the tests have it
    raise ConfigurationError(
        f"Optuna's dashboard can't be imported ({error}); pip install 'mqtune[optuna-dashboard]'"
    ) from error

_Environment = dict[str, Any]
_Application = Callable[[_Environment, Callable[..., Any]], Iterable[bytes]]
_READING: Final = frozenset({"GET", "HEAD"})
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class _ReadOnly:
    """Refuses what would change the study, but notes; and names of this host that a page from elsewhere may have made up."""

    def __init__(self, application: _Application, host: str) -> None:
        self._application = application
        self._hosts = _HERE | {host}
        #: An address for all of a machine's names: whoever reaches it may use any.
        self._is_open = host in ("", "0.0.0.0", "::")  # noqa: S104 - compared

    def __call__(self, environment: _Environment, start_response: Callable[..., Any]) -> Iterable[bytes]:
        name = environment.get("HTTP_HOST", "").rpartition(":")[0].strip("[]") or environment.get("HTTP_HOST", "")
        if not self._is_open and name not in self._hosts:
            return _refuse(
                start_response, "421 Misdirected Request", f"this server is {', '.join(sorted(self._hosts))}"
            )
        is_note = environment["REQUEST_METHOD"] == "PUT" and environment["PATH_INFO"].endswith("/note")
        if environment["REQUEST_METHOD"] not in _READING and not is_note:
            return _refuse(start_response, "403 Forbidden", "the journal is the experiment: use mqtune to change it")
        return self._application(environment, start_response)


def _refuse(start_response: Callable[..., Any], status: str, reason: str) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [f'{{"reason": "{reason}"}}'.encode()]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing: a page that is open asks each few seconds."""


def open_server(storage: BaseStorage, host: str, port: int) -> WSGIServer:
    """Return the dashboard's server, which listens and serves once ``serve_forever`` is called.

    Anybody who reaches it can look. Nobody can change the study, but its notes, which are gone when it ends.

    Raises:
        ConfigurationError: it can't listen there.
    """
    try:
        return make_server(host, port, _ReadOnly(wsgi(storage), host), server_class=_Server, handler_class=_Handler)
    except OSError as error:
        raise ConfigurationError(f"can't listen on {host}:{port}: {error}; give another --port") from None
