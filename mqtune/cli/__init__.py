"""The ``mqtune`` command."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import Final

import click

from mqtune.core.errors import MqtuneError
from mqtune.core.text import printable, replace_unencodable
from mqtune.core.version import __version__

__all__ = ["main"]

#: The verbs by what they are for, each in a few words. Each is ``command`` in the module of its name, or one of ``COMMANDS`` in that of
#: several verbs.
SECTIONS: Final = {
    "Look": {
        "list": "List experiments, here and on the broker.",
        "show": "Show an experiment, or one of its trials.",
        "trials": "List the trials of an experiment.",
        "watch": "Show an experiment's table, live.",
        "why": "Say why a trial waits, or nothing runs.",
        "plot": "Draw an experiment.",
        "logs": "Print the output of a trial.",
        "compare": "Show experiments side by side.",
        "replay": "Try other schedulers on what was recorded.",
        "ui": "Show experiments in a browser, live.",
        "optuna-dashboard": "Show one in Optuna's dashboard.",
    },
    "Steer": {
        "stop": "Stop trials early.",
        "pause": "Pause trials.",
        "resume": "Go on with an experiment, or with trials.",
        "restart": "Restart trials.",
        "save": "Save checkpoints of trials.",
        "complete": "End trials as completed.",
        "abandon": "Give trials up.",
        "fail": "End trials as failed.",
        "add": "Try a config next.",
        "set": "Change the limits of an experiment.",
        "end": "End an experiment.",
        "tag": "Tag an experiment or trials.",
        "note": "Note something about them.",
    },
    "Keep": {
        "export": "Write an experiment to a file or a tool.",
        "import": "Save another tool's experiment here.",
        "code": "List, or write, the code that ran.",
        "archive": "Move an experiment from Redis to disk.",
        "delete": "Delete an experiment.",
        "gc": "Delete what belongs to nothing any more.",
        "doctor": "Check machine, broker and workers.",
    },
    "Fleet": {
        "worker": "Run trials on this machine.",
        "workers": "List the workers that are connected.",
        "queues": "List the queues that they serve.",
        "top": "Show the busy slots, and what runs there.",
        "drain": "Empty workers: their trials are requeued.",
        "quota": "Limit what experiments may run at once.",
        "acl": "Print the commands that make accounts.",
    },
    "Begin": {
        "demo": "Tune a small network on digits.",
        "init": "Write a starter project.",
    },
}
COMMANDS: Final = tuple(sorted(verb for verbs in SECTIONS.values() for verb in verbs))
_SHARED: Final = {
    **dict.fromkeys(("stop", "pause", "restart", "save", "complete", "abandon", "fail", "add", "set", "end"), "steer"),
    **dict.fromkeys(("tag", "note"), "label"),
    "import": "importing",
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        typed = args[0]
        if typed not in COMMANDS and not typed.startswith("-") and not ctx.resilient_parsing:
            likely = " or ".join(map(repr, get_close_matches(typed, COMMANDS)))
            ctx.fail(
                f"No such command {typed!r}. {f'Did you mean {likely}?' if likely else 'mqtune --help lists all.'}"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # As wide in each section.
        widest = max(map(len, COMMANDS))
        for section, verbs in SECTIONS.items():
            rows = [(verb.ljust(widest), words) for verb, words in verbs.items()]
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
