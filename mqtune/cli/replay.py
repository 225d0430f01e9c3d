"""``mqtune replay``: runs other schedulers on recorded learning curves."""

from __future__ import annotations

import ast
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from mqtune.cli.output import broker_option, json_option, one_of, print_json, print_table, say
from mqtune.cli.place import find_place, name_argument, opened
from mqtune.core.errors import ConfigurationError
from mqtune.core.text import names_in_words, printable
from mqtune.results.display import short_value
from mqtune.results.experiments import duration
from mqtune.search.base import searcher_names

if TYPE_CHECKING:
    from mqtune.results.whatif import Course
    from mqtune.schedulers.base import Scheduler

#: The schedulers that create no configs.
SCHEDULERS: Final = (
    "ASHA",
    "FIFO",
    "HyperBand",
    "MOASHA",
    "MedianStopping",
    "PASHA",
    "PromotionASHA",
    "RUSH",
    "WilcoxonStopping",
)


@click.command("replay")
@name_argument
@click.option(
    "--scheduler",
    "schedulers",
    multiple=True,
    metavar="TEXT",
    help="The scheduler, as in a script: 'ASHA(max_t=81, reduction_factor=4)'; by default the recorded one. May be "
    "repeated.",
)
@click.option(
    "--searcher",
    metavar="NAME",
    **one_of(searcher_names),
    help="The searcher that proposes configs. By default they run in the recorded order.",
)
@click.option(
    "--slots", type=click.IntRange(min=1), help="Number of trials that run at the same time; by default as recorded."
)
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
    """Try other schedulers on an experiment's recorded learning curves, in virtual time.

    Only recorded configs can run: the searcher random shuffles them, and in place of another searcher's proposal the
    nearest unused config runs. A question mark means that trials would have continued after the end of their recorded
    curves.
    """
    wanted: list[Scheduler | None] = [scheduler_of(text) for text in schedulers]
    from mqtune.results.whatif import Replay  # noqa: PLC0415 - --help must not wait for a driver

    with opened(find_place(name, broker)) as view:
        replay = Replay(view.results)
        replays = [replay.run(scheduler, searcher=searcher, slots=slots) for scheduler in wanted or [None]]
        if as_json:
            described = [
                {**asdict(replayed.course), "verdict": replayed.verdict, "certain": replayed.is_certain}
                for replayed in replays
            ]
            print_json({"name": view.results.name, "original": asdict(replay.original), "replays": described})
            return
        names = [f"replay {number}" if len(replays) > 1 else "replay" for number, _ in enumerate(replays, 1)]
        columns = [_cells(course) for course in (replay.original, *(replayed.course for replayed in replays))]
        print_table(["", "recorded", *names], [[label, *(cells[label] for cells in columns)] for label in columns[0]])
        for name_of_replay, replayed in zip(names, replays, strict=True):
            say(f"{name_of_replay}: {replayed.verdict}" if len(replays) > 1 else replayed.verdict)


def scheduler_of(text: str) -> Scheduler:
    """Return the scheduler that a text such as ``ASHA(max_t=81)``, with plain values, describes.

    Raises:
        click.UsageError: the text is invalid.
        ConfigurationError: the scheduler refuses an argument.
    """
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
        call = parsed if isinstance(parsed, ast.Call) else ast.Call(parsed, [], [])
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        arguments = [ast.literal_eval(argument) for argument in call.args]
        named = {
            str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg is not None
        }
        is_plain = len(named) == len(call.keywords)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        name, is_plain = "", False
    if name not in SCHEDULERS or not is_plain:
        raise click.UsageError(
            f"{text!r} is not a scheduler; write one such as 'ASHA(max_t=81, reduction_factor=4)', with plain values. "
            f"Schedulers are {names_in_words(SCHEDULERS)}"
        )
    try:
        scheduler: Scheduler = getattr(import_module("mqtune"), name)(*arguments, **named)
    except TypeError as error:
        raise ConfigurationError(f"{text}: {error}") from None
    return scheduler


def _cells(course: Course) -> dict[str, str]:
    """Return the cells of an experiment's column in the table, by their row's label."""
    best = "" if course.value is None else f"{short_value(course.value)} in {course.trial}"
    figures = {
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
        **{label: f"{text} ?" if course.cut and text else text for label, text in figures.items()},
    }
