"""``mqtune fleet``: shows workers, queues, and running trials."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from click.core import ParameterSource

from mqtune.cli.machine_use import described_use, is_running, short_use_text, use_in, uses_on
from mqtune.cli.output import broker_option, json_option, print_json, print_table
from mqtune.cli.owners import has_others, is_of, owner_option
from mqtune.cli.place import Place, opened
from mqtune.cli.servers import PATIENCE_S, client_of, redis_at
from mqtune.cli.verbs import SECTIONS, Verbs
from mqtune.core.errors import AccessDenied, BrokerUnavailable, MqtuneError
from mqtune.core.experiment import Experiment
from mqtune.core.owner import NOBODY, Owner
from mqtune.core.resources import version_in
from mqtune.core.tasks import task_name
from mqtune.core.text import counted, printable
from mqtune.core.trial import Attempt, Trial
from mqtune.core.usage import LiveUse
from mqtune.core.version import UPGRADE, __version__, meets, minor
from mqtune.core.worker_info import busy_as
from mqtune.results.display import short_value
from mqtune.results.experiments import duration
from mqtune.services.shares.divider import Table
from mqtune.services.shares.overview import ShareSummary, demands_on, shares_on

if TYPE_CHECKING:
    from mqtune.client import ExperimentHandle
    from mqtune.core.impairment import Impairment
    from mqtune.core.worker_info import WorkerInfo
    from mqtune.journal.exchange.fleet import Fleet

_SHOWN: Final = 4


@contextlib.contextmanager
def open_fleet(broker: str) -> Iterator[Fleet]:
    """Connect to a broker, and yield the register of its workers."""
    from mqtune.journal.exchange.fleet import Fleet  # noqa: PLC0415

    with redis_at(broker) as client:
        yield Fleet(client, patience_s=PATIENCE_S)


def described_worker(info: WorkerInfo) -> dict[str, object]:
    """Return a worker for JSON."""
    impairments = [impairment._asdict() for impairment in info.impairments]
    return {**dataclasses.asdict(info), "busy": info.busy_slots, "impairments": impairments}


def impairment_text(impairment: Impairment) -> str:
    """Return an impairment in words: its reason, how long it has lasted, and when it ends."""
    now = time.time()
    retry = (
        f"; the worker tries an attempt in {duration(impairment.retry_at - now)}" if impairment.retry_at > now else ""
    )
    return f"{impairment.reason}; for {duration(max(0.0, now - impairment.since))}, until {impairment.ends}{retry}"


_WORKER_HEADS: Final = ("name", "busy", "slots", "gpus", "up", "queue", "version", "drivers")
_SECTIONS: Final = ("workers", "queues", "runs")


#: The modules of the group's verbs.
_MODULES: Final = {
    **dict.fromkeys(("drain", "undrain"), "mqtune.cli.drain"),
    "quota": "mqtune.cli.quota",
    "acl": "mqtune.cli.acl",
    "exporter": "mqtune.cli.exporter",
}
_VERBS: Final = {verb: text for verb, text in SECTIONS["Fleet"].items() if verb.startswith("fleet ")}


def _find(verb: str) -> click.Command:
    nested: click.Command = import_module(_MODULES[verb]).COMMANDS[verb]
    return nested


@click.group(
    "fleet",
    cls=Verbs,
    find=_find,
    sections={"Verbs": {verb.removeprefix("fleet "): text for verb, text in _VERBS.items()}},
    invoke_without_command=True,
    subcommand_metavar="[VERB …]",
)
@broker_option("The Redis server that the workers use.")
@click.option(
    "--only", "sections", multiple=True, type=click.Choice(_SECTIONS), help="Show only this section; may be repeated."
)
@owner_option
@json_option
@click.pass_context
def command(
    context: click.Context, broker: str | None, sections: tuple[str, ...], owner: str, *, as_json: bool
) -> None:
    """Show workers, queues, running trials, and experiments that wait for a slot; or run a VERB.

    Running trials are shown with their use of the machine, and with their owners if any of them is somebody else.
    Counting a queue's messages needs a driver's or monitor's account.
    """
    if context.invoked_subcommand is not None:
        _refuse_early_options(context, context.invoked_subcommand)
        return
    if not broker:
        raise click.MissingParameter(ctx=context, param=_parameter(context, "broker"))
    _show(broker, sections, owner, as_json=as_json)


def _parameter(context: click.Context, name: str) -> click.Parameter:
    return next(parameter for parameter in context.command.params if parameter.name == name)


def _refuse_early_options(context: click.Context, verb: str) -> None:
    """Refuse options in front of a verb, where they have no effect."""
    for name in context.params:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = _parameter(context, name).opts[0]
            raise click.UsageError(f"options follow the verb: mqtune fleet {verb} … {option}")


def _show(broker: str, sections: tuple[str, ...], owner: str, *, as_json: bool) -> None:
    asked, sections = sections, sections or _SECTIONS
    with open_fleet(broker) as fleet:
        connected = fleet.workers()
        queues = queues_of(fleet, connected) if "queues" in sections else []
    workers = [info for info in connected if is_of(info.owner, owner)]
    runs = _runs(broker, is_needed=bool(asked)) if "runs" in sections else []
    if runs is not None:
        runs = [run for run in runs if is_of(run.owner, owner)]
    if as_json:
        by_section = {
            "workers": [described_worker(info) for info in workers],
            "queues": [queue._asdict() for queue in queues],
            "runs": None if runs is None else [run.described() for run in runs],
        }
        print_json({section: by_section[section] for section in _SECTIONS if section in sections})
        return
    _print_count(connected)
    if not connected:
        click.echo("no worker is connected; start one: mqtune worker", err=True)
    if "workers" in sections:
        is_mixed = len({info.version for info in connected}) > 1 or not all(meets(info.version) for info in connected)
        is_shown = {"version": is_mixed, "drivers": any(info.drivers for info in workers)}
        heads = [head for head in _WORKER_HEADS if is_shown.get(head, True)]
        _print_section(heads, ([_worker_cells(info)[head] for head in heads] for info in workers))
        for line in unmet_versions(connected, demands_on(broker)) if is_mixed else ():
            click.echo(printable(line))
        for info in workers:
            for impairment in info.impairments:
                click.echo(printable(f"{info.name}: {impairment_text(impairment)}"))
    _print_section(Queue._fields, map(_queue_row, queues))
    shown = _RUN_HEADS if has_others(run.owner for run in runs or ()) else _RUN_HEADS[:-1]
    _print_section(shown, (_run_row(run)[: len(shown)] for run in runs or ()))
    if "runs" in sections and runs is not None and not owner:
        waiting = [share for share in shares_on(broker, connected).shares or () if share.waiting_s]
        names = {busy_as(name): name for name in experiments_of(broker)} if waiting else {}
        _print_section(_WAITING_HEADS, (_waiting_row(share, names) for share in waiting))


def _runs(broker: str, *, is_needed: bool) -> list[Run] | None:
    """Return the running trials. If the account may not read them, print that and return None."""
    try:
        return with_use(broker, sorted(runs_on(broker)))
    except AccessDenied as error:
        if is_needed:
            raise
        click.echo(f"mqtune: running trials are not shown: {printable(str(error))}", err=True)
    return None


def _print_section(heads: Sequence[str], rows: Iterable[list[str]]) -> None:
    """Print a table after an empty line. Print nothing if it has no rows."""
    if cells := list(rows):
        click.echo()
        print_table(heads, cells)


def _print_count(workers: Sequence[WorkerInfo]) -> None:
    slots, busy = sum(info.slots for info in workers), sum(info.busy_slots for info in workers)
    gpus = sum(len(info.gpu_names) for info in workers)
    counts = [
        counted(len(workers), "worker"),
        f"{busy} of {slots} slots busy",
        *([counted(gpus, "GPU")] if gpus else []),
    ]
    click.echo(" · ".join(counts))


def unmet_versions(workers: Iterable[WorkerInfo], table: Table | None) -> Iterator[str]:
    """Yield a line for each minor version of workers that no driver has. Their slots stay idle.

    The drivers' versions are in the names of their queues. Without drivers, this process's version counts.
    """
    of_drivers = {
        version_in(queue) for demand in (table.demands if table is not None else ()) for queue in demand.queues
    }
    of_drivers = of_drivers or {minor(__version__)}
    slots: Counter[str] = Counter()
    for info in workers:
        slots[minor(info.version)] += info.slots
    for version in sorted(slots.keys() - of_drivers):
        if slots[version]:
            yield (
                f"{counted(slots[version], 'slot')} of mqtune {version} fit no driver: drivers are of "
                f"{', '.join(sorted(of_drivers))}; {UPGRADE}"
            )


def _worker_cells(info: WorkerInfo) -> dict[str, str]:
    """Return a worker's cells by column head."""
    up = duration(max(0.0, time.time() - info.joined_at))
    gpus = ",".join(info.gpu_names) + (f" ({info.free_gpu_memory_gb:g} GB free)" if info.shared_gpus else "")
    drivers = f"{info.driving} of {info.drivers}" if info.drivers else ""
    cells = info.name, str(info.busy_slots), str(info.slots), gpus, up, info.queue, info.version, drivers
    return dict(zip(_WORKER_HEADS, map(printable, cells), strict=True))


