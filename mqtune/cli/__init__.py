"""The ``mqtune`` command."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

import click

from mqtune.cli.verbs import SECTIONS as SECTIONS, Verbs
from mqtune.core.errors import MqtuneError
from mqtune.core.lazy import facade_of
from mqtune.core.machine import INTERRUPTED_CODE, open_standard_streams
from mqtune.core.text import printable, replace_unencodable
from mqtune.core.timing import Timing
from mqtune.core.version import __version__

__all__ = ["main"]

#: The names that unit tests may use, by the module that defines them.
_NAMES = {
    "causes": ("CAUSES", "Reason"),
    "conditions": ("And", "Comparison", "Condition", "Not", "Or", "condition_of", "filter_of", "selected"),
    "drain": ("find_worker", "wait_until_gone"),
    "fleet": ("described_worker", "impairment_text", "queues_of", "runs_of", "unmet_versions"),
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
    "why": ("Inquiry",),
    "worker": ("settings_from_environment",),
}
__getattr__ = facade_of(__name__, _NAMES)

_MODULES: Final = {
    **dict.fromkeys(("stop", "pause", "resume", "save", "add", "set", "end"), "steer"),
    **dict.fromkeys(("ask", "tell"), "outside"),
    "import": "importing",
    "usage": "usage_report",
}


def _find(verb: str) -> click.Command:
    module = import_module(f"mqtune.cli.{_MODULES.get(verb, verb)}")
    command: click.Command = module.COMMANDS[verb] if verb in _MODULES else module.command
    return command


class _Command(Verbs):
    """The group of all verbs. Ctrl-C ends it without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            click.echo(err=True)
            sys.exit(INTERRUPTED_CODE)


@click.group(
    "mqtune", cls=_Command, find=_find, sections=SECTIONS, context_settings={"help_option_names": ["-h", "--help"]}
)
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
        # The error's text may come from a trial or a worker.
        click.echo(f"mqtune: {printable(str(error))}", err=True)
        sys.exit(1)
