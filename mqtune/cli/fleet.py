"""``mqtune workers``, ``queues`` and ``top``: what there is to run trials on, what waits for it, and what runs where."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from mqtune.cli.output import broker_option, json_option, print_json, print_table
from mqtune.cli.place import Place, opened
from mqtune.core.errors import AccessDenied
from mqtune.core.experiment import Experiment
from mqtune.core.text import printable
from mqtune.core.trial import Attempt, Trial
from mqtune.results.display import short_value
from mqtune.results.experiments import duration

if TYPE_CHECKING:
    from mqtune.core.events import WorkerInfo
    from mqtune.journal.fleet import Fleet

_broker = broker_option("The Redis server that the workers use.", required=True)


@contextlib.contextmanager
def open_fleet(broker: str) -> Iterator[Fleet]:
    """Yield the register of a broker's workers."""
    from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect  # noqa: PLC0415 - only this needs redis
    from mqtune.journal.fleet import Fleet  # noqa: PLC0415

    with contextlib.closing(connect(broker, role="reader")) as client:
        yield Fleet(client, patience_s=CONNECT_TIMEOUT_S)


def busy_slots(info: WorkerInfo) -> int:
    """Return how many slots of a worker have an attempt."""
    return sum(count for count in info.busy.values() if type(count) is int)


# Workers.


@click.command("workers")
@_broker
@json_option
def _workers(broker: str, *, as_json: bool) -> None:
    """List the workers that are connected, with their slots."""
    with open_fleet(broker) as fleet:
        found = fleet.workers()
    if as_json:
        print_json([{**dataclasses.asdict(info), "busy": busy_slots(info)} for info in found])
    elif found:
        print_table(("name", "busy", "slots", "gpus", "up", "queue", "note"), map(_worker_row, found))
    else:
        click.echo("no worker is connected; start one: mqtune worker", err=True)


def _worker_row(info: WorkerInfo) -> list[str]:
    up = duration(max(0.0, time.time() - info.joined_at))
    gpus = ",".join(info.devices) if info.gpus else ""
    return [*map(printable, (info.name, str(busy_slots(info)), str(info.slots), gpus, up, info.queue, info.note))]


# Queues.


class Queue(NamedTuple):
    """A queue of workers: their slots, and the messages that wait; None where the account may not count them."""

    queue: str
    workers: int
    slots: int
    busy: int
    waiting: int | None


@click.command("queues")
@_broker
@json_option
def _queues(broker: str, *, as_json: bool) -> None:
    """List the queues that the connected workers serve, with what waits in them.

    To count what waits takes a driver's account.
    """
    with open_fleet(broker) as fleet:
        found = queues_of(fleet)
    if as_json:
        print_json([queue._asdict() for queue in found])
    elif found:
        rows = ([printable("?" if cell is None else str(cell)) for cell in queue] for queue in found)
        print_table(Queue._fields, rows)
    else:
        click.echo("no worker is connected; start one: mqtune worker", err=True)


def queues_of(fleet: Fleet) -> list[Queue]:
    """Return the queues that the connected workers serve."""
    groups: dict[str, list[WorkerInfo]] = {}
    for info in fleet.workers():
        groups.setdefault(info.queue, []).append(info)
    return [
        Queue(name, len(group), sum(each.slots for each in group), sum(map(busy_slots, group)), _waiting(fleet, name))
        for name, group in groups.items()
    ]


def _waiting(fleet: Fleet, queue: str) -> int | None:
    try:
        return fleet.waiting(queue)
    except AccessDenied:
        return None


# What runs where.


class Run(NamedTuple):
    """An attempt that runs, and where."""

    worker: str
    devices: str
    experiment: str
    trial: str
    since: float
    reports: int
    best: float | None


@click.command("top")
@_broker
@json_option
def _top(broker: str, *, as_json: bool) -> None:
    """Show the slots that are busy, and which trial runs where."""
    with open_fleet(broker) as fleet:
        workers = fleet.workers()
    runs = sorted(runs_on(broker))
    if as_json:
        print_json([run._asdict() for run in runs])
        return
    slots, busy = sum(info.slots for info in workers), sum(map(busy_slots, workers))
    gpus = sum(len(info.devices) for info in workers if info.gpus)
    count = f"{len(workers)} {'worker' if len(workers) == 1 else 'workers'}"
    click.echo(f"{count} · {busy} of {slots} slots busy{f' · {gpus} GPUs' if gpus else ''}")
    if runs:
        print_table(("worker", "devices", "experiment", "trial", "runs for", "reports", "best"), map(_run_row, runs))


def runs_on(broker: str) -> Iterator[Run]:
    """Yield what runs of all experiments on a broker that have not ended."""
    from mqtune.client import Client  # noqa: PLC0415 - as above

    with Client(broker) as there:
        states = [state for each in there.experiments() if (state := each.state()) is not None and not state.outcome]
    for state in states:
        with opened(Place(state.name, None, broker)) as view:
            yield from runs_of(view.results.experiment)


def runs_of(experiment: Experiment) -> Iterator[Run]:
    """Yield the attempts of an experiment that run."""
    for trial in experiment.trials.values():
        if trial.attempts and _is_running(trial.attempts[-1]):
            yield _run_of(experiment, trial, trial.attempts[-1])


def _is_running(attempt: Attempt) -> bool:
    return attempt.started_at is not None and attempt.end is None


def _run_of(experiment: Experiment, trial: Trial, attempt: Attempt) -> Run:
    best = trial.best_value if trial.has_metric else None
    devices = ",".join(attempt.devices)
    return Run(attempt.worker, devices, experiment.name, trial.id, attempt.started_at or 0.0, attempt.reports, best)


def _run_row(run: Run) -> list[str]:
    took = duration(max(0.0, time.time() - run.since))
    best = "" if run.best is None else short_value(run.best)
    return [*map(printable, (run.worker, run.devices, run.experiment, run.trial, took, str(run.reports), best))]


COMMANDS: Final = {"workers": _workers, "queues": _queues, "top": _top}
