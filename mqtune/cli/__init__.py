"""The ``mqtune`` command."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from mqtune.core.errors import MqtuneError
from mqtune.core.lazy import facade_of
from mqtune.core.machine import INTERRUPTED_CODE, open_standard_streams
from mqtune.core.text import printable, replace_unencodable
from mqtune.core.timing import Timing
from mqtune.core.version import __version__

if TYPE_CHECKING:
    from mqtune.cli.conditions import (
        And as And,
        Comparison as Comparison,
        Condition as Condition,
        Not as Not,
        Or as Or,
        condition_of as condition_of,
        filter_of as filter_of,
        selected as selected,
    )
    from mqtune.cli.drain import find_worker as find_worker, wait_until_gone as wait_until_gone
    from mqtune.cli.fleet import (
        described_worker as described_worker,
        impairment_text as impairment_text,
        queues_of as queues_of,
        runs_of as runs_of,
        unmet_versions as unmet_versions,
        users_of_quota as users_of_quota,
        way_to_more as way_to_more,
    )
    from mqtune.cli.place import Place as Place, chosen as chosen, find_trial as find_trial
    from mqtune.cli.replay import SCHEDULERS as SCHEDULERS, scheduler_of as scheduler_of
    from mqtune.cli.show import command as command
    from mqtune.cli.steer import Outcome as Outcome
    from mqtune.cli.terms import config_of as config_of, in_order as in_order
    from mqtune.cli.ui.access import Access as Access
    from mqtune.cli.ui.app import Page as Page
    from mqtune.cli.ui.feed import Feed as Feed, Feeds as Feeds
    from mqtune.cli.ui.paced import Paced as Paced
    from mqtune.cli.ui.places import Places as Places
    from mqtune.cli.ui.server import server_of as server_of
    from mqtune.cli.why import Inquiry as Inquiry, Reason as Reason
    from mqtune.cli.worker import settings_from_environment as settings_from_environment

__all__ = ["main"]

#: The names that unit tests may use, by the module that defines them.
_NAMES = {
    "conditions": ("And", "Comparison", "Condition", "Not", "Or", "condition_of", "filter_of", "selected"),
    "drain": ("find_worker", "wait_until_gone"),
    "fleet": (
        "described_worker",
        "impairment_text",
        "queues_of",
        "runs_of",
        "unmet_versions",
        "users_of_quota",
        "way_to_more",
    ),
    "place": ("Place", "chosen", "find_trial"),
    "replay": ("SCHEDULERS", "scheduler_of"),
    "show": ("command",),
    "steer": ("Outcome",),
    "terms": ("config_of", "in_order"),
    "ui.access": ("Access",),
    "ui.app": ("Page",),
    "ui.feed": ("Feed", "Feeds"),
    "ui.paced": ("Paced",),
    "ui.places": ("Places",),
    "ui.server": ("server_of",),
    "why": ("Inquiry", "Reason"),
    "worker": ("settings_from_environment",),
}
__getattr__ = facade_of(__name__, _NAMES)

#: The verbs by purpose, with short help. ``_MODULES`` names the modules of verbs outside a module of their name.
SECTIONS: Final = {
    "Look": {
        "list": "List experiments, or compare some.",
        "show": "Show an experiment, or one of its trials.",
        "why": "Say why a trial waits, or nothing runs.",
        "plot": "Draw an experiment.",
        "logs": "Print the output of a trial.",
        "events": "List requests of people, with their times.",
        "usage": "Sum up who has used how much.",
        "replay": "Try other schedulers on what was recorded.",
        "ui": "Show experiments in a browser, live.",
    },
    "Steer": {
        "stop": "End trials early, or the experiment.",
        "pause": "Pause trials.",
        "resume": "Resume paused trials, or restart trials.",
        "save": "Save checkpoints of trials.",
        "add": "Try a config next.",
        "ask": "Begin a trial that you evaluate outside.",
        "tell": "Tell the result of such a trial.",
        "set": "Change the limits of an experiment.",
        "label": "Tag an experiment or trials, or add notes.",
    },
    "Go on": {
        "drive": "Become the driver of an experiment.",
        "submit": "Have a worker run a script that drives.",
    },
    "Keep": {
        "export": "Write an experiment to a file or a tool.",
        "import": "Save another tool's experiment here.",
        "delete": "Delete, or archive, an experiment.",
        "doctor": "Check machine, broker and workers.",
    },
    "Fleet": {
        "worker": "Run trials on this machine.",
        "fleet": "Show the workers, and what runs where.",
        "drain": "Empty workers: they requeue their trials.",
        "quota": "Limit what experiments may run at once.",
        "acl": "Print the commands that make accounts.",
        "exporter": "Serve the fleet's figures to Prometheus.",
    },
    "Begin": {
        "demo": "Tune a small network on digits.",
        "init": "Write a starter project.",
        "tune": "Tune a program, without a script.",
    },
}
COMMANDS: Final = tuple(sorted(verb for verbs in SECTIONS.values() for verb in verbs))
_MODULES: Final = {
    **dict.fromkeys(("stop", "pause", "resume", "save", "add", "set"), "steer"),
    **dict.fromkeys(("ask", "tell"), "outside"),
    "import": "importing",
    "usage": "usage_report",
}
#: Other tools' verbs, where the most similar verb means something else.
_MEANT: Final = dict.fromkeys(("top", "watch"), "'fleet' or 'show --follow'")


class _Commands(click.Group):
    """Imports a command's module only when needed, as some imports are slow."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None = None
        if cmd_name in COMMANDS:
            module = import_module(f"mqtune.cli.{_MODULES.get(cmd_name, cmd_name)}")
            command = module.COMMANDS[cmd_name] if cmd_name in _MODULES else module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        typed = args[0]
        if typed not in COMMANDS and not typed.startswith("-") and not ctx.resilient_parsing:
            likely = _MEANT.get(typed) or " or ".join(map(repr, get_close_matches(typed, COMMANDS)))
            ctx.fail(
                f"No such command {typed!r}. {f'Did you mean {likely}?' if likely else 'mqtune --help lists all.'}"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
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
            sys.exit(INTERRUPTED_CODE)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mqtune")
def group() -> None:
    """Tune hyperparameters over many machines with nothing but Celery and Redis."""


def main(timing: Timing = Timing()) -> None:
    """Run the command. An MqtuneError is printed on one line, without a traceback."""
    open_standard_streams()
    replace_unencodable(sys.stdout)
    replace_unencodable(sys.stderr)
    try:
        group(obj=timing)
    except MqtuneError as error:
        # Its text may come from a trial or a worker.
        click.echo(f"mqtune: {printable(str(error))}", err=True)
        sys.exit(1)
