"""Optuna's dashboard over an experiment, which it can look at and not change; needs the extra ``optuna-dashboard``."""

from __future__ import annotations

import socketserver
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from mqtune.core.errors import BrokerUnavailable, ConfigurationError, CopyIncomplete
from mqtune.core.timing import Timing
from mqtune.core.version import install_command
from mqtune.integrations.optuna_study import StudyMirror
from mqtune.results.followed import Followed, source_of

try:
    from optuna.storages import BaseStorage
    from optuna_dashboard import wsgi
except ImportError as error:  # pragma: no cover - the tests have it
    raise ConfigurationError(
        f"Optuna's dashboard can't be imported ({error}); {install_command('optuna-dashboard')}"
    ) from error

#: How long an experiment's own server may be away before it is taken for ended.
_PATIENCE_S: Final = 1.0
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

    def __call__(self, environment: _Environment, start_response: Callable[..., object]) -> Iterable[bytes]:
        name = environment.get("HTTP_HOST", "").rpartition(":")[0].strip("[]") or environment.get("HTTP_HOST", "")
        if not self._is_open and name not in self._hosts:
            return _refuse(
                start_response, "421 Misdirected Request", f"this server is {', '.join(sorted(self._hosts))}"
            )
        is_note = environment["REQUEST_METHOD"] == "PUT" and environment["PATH_INFO"].endswith("/note")
        if environment["REQUEST_METHOD"] not in _READING and not is_note:
            return _refuse(start_response, "403 Forbidden", "the journal is the experiment: use mqtune to change it")
        return self._application(environment, start_response)


def _refuse(start_response: Callable[..., object], status: str, reason: str) -> Iterable[bytes]:
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


def open_study(name: str, folder: Path | None, url: str | None, own_folder: Path | None) -> Followed[StudyMirror]:
    """Return an experiment that is folded into a study.

    Args:
        name: the experiment's name.
        folder: its folder on this machine, if it has one.
        url: the server that has it, if one does.
        own_folder: its folder, if it has a server of its own.

    Raises:
        ConfigurationError: there is no such experiment, or it has not begun yet.
        BrokerUnavailable: the server does not answer.
        CopyIncomplete: it is read from its folder, which lacks entries.
    """
    source = source_of(name, folder, url, patience_s=_PATIENCE_S if own_folder is not None else None)
    followed = Followed(source, name, StudyMirror)
    followed.fold.write()
    return followed


def feed_study(followed: Followed[StudyMirror], own_folder: Path | None) -> None:
    """Bring a study up to what comes, without end; from the folder where a server of the experiment's own has ended."""
    while True:
        try:
            followed.take_in(Timing().follow_silence_s)
        except BrokerUnavailable:
            if own_folder is not None:
                followed.go_on_in(own_folder)
        except (CopyIncomplete, FileNotFoundError):
            # What there was is shown on.
            return
        followed.fold.write()
