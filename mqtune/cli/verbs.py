"""The verbs of ``mqtune`` by purpose, and a group that imports a verb only when needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final

import click

#: The verbs by purpose, with short help texts. The second word of a verb is a verb of the first one's group.
SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "Start": {
        "demo": "Tune a small network on handwritten digits.",
        "init": "Write a starter project.",
        "tune": "Tune a program, without a script.",
    },
    "Inspect": {
        "list": "List experiments, or compare them.",
        "show": "Show an experiment, or one of its trials.",
        "why": "Explain why a trial is waiting, or why nothing is running.",
        "plot": "Plot an experiment.",
        "logs": "Print the output of a trial.",
        "events": "List people's requests and changes.",
        "usage": "Report GPU-hours, slot-hours and energy.",
        "replay": "Try other schedulers on recorded learning curves.",
        "ui": "Show experiments live in a browser.",
        "doctor": "Check this machine, the broker and the workers.",
    },
    "Control": {
        "stop": "Stop trials early.",
        "end": "End an experiment.",
        "pause": "Pause trials.",
        "resume": "Resume paused trials, or restart trials.",
        "save": "Save checkpoints of running trials.",
        "add": "Run a trial with your own config.",
        "ask": "Get a config to evaluate yourself.",
        "tell": "Report the result of a trial that you evaluated.",
        "set": "Change an experiment's limits.",
        "label": "Add or remove tags and notes.",
    },
    "Continue": {"drive": "Continue an experiment without its script.", "submit": "Run a tuning script on a worker."},
    "Data": {
        "export": "Write an experiment to a file or another tool.",
        "import": "Import another tool's experiment.",
        "code": "List or save the code that the driver sent.",
        "archive": "Move an experiment from its broker to this machine.",
        "delete": "Delete an experiment.",
        "gc": "Delete orphaned data, and optionally old experiments.",
    },
    "Fleet": {
        "worker": "Run trials on this machine.",
        "fleet": "Show workers, queues and running trials.",
        "fleet drain": "Take workers or devices out of service.",
        "fleet undrain": "Return devices to service.",
        "fleet quota": "Limit how many trials run at the same time.",
        "fleet acl": "Print the commands that create Redis accounts.",
        "fleet exporter": "Serve the fleet's metrics to Prometheus.",
    },
}
#: Hints for verbs of other tools for which the most similar verb here would be wrong.
_MEANT: Final = dict.fromkeys(("top", "watch"), "'fleet' or 'show --follow'")


class Verbs(click.Group):
    """A command group that imports a verb's module only when needed, as some imports are slow.

    Args:
        find: imports a verb's command, given its name.
        sections: the verbs and their short help texts, by section of the help.
    """

    def __init__(
        self,
        *args: Any,
        find: Callable[[str], click.Command],
        sections: Mapping[str, Mapping[str, str]],
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._find = find
        self._sections = sections
        self._names = [verb for verbs in sections.values() for verb in verbs if " " not in verb]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self._find(cmd_name) if cmd_name in self._names else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        typed = args[0]
        if typed not in self._names and not typed.startswith("-") and not ctx.resilient_parsing:
            hint = (
                f"Did you mean {likely}?"
                if (likely := self._likely(typed))
                else f"{ctx.command_path} --help lists all."
            )
            ctx.fail(f"No such command {typed!r}. {hint}")
        return super().resolve_command(ctx, args)

    def _likely(self, typed: str) -> str:
        """Return the verbs that an unknown verb may mean, in words. It is empty if none is similar."""
        nested = [verb for verbs in self._sections.values() for verb in verbs if verb.endswith(f" {typed}")]
        return _MEANT.get(typed, "") or " or ".join(map(repr, nested or get_close_matches(typed, self._names)))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(len(verb) for verbs in self._sections.values() for verb in verbs)
        for section, verbs in self._sections.items():
            rows = [(verb.ljust(widest), words) for verb, words in verbs.items()]
            with formatter.section(section):
                formatter.write_dl(rows)
