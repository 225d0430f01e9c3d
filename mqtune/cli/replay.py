"""``mqtune replay``: what another scheduler would have made of an experiment."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from operator import gt, lt
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
    from mqtune.results.whatif import Bounds, Course, Repeats, Replayed
    from mqtune.schedulers.base import Scheduler

#: The schedulers that may be named; the others make configs of their own.
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
    help="As in a script: 'ASHA(max_t=81, reduction_factor=4)'; by default the one that it had. May be repeated.",
)
@click.option(
    "--searcher", metavar="NAME", **one_of(searcher_names), help="By default configs come in the recorded order."
)
@click.option("--slots", type=click.IntRange(min=1), help="How many trials run at once; by default as many as ran.")
@click.option(
    "--time-scale",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    help="Reports take so many times as long as recorded.",
)
@click.option(
    "--repeat",
    "times",
    type=click.IntRange(min=1),
    help="Replay in so many random orders of the configs, the same for each scheduler; show medians and intervals.",
)
@broker_option("The Redis server that has the experiment, unless it is on this machine.")
@json_option
def command(
    name: str,
    schedulers: tuple[str, ...],
    searcher: str | None,
    slots: int | None,
    time_scale: float,
    times: int | None,
    broker: str | None,
    *,
    as_json: bool,
) -> None:
    """Run other schedulers over an experiment's recorded learning curves, in virtual time, and show what they would have taken and found.

    A searcher can suggest recorded configs alone: "random" takes them in another order, and of what a model suggests the
    nearest one that was not tried yet is taken.

    Where a scheduler would have had trials go on that the record cuts off, figures are ranges over several cases.
    """
    wanted: list[Scheduler | None] = [scheduler_of(text) for text in schedulers]
    from mqtune.results.whatif import Replay  # noqa: PLC0415 - --help must not wait for a driver

    with opened(find_place(name, broker)) as view:
        replay = Replay(view.results)
        if times is None:
            found = [
                replay.run(each, searcher=searcher, slots=slots, time_scale=time_scale) for each in wanted or [None]
            ]
            if as_json:
                _print_json(view.results.name, replay.original, [_plain(each) for each in found])
            else:
                _show(_cells(replay.original, {}), [_cells(each.course, each.bounds) for each in found])
                _say_each([each.verdict for each in found])
            return
        repeats = [
            replay.repeat(times, each, searcher=searcher, slots=slots, time_scale=time_scale)
            for each in wanted or [None]
        ]
        if as_json:
            _print_json(view.results.name, replay.original, [_plain_repeats(each) for each in repeats])
        else:
            _show(_cells(replay.original, {}), [_cells_of_repeats(each) for each in repeats])
            say("Of the replays medians, in brackets the 5th to the 95th percentile.")
            _say_each([each.verdict for each in repeats])
            _compare(repeats)


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


def _print_json(name: str, original: Course, replays: list[dict[str, object]]) -> None:
    print_json({"name": name, "original": asdict(original), "replays": replays})


def _plain(each: Replayed) -> dict[str, object]:
    return {
        **asdict(each.course),
        "bounds": {name: bounds._asdict() for name, bounds in each.bounds.items()},
        "verdict": each.verdict,
        "certain": each.is_certain,
    }


def _plain_repeats(each: Repeats) -> dict[str, object]:
    course = each.replays[0].course
    return {
        "scheduler": course.scheduler,
        "searcher": course.searcher,
        "slots": course.slots,
        "time_scale": course.time_scale,
        "spreads": {name: spread._asdict() for name, spread in each.spreads.items()},
        "same_best": each.same_best,
        "verdict": each.verdict,
        "certain": each.is_certain,
        "orders": [_plain(replayed) for replayed in each.replays],
    }


def _show(original: dict[str, str], columns: list[dict[str, str]]) -> None:
    """Print a table of the recorded experiment and the replays, with the rows of a replay."""
    heads = [
        "",
        "recorded",
        *(f"replay {number}" if len(columns) > 1 else "replay" for number, _ in enumerate(columns, 1)),
    ]
    rows = [[label, *(column.get(label, "") for column in (original, *columns))] for label in columns[0]]
    print_table(heads, [row for row in rows if row[0] != "time scale" or {*row[1:]} != {"1"}])


def _say_each(verdicts: list[str]) -> None:
    for number, verdict in enumerate(verdicts, 1):
        say(f"{f'replay {number}: ' if len(verdicts) > 1 else ''}{verdict}")


def _compare(repeats: list[Repeats]) -> None:
    """Say in how many orders each replay took less of the trials' time than the first one, with its bounds."""
    if any("trials_s" not in each.spreads for each in repeats):
        return
    first, *others = ([replayed.bounds["trials_s"] for replayed in each.replays] for each in repeats)
    for number, bounds in enumerate(others, 2):
        less = sum(all(map(lt, *pair)) for pair in zip(bounds, first, strict=True))
        more = sum(all(map(gt, *pair)) for pair in zip(bounds, first, strict=True))
        say(
            f"replay {number} took less of the trials' time than replay 1 in {less} of {len(first)} orders, and more in {more}"
        )


def _head(course: Course) -> dict[str, str]:
    return {
        "scheduler": printable(course.scheduler),
        "searcher": printable(course.searcher),
        "slots": str(course.slots),
        "time scale": f"{course.time_scale:g}",
    }


def _cells(course: Course, bounds: Mapping[str, Bounds]) -> dict[str, str]:
    """Return the cells of a column; what hangs on curves that were cut off has bounds, or a question mark."""
    best = "" if course.value is None else f"{short_value(course.value)} in {course.trial}"
    unsure = {
        "best": f"Pareto front: {len(course.front)}" if course.front else best,
        "found after": "" if course.found_s is None else duration(course.found_s),
    }
    figures = {
        label: _between(text, *bounds[name]) if name in bounds else _doubted(course, text(getattr(course, name)))
        for label, name, text in _FIGURES
    }
    return {
        **_head(course),
        "trials": str(course.trials),
        "failed": str(course.failed),
        "cut off": str(len(course.cut)),
        **figures,
        **{label: _doubted(course, text) for label, text in unsure.items()},
    }


def _cells_of_repeats(each: Repeats) -> dict[str, str]:
    """Return the cells of a column of medians and intervals; nothing where there are none."""
    cut = [len(replayed.course.cut) for replayed in each.replays]
    figures = [*_FIGURES, ("best", "value", short_value), ("found after", "found_s", duration)]
    return {
        **_head(each.replays[0].course),
        "orders": str(len(each.replays)),
        "cut off": _between(_whole, min(cut), statistics.median(cut), max(cut)),
        **{label: _between(text, *each.spreads[name]) for label, name, text in figures if name in each.spreads},
        "same best trial": f"in {each.same_best}" if "value" in each.spreads else "",
    }


def _between(text: Callable[[float], str], least: float, middle: float, most: float) -> str:
    low, high = text(least), text(most)
    return low if low == high else f"{text(middle)} ({low} to {high})"


def _doubted(course: Course, text: str) -> str:
    return f"{text} ?" if course.cut and text else text


def _whole(number: float) -> str:
    return f"{number:.0f}"


#: Rows of a table: the label, the figure, and how that is written.
_FIGURES: Final[list[tuple[str, str, Callable[[float], str]]]] = [
    ("stopped early", "stopped", _whole),
    ("reports", "reports", _whole),
    ("time of trials", "trials_s", duration),
    ("took", "took_s", duration),
]
