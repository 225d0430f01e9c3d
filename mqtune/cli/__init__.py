"""The ``mqtune`` command."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import click

from mqtune.core.errors import MqtuneError
from mqtune.core.text import printable, replace_unencodable
from mqtune.core.version import __version__

__all__ = ["main"]

#: Each is ``command`` in the module of its name, which is imported when it is called.
COMMANDS: Final = ("acl", "demo", "drain", "list", "logs", "optuna-dashboard", "resume", "show", "worker")


class _Commands(click.Group):
    """Imports a command's module only when it is called: ``mqtune show`` must not wait for the imports of a worker."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None = None
        if cmd_name in COMMANDS:
            command = import_module(f"mqtune.cli.{cmd_name.replace('-', '_')}").command
        return command


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mqtune")
def group() -> None:
    """Tune hyperparameters over many machines with nothing but Celery and Redis."""


def main() -> None:
    """Run the command; an MqtuneError is printed on one line, without a traceback."""
    replace_unencodable(sys.stdout)
    replace_unencodable(sys.stderr)
    try:
        group()
    except MqtuneError as error:
        # Its text may come from a trial or a worker.
        click.echo(f"mqtune: {printable(str(error))}", err=True)
        sys.exit(1)