class Queue(NamedTuple):
    """A queue of workers.

    Attributes:
        busy: the number of its busy slots.
        waiting: the number of its messages, or None if the account may not count them.
    """

    queue: str
    workers: int
    slots: int
    busy: int
    waiting: int | None


def _queue_row(queue: Queue) -> list[str]:
    return [printable("?" if cell is None else str(cell)) for cell in queue]


def queues_of(fleet: Fleet, workers: Iterable[WorkerInfo]) -> list[Queue]:
    """Return the queues that these workers serve. Workers with driver slots alone serve none."""
    groups: dict[str, list[WorkerInfo]] = {}
    for info in workers:
        if info.slots or not info.drivers:
            groups.setdefault(info.queue, []).append(info)
    return [
        Queue(
            name,
            len(group),
            sum(info.slots for info in group),
            sum(info.busy_slots for info in group),
            _waiting(fleet, name),
        )
        for name, group in groups.items()
    ]


def _waiting(fleet: Fleet, queue: str) -> int | None:
    try:
        return fleet.waiting(queue)
    except AccessDenied:
        return None


def experiments_of(broker: str) -> list[str]:
    """Return the names of a broker's experiments, or [] if the account may not read them."""
    from mqtune.journal.redis import experiments_on  # noqa: PLC0415

    with contextlib.suppress(AccessDenied), redis_at(broker) as client:
        return experiments_on(client, patience_s=PATIENCE_S)
    return []


