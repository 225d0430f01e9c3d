"""``mqtune events``: lists people's requests and changes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import click

from mqtune.cli.output import broker_option, json_option, print_json, print_table, say
from mqtune.cli.place import complete_experiment, find_place, opened
from mqtune.cli.servers import redis_at
from mqtune.core.entries import readable_events
from mqtune.core.events import DriverStarted, Event, ExperimentCreated, ExperimentEnded, RequestAnswered, Requested
from mqtune.core.text import printable
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile

_SHOWN: Final = 100


class ExperimentEvent(NamedTuple):
    """An action of a person or driver on an experiment.

    Attributes:
        at: seconds since the epoch, by the server's clock.
        by: the person or driver. It is empty for "close".
        action: a request's action, or "create", "drive" (a driver started) or "close" (the experiment ended).
        trial: the trial's id, or empty if the action is on the experiment.
        arguments: the arguments that are not empty.
        done: whether the driver has carried it out. None if it has not answered.
        reason: the reason in the driver's answer, or the experiment's outcome.
    """

    at: float
    by: str
    action: str
    trial: str
    arguments: dict[str, object]
    done: bool | None
    reason: str


@click.command("events")
@click.argument("name", required=False, shell_complete=complete_experiment)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=_SHOWN,
    show_default=True,
    help="Show at most this many of the newest, the newest last.",
)
@broker_option("The Redis server that has the experiment, or the audit stream.")
@json_option
def command(name: str | None, limit: int, broker: str | None, *, as_json: bool) -> None:
    """List the requests and changes that people made, to experiment NAME or on the whole broker.

    For an experiment, these are its creation, its drivers, and all requests with their answers. Without NAME, they are
    the broker's audit stream: drained workers, disabled devices, quotas, caps, submitted scripts, deleted and archived
    experiments, accounts, and each --force. The audit stream needs an account for all experiments.
    """
    if name is not None:
        with (
            opened(find_place(name, broker)) as view,
            contextlib.closing(JournalFile(view.results.folder / JOURNAL_FILE)) as journal,
        ):
            events = experiment_events(readable_events(journal.read()))[-limit:]
        if as_json:
            print_json([event._asdict() for event in events])
        else:
            print_table(("when", "who", "what", "answer"), map(_event_cells, events))
        return
    if not broker:
        raise click.UsageError("give the NAME of an experiment, or --broker URL or $MQTUNE_BROKER for its audit stream")
    from mqtune.services.ownership.audit import newest_entries  # noqa: PLC0415

    with redis_at(broker) as client:
        entries = newest_entries(client, limit)
    if as_json:
        print_json([entry._asdict() for entry in entries])
    elif not entries:
        say("the audit stream is empty")
    else:
        cells = ((_when(entry.at), entry.by, entry.action, entry.target, entry.detail) for entry in entries)
        print_table(("when", "who", "what", "of", "more"), (map(printable, row) for row in cells))


def experiment_events(events: Iterable[Event]) -> list[ExperimentEvent]:
    """Return the actions in an experiment's journal in order. Requests have their answers."""
    answers: dict[str, RequestAnswered] = {}
    others: list[Event] = []
    for event in events:
        if isinstance(event, RequestAnswered):
            answers[event.id] = event
        else:
            others.append(event)
    return list(_actions(others, answers))


def _actions(events: Iterable[Event], answers: dict[str, RequestAnswered]) -> Iterator[ExperimentEvent]:
    for event in events:
        match event:
            case ExperimentCreated():
                yield ExperimentEvent(event.at, str(event.owner), "create", "", {}, True, "")
            case DriverStarted():
                yield ExperimentEvent(
                    event.at, event.driver, "drive", "", event.changes, True, f"mqtune {event.version}"
                )
            case Requested():
                answer = answers.get(event.id)
                done, reason = (None, "") if answer is None else (answer.done, answer.reason)
                given = {name: value for name, value in event.arguments.items() if value not in ("", None, [], {})}
                yield ExperimentEvent(event.at, event.by, event.action, event.trial, given, done, reason)
            case ExperimentEnded():
                yield ExperimentEvent(
                    event.at, "", "close", "", {}, True, f"{event.outcome}: {event.reason}".strip(": ")
                )
            case _:
                pass


def _event_cells(event: ExperimentEvent) -> tuple[str, ...]:
    given = " ".join(f"{name}={json.dumps(value, default=str)}" for name, value in event.arguments.items())
    request = " ".join(part for part in (event.action, event.trial, given) if part)
    answers = {None: "not answered yet", True: "done" if event.by else "", False: "refused"}
    answer = ": ".join(part for part in (answers[event.done], event.reason) if part)
    return _when(event.at), printable(event.by), printable(request), printable(answer)


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
