"""``mqtune archive``: moves experiments from a broker into folders on this machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mqtune.cli.output import broker_option, is_wanted, say, writing
from mqtune.cli.owners import check_owner, force_option, note
from mqtune.cli.place import Place, complete_experiment, find_place, server_of
from mqtune.cli.servers import client_of
from mqtune.cli.terms import past_time
from mqtune.core.errors import AccessDenied, BrokerUnavailable, ConfigurationError, MqtuneError, NameTaken
from mqtune.core.machine import SERVER_FOLDER, mqtune_home
from mqtune.core.text import printable
from mqtune.results.experiments import duration
from mqtune.results.labelling import is_in_folder_alone

if TYPE_CHECKING:
    from mqtune.client import ExperimentHandle, ExperimentState


def ended_option(help: str) -> Callable[[Callable[..., object]], Callable[..., object]]:  # noqa: A002 - as in click
    """Return the option --ended, whose value is in seconds since the epoch, or None."""
    return click.option(
        "--ended", metavar="TIME", callback=lambda _, __, given: None if given is None else past_time(given), help=help
    )


@click.command("archive")
@click.argument("name", required=False, shell_complete=complete_experiment)
@ended_option("Archive every experiment that finished this long ago, such as 30d, or before a date.")
@broker_option("The Redis server that has the experiment; it takes a driver's account.")
@click.option("--dry-run", is_flag=True, help="Only list what would be archived.")
@click.option(
    "-y", "--yes", is_flag=True, help="Don't ask for confirmation, and archive NAME even if it is unfinished."
)
@force_option
def command(
    name: str | None, broker: str | None, ended: float | None, *, dry_run: bool, yes: bool, force: bool
) -> None:
    """Move experiment NAME from its broker into its folder on this machine.

    The folder has its journal, dict checkpoints and code, so every command can still read it. Folder checkpoints stay
    in their store. `mqtune drive NAME --broker URL` restores it to a broker.

    --ended leaves out experiments that are unfinished, have a driver, belong to somebody else, or can't be archived.
    With --yes, a timer may run it.
    """
    if name is None and ended is None:
        raise click.UsageError(
            "give the NAME of an experiment, or --ended TIME for all experiments that ended long ago"
        )
    place = None if name is None else find_place(name, broker)
    if ended is not None:
        _archive_ended(broker, ended, place, dry_run=dry_run, yes=yes, force=force)
    elif place is not None:
        with end_first(place):
            archive_experiment(place, dry_run=dry_run, yes=yes, force=force)


@contextlib.contextmanager
def end_first(place: Place) -> Iterator[None]:
    """Add the command that ends the driver to the error that an experiment has a living one."""
    try:
        yield
    except NameTaken as error:
        raise NameTaken(f"{error}; end it first: mqtune end {place.name} --now") from None


def archive_experiment(place: Place, *, dry_run: bool = False, yes: bool, force: bool) -> None:
    """Move an experiment from its broker into its folder on this machine.

    Raises:
        ConfigurationError: the experiment is already there, or is unfinished and *yes* is False, or belongs to somebody
            else and *force* is False.
        NameTaken: it has a living driver.
        MqtuneError: the folder can't be written. Nothing was deleted.
    """
    if place.folder is not None and (place.folder / SERVER_FOLDER).is_dir():
        raise ConfigurationError(
            f"experiment {place.name!r} has its own server in {place.folder}: it is already on this machine alone"
        )
    if not place.broker:
        raise ConfigurationError("give the broker that has the experiment: --broker URL or $MQTUNE_BROKER")
    _check_may_end(place, place.broker, yes=yes, force=force)
    from mqtune.services.upkeep.archiving import archive  # noqa: PLC0415 - only this needs redis

    folder = place.folder if place.folder is not None else mqtune_home() / place.name
    if dry_run:
        say(f"would archive  {place.name}: from its broker, into {folder}")
        return
    note(place.broker, "archive", place.name, f"into {folder}")
    with writing(folder, "; nothing was deleted"):
        results = archive(place.name, place.broker, folder)
    say(f"{place.name} is archived: its {len(results)} trials are in {folder}, and no longer on its broker")
    say(f"to continue it: mqtune drive {place.name} --broker URL")


def copy_there(place: Place, folder: Path) -> None:
    """Copy an experiment from its server into a new folder.

    Raises:
        ConfigurationError: the experiment is only in a folder, or the new folder is not empty.
        NameTaken: it has a living driver.
        MqtuneError: the folder can't be written.
    """
    if place.folder is not None and is_in_folder_alone(place.folder):
        raise ConfigurationError(f"experiment {place.name!r} is only in {place.folder}, on no server: copy that folder")
    from mqtune.services.upkeep.archiving import copy_out  # noqa: PLC0415 - as above

    with writing(folder):
        if folder.exists() and any(folder.iterdir()):
            raise ConfigurationError(f"{folder} is not empty; give a new folder, or an empty one")
        with server_of(place) as url:
            results = copy_out(place.name, url, folder)
    say(f"{folder}: {len(results)} trials of {place.name}; to read them: mqtune show {folder}")


def _check_may_end(place: Place, broker: str, *, yes: bool, force: bool) -> None:
    with client_of(broker) as client:
        state = client.experiment(place.name).state()
    if state is not None:
        check_owner(broker, f"experiment {place.name!r}", state.owner, doing="archive", force=force)
    if state is not None and state.outcome != "finished" and not state.is_driven and not yes:
        raise ConfigurationError(
            f"experiment {place.name!r} is unfinished, and archiving would end its running trials; continue it: mqtune "
            f"drive {place.name}; or archive it nevertheless: --yes"
        )


def _archive_ended(
    broker: str | None, before: float, place: Place | None, *, dry_run: bool, yes: bool, force: bool
) -> None:
    """Archive the experiments of a broker that finished before a time. *place* limits it to one.

    Raises:
        click.exceptions.Exit: an experiment could not be read or archived. The reason was printed.
    """
    only = None if place is None else place.name
    ages, is_complete = find_ended(broker, before, only=only, doing="archive", force=force)
    lines = [f"{printable(name)}: it ended {duration(age_s)} ago" for name, age_s in ages.items()]
    if not ages:
        say("no experiment ended that long ago")
    elif is_wanted(lines, verb="archive", dry_run=dry_run, yes=yes):
        for name in ages:
            is_complete &= is_removed(
                name, broker, before, lambda place: archive_experiment(place, yes=False, force=force)
            )
    if not is_complete:
        raise click.exceptions.Exit(1)


def find_ended(
    broker: str | None, before: float, *, only: str | None = None, doing: str, force: bool
) -> tuple[dict[str, float], bool]:
    """Find the experiments of a broker that finished before a time.

    Experiments that are unfinished, driven, unreadable or somebody else's are left out, and the last two are reported
    on standard error.

    Args:
        before: the time, in seconds since the epoch.
        only: the name of the only experiment to consider, or None for all.
        doing: the action, for messages.
        force: whether to include other people's experiments.

    Returns:
        By name, how many seconds ago each finished; and whether all experiments could be read.
    """
    if not broker:
        raise click.UsageError("--ended needs the broker that has the experiments: --broker URL or $MQTUNE_BROKER")
    ages: dict[str, float] = {}
    is_complete = True
    with client_of(broker) as client:
        for experiment in client.experiments():
            name = experiment.name
            if only not in (None, name):
                continue
            try:
                if (state := _ended(experiment, before)) is not None:
                    # With force, the action itself checks the owner and records it.
                    if not force:
                        check_owner(broker, name, state.owner, doing=doing, force=False)
                    ages[name] = state.age_s
            except (BrokerUnavailable, AccessDenied):
                raise
            except ConfigurationError as error:
                click.echo(f"mqtune: kept: {printable(str(error))}", err=True)
            except MqtuneError as error:
                is_complete = False
                click.echo(f"mqtune: kept: {printable(name)} can't be read: {printable(str(error))}", err=True)
    return ages, is_complete


def _ended(experiment: ExperimentHandle, before: float) -> ExperimentState | None:
    """Return an experiment's state if it finished before a time, or None."""
    state = experiment.state()
    has_ended = state is not None and state.outcome == "finished" and not state.is_driven
    return state if state is not None and has_ended and time.time() - state.age_s <= before else None


def is_removed(name: str, broker: str | None, before: float, remove: Callable[[Place], object]) -> bool:
    """Call *remove* for an experiment if it is still ended. Return whether it was removed.

    If it was not, the reason is printed to standard error.
    """
    try:
        with client_of(broker or "") as client:
            is_still_ended = client.has_begun(name) and _ended(client.experiment(name), before) is not None
        if is_still_ended:
            remove(Place(name, None, broker))
            return True
        click.echo(f"mqtune: kept: {printable(name)} has continued or is gone", err=True)
    except BrokerUnavailable:
        raise
    except (MqtuneError, OSError) as error:
        click.echo(f"mqtune: kept: {printable(name)}: {printable(str(error))}", err=True)
    return False
