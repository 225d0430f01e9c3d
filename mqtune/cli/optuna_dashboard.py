"""``mqtune optuna-dashboard``: Optuna's dashboard over an experiment."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Final

import click

from mqtune.backends.local.server import EmbeddedServer
from mqtune.core.errors import BrokerUnavailable, ConfigurationError
from mqtune.core.events import START, ExperimentCreated, decode_event
from mqtune.core.machine import mqtune_home
from mqtune.journal.base import Entry, entry_order
from mqtune.journal.copy import JOURNAL_FILE, JournalFile
from mqtune.journal.follow import SILENCE_S, Follower
from mqtune.results.experiments import find_experiment

#: How long an experiment's own server may be away before it is taken for ended.
_PATIENCE_S: Final = 1.0


@click.command("optuna-dashboard")
@click.argument("name")
@click.option(
    "--broker", envvar="MQTUNE_BROKER", help="The Redis of an experiment that was not driven on this machine."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on; whoever reaches it can look."
)
@click.option("--port", default=8080, show_default=True, help="The port to listen on; 0 for a free one.")
def command(name: str, broker: str | None, host: str, port: int) -> None:
    """Show experiment NAME in Optuna's dashboard, live while it runs.

    The dashboard can't change the experiment. Needs pip install 'mqtune[optuna-dashboard]'.
    """
    from mqtune.integrations.optuna_dashboard import open_server  # noqa: PLC0415 - --help needs none of it

    with contextlib.closing(_Feed(name, broker)) as feed:
        server = open_server(feed.mirror.storage, host, port)
        threading.Thread(target=feed.follow, name="mqtune-follower", daemon=True).start()
        click.echo(f"{name}: http://{host}:{server.server_port}/  (Ctrl-C ends)")
        with contextlib.suppress(KeyboardInterrupt), server:
            server.serve_forever()


class _Feed:
    """Feeds a mirror from the broker while there is one, and from this machine's copy where there is not."""

    def __init__(self, name: str, broker: str | None) -> None:
        from mqtune.integrations.optuna_study import StudyMirror  # noqa: PLC0415

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
