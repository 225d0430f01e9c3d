"""Moves or copies undriven experiments into folders."""

from __future__ import annotations

from pathlib import Path

from mqtune.cli.output import say
from mqtune.cli.owners import check_owner, note
from mqtune.cli.place import Place, server_of
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.machine import SERVER_FOLDER, mqtune_home
from mqtune.results.labelling import is_in_folder_alone


def archive_there(place: Place, *, yes: bool, force: bool) -> None:
    """Move an experiment from its broker into its folder on this machine.

    Raises:
        ConfigurationError: it is already there, unfinished without *yes*, or another's without *force*.
        NameTaken: it has a living driver.
        MqtuneError: the folder can't be written; nothing was deleted.
    """
    if place.folder is not None and (place.folder / SERVER_FOLDER).is_dir():
        raise ConfigurationError(
            f"all of experiment {place.name!r} is in {place.folder} already: it has a server of its own there"
        )
    if not place.broker:
        raise ConfigurationError("give the broker that has it: --broker URL or $MQTUNE_BROKER")
    _check_that_it_may_end(place, place.broker, yes=yes, force=force)
    from mqtune.services.upkeep.archiving import archive  # noqa: PLC0415 - only this needs redis

    folder = place.folder if place.folder is not None else mqtune_home() / place.name
    note(place.broker, "archive", place.name, f"into {folder}")
    try:
        results = archive(place.name, place.broker, folder)
    except OSError as error:
        raise MqtuneError(f"{folder} can't be written: {error}; nothing was deleted") from error
    say(f"{place.name} is archived: {len(results)} trials are in {folder}, and none on its broker")
    say(f"to go on with it: mqtune drive {place.name} --broker URL")


def copy_there(place: Place, folder: Path) -> None:
    """Copy an experiment from its server into a new folder.

    Raises:
        ConfigurationError: it is only in a folder, or the new folder is not empty.
        NameTaken: it has a living driver.
        MqtuneError: the folder can't be written.
    """
    if place.folder is not None and is_in_folder_alone(place.folder):
        raise ConfigurationError(f"all of experiment {place.name!r} is in {place.folder}: copy that folder")
    from mqtune.services.upkeep.archiving import copy_out  # noqa: PLC0415 - as above

    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigurationError(f"{folder} has something in it; give a new folder, or an empty one")
        with server_of(place) as url:
            results = copy_out(place.name, url, folder)
    except OSError as error:
        raise MqtuneError(f"{folder} can't be written: {error}") from error
    say(f"{folder}: {len(results)} trials of {place.name}; to read them: mqtune show {folder}")


def _check_that_it_may_end(place: Place, broker: str, *, yes: bool, force: bool) -> None:
    from mqtune.client import Client  # noqa: PLC0415 - as above

    with Client(broker) as there:
        state = there.experiment(place.name).state()
    if state is not None:
        check_owner(broker, f"experiment {place.name!r}", state.owner, doing="archive", force=force)
    if state is not None and state.outcome != "finished" and not state.is_driven and not yes:
        raise ConfigurationError(
            f"experiment {place.name!r} has not finished, and trials that run end when it is archived: mqtune drive {place.name}, "
            "or archive it with --yes"
        )
