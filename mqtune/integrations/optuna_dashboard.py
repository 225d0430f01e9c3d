"""Optuna's dashboard over an experiment, which it can look at and not change; needs the extra ``optuna-dashboard``."""

from __future__ import annotations

import socketserver
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from mqtune.backends.local.server import EmbeddedServer
from mqtune.core.errors import BrokerUnavailable, ConfigurationError
from mqtune.core.events import START, ExperimentCreated, decode_event
from mqtune.core.machine import mqtune_home
from mqtune.integrations.optuna_study import StudyMirror
from mqtune.journal.base import Entry, entry_order
from mqtune.journal.copy import JOURNAL_FILE, JournalFile
from mqtune.journal.follow import SILENCE_S, Follower
from mqtune.results.experiments import find_experiment

try:
    from optuna.storages import BaseStorage
    from optuna_dashboard import wsgi
except ImportError as error:  # pragma: no cover - the tests have it
    raise ConfigurationError(
        f"Optuna's dashboard can't be imported ({error}); pip install 'mqtune[optuna-dashboard]'"
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


class Feed:
    """Feeds a mirror from the broker while there is one, and from this machine's copy where there is not."""

    def __init__(self, name: str, broker: str | None) -> None:
        self._name = name
        self._last = START.entry
        self._broker = broker
        if broker:
            self._follower: Follower | None = Follower(broker, name)
        else:
            url = EmbeddedServer.running_url(mqtune_home() / name)
            self._follower = None if url is None else Follower(url, name, patience_s=_PATIENCE_S)
        try:
            entries = self._saved() if self._follower is None else self._written(self._follower)
            first = next(entries, None)
            created = None if first is None else decode_event(first.data, first.id)
            if not isinstance(created, ExperimentCreated):
                raise ConfigurationError(f"experiment {name!r} has not begun yet; look again when its driver has begun")
            self.mirror = StudyMirror(created)
            self._take(entries)
        except BaseException:
            self.close()
            raise

    def follow(self) -> None:
        """Take in what comes, without end; from a server that ended with its driver, the rest is on this machine."""
        while self._follower is not None:
            try:
                self._take(self._follower.read(SILENCE_S))
            except BrokerUnavailable:
                if not self._broker:
                    self._take(self._saved())
                    return

    def close(self) -> None:
        """Close the connections."""
        if self._follower is not None:
            self._follower.close()

    def _saved(self) -> Iterator[Entry]:
        return JournalFile(find_experiment(self._name) / JOURNAL_FILE).read()

    @staticmethod
    def _written(follower: Follower) -> Iterator[Entry]:
        while entries := follower.read(0):
            yield from entries

    def _take(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry_order(entry.id) > entry_order(self._last):
                self._last = entry.id
                if (event := decode_event(entry.data, entry.id)) is not None:
                    self.mirror.take(event)
        self.mirror.write()
