"""Removes long finished experiments from a broker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from mqtune.cli.archive import archive_there
from mqtune.cli.output import is_wanted, say
from mqtune.cli.owners import check_owner
from mqtune.cli.place import Place
from mqtune.core.errors import AccessDenied, BrokerUnavailable, ConfigurationError, MqtuneError
from mqtune.core.text import printable
from mqtune.results.experiments import duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqtune.client import ExperimentHandle, ExperimentState


def delete_ended(
    broker: str | None,
    before: float,
    delete: Callable[[Place], object],
    *,
    archives: bool,
    dry_run: bool,
    yes: bool,
    force: bool,
) -> None:
    """Remove the experiments from a broker that finished before a time.

    Unfinished, driven, unreadable and other people's experiments are kept, and so are folders here.

    Args:
        broker: the server.
        before: seconds since the epoch.
        delete: removes one from the server, with its checkpoints.
        archives: whether to archive each here instead.
        dry_run: whether nothing is removed.
        yes: whether to skip the question.
        force: whether to include others' experiments.
    """
    if not broker:
        raise click.UsageError("--ended is for the experiments of a broker: --broker URL or $MQTUNE_BROKER")
    from mqtune.client import Client  # noqa: PLC0415 - only this needs redis

    failed = False
    with Client(broker) as there:
        found = {each.name: each for each in there.experiments()}
        ended: dict[str, ExperimentState] = {}
        for name, experiment in found.items():
            try:
                if (state := _ended(experiment, before)) is not None:
                    if not force:
                        check_owner(broker, name, state.owner, doing="delete", force=False)
                    ended[name] = state
            except (BrokerUnavailable, AccessDenied):
                raise
            except ConfigurationError as error:
                click.echo(f"mqtune: kept: {printable(str(error))}", err=True)
            except MqtuneError as error:
                failed = True
                click.echo(f"mqtune: kept: {printable(name)} can't be read: {printable(str(error))}", err=True)
        if not ended:
            say("no experiment ended so long ago")
        elif is_wanted([_line(state, archives=archives) for state in ended.values()], dry_run=dry_run, yes=yes):
            for name in ended:
                failed |= not _remove(found[name], broker, before, delete, archives=archives, force=force)
    if failed:
        raise click.exceptions.Exit(1)


def _ended(experiment: ExperimentHandle, before: float) -> ExperimentState | None:
    """Return an experiment's state if it finished before a time, or None."""
    state = experiment.state()
    has_ended = state is not None and state.outcome == "finished" and not state.is_driven
    return state if state is not None and has_ended and time.time() - state.age_s <= before else None


def _line(state: ExperimentState, *, archives: bool) -> str:
    where = "from the broker, into its folder here" if archives else "from the broker, with its checkpoints"
    return f"{printable(state.name)} {where}: it ended {duration(state.age_s)} ago"


def _remove(
    experiment: ExperimentHandle,
    broker: str,
    before: float,
    delete: Callable[[Place], object],
    *,
    archives: bool,
    force: bool,
) -> bool:
    """Remove an experiment. Return False on an error."""
    place = Place(experiment.name, None, broker)
    try:
        if _ended(experiment, before) is None:
            say(f"kept: {printable(place.name)} has gone on, or is gone, since it was found")
        elif archives:
            archive_there(place, yes=False, force=force)
        else:
            delete(place)
    except BrokerUnavailable:
        raise
    except (MqtuneError, OSError) as error:
        click.echo(f"mqtune: kept: {printable(place.name)}: {printable(str(error))}", err=True)
        return False
    return True
