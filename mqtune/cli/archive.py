"""``mqtune archive``: moves an experiment that nobody drives from its broker into its folder."""

from __future__ import annotations

import click

from mqtune.cli.output import broker_option, say
from mqtune.cli.place import Place, find_place, name_argument
from mqtune.core.errors import ConfigurationError, MqtuneError, NameTaken
from mqtune.core.machine import SERVER_FOLDER, mqtune_home


@click.command("archive")
@name_argument
@broker_option("The Redis server that has the experiment; it takes a driver's account.")
@click.option("-y", "--yes", is_flag=True, help="Archive it also if it has not finished; trials that run end.")
def command(name: str, broker: str | None, *, yes: bool) -> None:
    """Move an experiment from its broker into its folder on this machine, where it can be read as before.

    The folder gets its journal, checkpoints that are dicts, and code that its driver has brought; then its keys and messages are deleted
    from Redis. Checkpoints that are folders stay in their store. One that a living driver has is refused. `mqtune resume NAME --broker URL`
    puts it back on a broker.
    """
    place = find_place(name, broker)
    if place.folder is not None and (place.folder / SERVER_FOLDER).is_dir():
        raise ConfigurationError(
            f"all of experiment {place.name!r} is in {place.folder} already: it has a server of its own there"
        )
    if not place.broker:
        raise ConfigurationError("give the broker that has it: --broker URL or $MQTUNE_BROKER")
    _check_that_it_may_end(place, place.broker, yes=yes)
    from mqtune.driver.archiving import archive  # noqa: PLC0415 - only this needs redis

    folder = place.folder if place.folder is not None else mqtune_home() / place.name
    try:
        results = archive(place.name, place.broker, folder)
    except NameTaken as error:
        raise NameTaken(f"{error}; end it first: mqtune end {place.name} --now") from None
    except OSError as error:
        raise MqtuneError(f"{folder} can't be written: {error}; nothing was deleted") from error
    say(f"{place.name} is archived: {len(results)} trials are in {folder}, and none on its broker")
    say(f"to go on with it: mqtune resume {place.name} --broker URL")


def _check_that_it_may_end(place: Place, broker: str, *, yes: bool) -> None:
    from mqtune.client import Client  # noqa: PLC0415 - as above

    with Client(broker) as there:
        state = there.experiment(place.name).state()
    if state is not None and state.outcome != "finished" and not state.is_driven and not yes:
        raise ConfigurationError(
            f"experiment {place.name!r} has not finished, and trials that run end when it is archived: mqtune resume {place.name}, "
            "or archive it with --yes"
        )