_WAITING_HEADS: Final = ("experiment", "no slot for", "priority", "share", "wants")
_RUN_HEADS: Final = ("worker", "devices", "experiment", "trial", "runs for", "reports", "best", "use", "owner")


class Run(NamedTuple):
    """A running attempt, or one of its further tasks.

    Attributes:
        trial: the trial's id, or the name of the task.
        since: when it started, in seconds since the epoch.
        use: how it uses the machine now, or None if unknown.
    """

    worker: str
    devices: str
    experiment: str
    trial: str
    since: float
    reports: int
    best: float | None
    attempt: int
    owner: Owner = NOBODY
    use: LiveUse | None = None

    def described(self) -> dict[str, object]:
        return {**self._asdict(), "owner": self.owner._asdict(), "use": described_use(self.use)}


def _waiting_row(share: ShareSummary, names: Mapping[str, str]) -> list[str]:
    name = names.get(share.token, "another experiment")
    cells = (name, duration(share.waiting_s), share.priority, f"{share.share:g}", str(share.wanted))
    return [*map(printable, cells)]


def runs_on(broker: str) -> Iterator[Run]:
    """Yield the running attempts on a broker. Report unreadable experiments on standard error."""
    with client_of(broker) as client:
        for handle in client.experiments():
            try:
                runs = _runs_in(handle, broker)
            except (BrokerUnavailable, AccessDenied):
                raise
            except MqtuneError as error:
                # Another program or version may have written it. Other experiments are still shown.
                click.echo(f"mqtune: {printable(handle.name)} can't be read: {printable(str(error))}", err=True)
            else:
                yield from runs


def _runs_in(experiment: ExperimentHandle, broker: str) -> list[Run]:
    state = experiment.state()
    if state is None or state.outcome:
        return []
    with opened(Place(state.name, None, broker)) as view:
        return list(runs_of(view.results.experiment))


def with_use(url: str | None, runs: Sequence[Run]) -> list[Run]:
    """Return the attempts with their current use of machines filled in."""
    uses = uses_on(url, [(run.experiment, run.worker) for run in runs])
    return [run._replace(use=use_in(uses, run.experiment, run.worker, run.trial, run.attempt)) for run in runs]


def runs_of(experiment: Experiment) -> Iterator[Run]:
    """Yield an experiment's running attempts, each with its further tasks."""
    for trial in experiment.trials.values():
        if trial.attempts and is_running(trial.attempts[-1]):
            attempt = trial.attempts[-1]
            yield (run := _run_of(experiment, trial, attempt))
            for task in attempt.further_tasks:
                name, devices = task_name(trial.id, task.number), ",".join(task.devices)
                yield run._replace(worker=task.worker, devices=devices, trial=name)


def _run_of(experiment: Experiment, trial: Trial, attempt: Attempt) -> Run:
    best = trial.best_value if trial.has_metric else None
    devices = ",".join(attempt.devices)
    since, number = attempt.started_at or 0.0, attempt.number
    reports, owner = attempt.reports, experiment.owner
    return Run(attempt.worker, devices, experiment.name, trial.id, since, reports, best, number, owner)


def _run_row(run: Run) -> list[str]:
    took = duration(max(0.0, time.time() - run.since))
    best = "" if run.best is None else short_value(run.best)
    use, owner = short_use_text(run.use), str(run.owner)
    cells = (run.worker, run.devices, run.experiment, run.trial, took, str(run.reports), best, use, owner)
    return [*map(printable, cells)]
