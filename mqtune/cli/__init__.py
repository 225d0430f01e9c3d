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

#: The verbs by what they are for. Each is ``command`` in the module of its name, or one of ``COMMANDS`` in that of several verbs.
SECTIONS: Final = {
    "Look": ("list", "show", "trials", "watch", "plot", "logs", "compare", "optuna-dashboard"),
    "Steer": (
        *("stop", "pause", "resume", "restart", "save", "complete", "abandon", "fail"),
        *("add", "set", "end"),
    ),
    "Keep": ("export", "delete", "doctor"),
    "Fleet": ("worker", "workers", "queues", "top", "drain", "acl"),
    "Begin": ("demo",),
}
COMMANDS: Final = tuple(sorted(verb for verbs in SECTIONS.values() for verb in verbs))
_SHARED: Final = {
    **dict.fromkeys(("stop", "pause", "restart", "save", "complete", "abandon", "fail", "add", "set", "end"), "steer"),
    **dict.fromkeys(("workers", "queues", "top"), "fleet"),
}
#: The exit code after Ctrl-C, as shells have it.
INTERRUPTED: Final = 130


class _Commands(click.Group):
    """Imports a command's module only when it is called: ``mqtune show`` must not wait for the imports of a worker."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None = None
        if cmd_name in COMMANDS:
            module = import_module(f"mqtune.cli.{_SHARED.get(cmd_name, cmd_name).replace('-', '_')}")
            command = module.COMMANDS[cmd_name] if cmd_name in _SHARED else module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section, verbs in SECTIONS.items():
            found = [(verb, self.get_command(ctx, verb)) for verb in verbs]
            # As wide in each section.
            widest = max(map(len, COMMANDS))
            room = formatter.width - widest - 6
            rows = [(verb.ljust(widest), each.get_short_help_str(room)) for verb, each in found if each is not None]
            with formatter.section(section):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            click.echo(err=True)
            sys.exit(INTERRUPTED)


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
