"""``mqtune optuna-dashboard``: Optuna's dashboard over an experiment."""

from __future__ import annotations

import contextlib
import threading
from typing import Final

import click

from mqtune.cli.output import broker_option
from mqtune.cli.place import name_argument, whole_name
from mqtune.core.errors import ConfigurationError

#: Addresses that only this machine reaches.
_HERE: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@click.command("optuna-dashboard")
@name_argument
@broker_option("The Redis of an experiment that was not driven on this machine.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--no-login",
    is_flag=True,
    help="Listen on an address that others reach: the dashboard has no login, and whoever reaches it can look and write notes.",
)
@click.option("--port", default=8080, show_default=True, help="The port to listen on; 0 for a free one.")
def command(name: str, broker: str | None, host: str, port: int, *, no_login: bool) -> None:
    """Show experiment NAME in Optuna's dashboard, live while it runs.

    The dashboard can't change the experiment. Needs pip install 'mqtune[optuna-dashboard]'.
    """
    if host not in _HERE and not no_login:
        raise ConfigurationError(
            f"--host {host}: Optuna's dashboard has no login, so that everybody who reaches {host} could look and write notes. Leave it out "
            "and use a tunnel (ssh -L), or say --no-login too; mqtune ui has a login"
        )
    # --help needs none of it.
    from mqtune.integrations.optuna_dashboard import Feed, open_server  # noqa: PLC0415

    name = whole_name(name, broker)
    with contextlib.closing(Feed(name, broker)) as feed:
        server = open_server(feed.mirror.storage, host, port)
        threading.Thread(target=feed.follow, name="mqtune-follower", daemon=True).start()
        click.echo(f"{name}: http://{host}:{server.server_port}/  (Ctrl-C ends)")
        with contextlib.suppress(KeyboardInterrupt), server:
            server.serve_forever()
