"""The ``mqtune`` command."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from mqtune.cli.verbs import SECTIONS as SECTIONS, Verbs
from mqtune.core.errors import MqtuneError
from mqtune.core.lazy import facade_of
from mqtune.core.machine import INTERRUPTED_CODE, open_standard_streams
from mqtune.core.text import printable, replace_unencodable
from mqtune.core.timing import Timing
from mqtune.core.version import __version__

if TYPE_CHECKING:
    from mqtune.cli.causes import CAUSES as CAUSES, Reason as Reason
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
    from mqtune.cli.why import Inquiry as Inquiry
    from mqtune.cli.worker import settings_from_environment as settings_from_environment

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
