"""``mqtune replay``: what another scheduler would have made of an experiment."""

from __future__ import annotations

import ast
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from mqtune.cli.output import broker_option, json_option, print_json, print_table, say
from mqtune.cli.place import find_place, name_argument, opened
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import names_in_words, printable
from mqtune.results.display import short_value
from mqtune.results.experiments import duration
from mqtune.search.base import SEARCHERS

if TYPE_CHECKING:
    from mqtune.results.whatif import Course, Replayed
    from mqtune.schedulers.base import Scheduler

#: The schedulers that may be named; the others make configs of their own.
SCHEDULERS: Final = ("ASHA", "FIFO", "HyperBand", "MOASHA", "MedianStopping", "PASHA", "PromotionASHA", "RUSH")


@click.command("replay")
@name_argument
@click.option(
    "--scheduler",
    "schedulers",
    multiple=True,
    metavar="TEXT",
    help="As in a script: 'ASHA(max_t=81, reduction_factor=4)'; by default the one that it had. May be repeated.",
)
@click.option("--searcher", type=click.Choice([*SEARCHERS]), help="By default configs come in the recorded order.")
@click.option("--slots", type=click.IntRange(min=1), help="How many trials run at once; by default as many as ran.")
@broker_option("The Redis server that has the experiment, unless it is on this machine.")
@json_option
def command(
    name: str,
    schedulers: tuple[str, ...],
    searcher: str | None,
    slots: int | None,
    broker: str | None,
    *,
    as_json: bool,
) -> None:
    """Run other schedulers over an experiment's recorded learning curves, in virtual time, and show what they would have taken and found.

    A searcher can suggest recorded configs alone: "random" takes them in another order, and of what a model suggests the
    nearest one that was not tried yet is taken.
    """
    wanted: list[Scheduler | None] = [scheduler_of(text) for text in schedulers]
    from mqtune.results.whatif import Replay  # noqa: PLC0415 - --help must not wait for a driver

    with opened(find_place(name, broker)) as view:
        replay = Replay(view.results)
        found = [replay.run(scheduler, searcher=searcher, slots=slots) for scheduler in wanted or [None]]
        if as_json:
            replays = [{**asdict(each.course), "verdict": each.verdict, "certain": each.is_certain} for each in found]
            print_json({"name": view.results.name, "original": asdict(replay.original), "replays": replays})
        else:
            _show(replay.original, found)


def scheduler_of(text: str) -> Scheduler:
    """Return the scheduler that a text such as ``ASHA(max_t=81)`` names; nothing of it is run, and its arguments are plain values.

    Raises:
        click.UsageError: it is no such text.
        ConfigurationError: the scheduler refuses an argument.
    """
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
        call = parsed if isinstance(parsed, ast.Call) else ast.Call(parsed, [], [])
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        arguments = [ast.literal_eval(each) for each in call.args]
        named = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
        is_plain = len(named) == len(call.keywords)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        name, is_plain = "", False
    if name not in SCHEDULERS or not is_plain:
        raise click.UsageError(
            f"{text!r} is not a scheduler; write one such as 'ASHA(max_t=81, reduction_factor=4)', with plain values: "
            f"{names_in_words(SCHEDULERS)}"
        )
    try:
        scheduler: Scheduler = getattr(import_module("mqtune"), name)(*arguments, **named)
    except TypeError as error:
        raise ConfigurationError(f"{text}: {error}") from None
    return scheduler


def _show(original: Course, found: list[Replayed]) -> None:
    columns = [_cells(course) for course in (original, *(each.course for each in found))]
    heads = ["", "recorded", *(f"replay {number}" if len(found) > 1 else "replay" for number, _ in enumerate(found, 1))]
    print_table(heads, [[label, *(column[label] for column in columns)] for label in columns[0]])
    for number, each in enumerate(found, 1):
        say(f"{f'replay {number}: ' if len(found) > 1 else ''}{each.verdict}")


def _cells(course: Course) -> dict[str, str]:
    """Return the cells of a column; what hangs on curves that were cut off has a question mark."""
    best = "" if course.value is None else f"{short_value(course.value)} in {course.trial}"
    unsure = {
        "stopped early": str(course.stopped),
        "reports": str(course.reports),
        "time of trials": duration(course.trials_s),
        "took": duration(course.took_s),
        "best": f"Pareto front: {len(course.front)}" if course.front else best,
        "found after": "" if course.found_s is None else duration(course.found_s),
    }
    return {
        "scheduler": printable(course.scheduler),
        "searcher": printable(course.searcher),
        "slots": str(course.slots),
        "trials": str(course.trials),
        "failed": str(course.failed),
        "cut off": str(len(course.cut)),
        **{label: f"{text} ?" if course.cut and text else text for label, text in unsure.items()},
    }
