"""``mqtune ui``: shows experiments, trials and the fleet live in a browser."""

from __future__ import annotations

import contextlib
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import click

from mqtune.cli.output import broker_option
from mqtune.cli.place import complete_experiment, find_place, is_asked_for, newest_place, opened
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import printable
from mqtune.core.version import install_command

#: The packages of mqtune's extra "ui".
_NEEDED: Final = ("starlette", "uvicorn")


@click.command("ui")
@click.argument("names", nargs=-1, metavar="[NAME]…", shell_complete=complete_experiment)
@broker_option("A Redis server; its experiments and workers are shown. Without --steer, a monitor's account is enough.")
@click.option(
    "--steer",
    "steers",
    is_flag=True,
    help="Add buttons that control experiments and trials. On a broker, this needs an operator's account.",
)
@click.option(
    "--export",
    "report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Instead, write one experiment to a self-contained .html file.",
)
@click.option("--port", default=8265, show_default=True, help="The port to listen on; 0 for a free one.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on. Connections from other machines are not encrypted.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="The host name of a proxy through which people open the page; may be repeated.",
)
def command(
    names: tuple[str, ...],
    broker: str | None,
    port: int,
    host: str,
    hosts: tuple[str, ...],
    report: Path | None,
    *,
    steers: bool,
) -> None:
    """Show experiments live in a browser: each NAME or folder, or by default all of them.

    The command prints the URL to open. Its token admits anyone who has it. On another machine, run
    `ssh -L 8265:localhost:8265 this-machine` and open the same URL. The command needs mqtune's extra ui.
    """
    if missing := [package for package in _NEEDED if find_spec(package) is None]:
        raise ConfigurationError(f"the page needs {' and '.join(missing)}: {install_command('ui')}")
    if report is not None:
        _export(names, broker, report)
        return
    from mqtune.cli.ui.places import Places  # noqa: PLC0415
    from mqtune.cli.ui.server import serve  # noqa: PLC0415

    places = Places(
        [find_place(name, broker) for name in names], broker, broker_alone=bool(broker) and is_asked_for("broker")
    )
    # A wrong broker is reported here, before anybody opens the page.
    places.check_broker()
    with contextlib.suppress(KeyboardInterrupt), _listening(host, port) as listening:
        serve(listening, host, places, hosts, steers=steers)


def _export(names: tuple[str, ...], broker: str | None, file: Path) -> None:
    from mqtune.cli.ui.report import write_report  # noqa: PLC0415 - as above

    if len(names) > 1:
        raise click.UsageError("--export writes one experiment; give only one NAME")
    with opened(find_place(names[0], broker) if names else newest_place(broker)) as view:
        write_report(view, file)
    click.echo(f"{file}: {printable(view.results.name)} · {view.state}")


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"can't listen on {host}:{port}: {error}; give another --port, or 0") from None
