"""The ``mqtune`` command."""

from __future__ import annotations

import sys

import click

from mqtune.cli.worker import worker
from mqtune.errors import MqtuneError
from mqtune.version import __version__

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mqtune")
def group() -> None:
    """Tune hyperparameters over many machines with nothing but Celery and Redis."""


group.add_command(worker)


def main() -> None:
    """Run the command; an error that mqtune raises on purpose is one line, not a traceback."""
    try:
        group()
    except MqtuneError as error:
        click.echo(f"mqtune: {error}", err=True)
        sys.exit(1)
