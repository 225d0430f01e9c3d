"""``mqtune delete``: deletes an experiment that has no driver."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import click

from mqtune.cli.archive import end_first
from mqtune.cli.output import broker_option, is_wanted
from mqtune.cli.owners import check_owner, force_option, note
from mqtune.cli.place import Place, find_place, name_argument, server_of
from mqtune.core.errors import ConfigurationError, CopyIncomplete, NameTaken
from mqtune.core.machine import ARCHIVED, SERVER_FOLDER, mqtune_home
from mqtune.core.timing import Timing
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile
from mqtune.results.experiments import created_event, first_events
from mqtune.results.labelling import is_in_folder_alone
from mqtune.results.results import Results

#: Seconds. If an unfinished copy of a journal was changed within them, a driver seems to write it.
_QUIET_S: Final = 3 * Timing().lock_s
_MAY_BE_ANOTHERS: Final = (
    "an experiment of this name on another broker may use them, too, for instance if this broker is a copy of that "
    "one. If this is the same broker, but its drivers gave another address, first delete the files in .tenants there"
)


@click.command("delete")
@name_argument
@broker_option("The Redis server that has the experiment; it takes a driver's account.")
@click.option("--here", is_flag=True, help="Delete only its folder on this machine.")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@force_option
def command(name: str, broker: str | None, *, here: bool, dry_run: bool, yes: bool, force: bool) -> None:
    """Delete an experiment: its data in Redis, its checkpoints, and its folder on this machine.

    An experiment with a living driver is refused: end it first. Somebody else's experiment on a broker needs --force or
    an operator's account. To keep its trials, use `mqtune archive`.
    """
    place = find_place(name, broker)
    with end_first(place):
        _delete(place, name, here=here, dry_run=dry_run, yes=yes, force=force)


def _delete(place: Place, name: str, *, here: bool, dry_run: bool, yes: bool, force: bool) -> None:
    if place.folder is not None and place.folder.resolve().parent != mqtune_home().resolve():
        raise ConfigurationError(f"{place.folder} is not in {mqtune_home()}: delete it by hand")
    if yes and not dry_run and place.name != name and place.folder != Path(name):
        # A script that runs twice could otherwise delete another experiment with this prefix.
        raise click.UsageError(f"{name!r} is short for {place.name!r}; with --yes, give the whole name")
    if here or _has_no_server(place):
        _delete_folder(place, dry_run=dry_run, yes=yes)
        return
    if place.folder is not None and _is_archived(place.folder):
        done = _delete_archived(place, dry_run=dry_run, yes=yes)
    else:
        done = delete_on_server(place, partial(is_wanted, dry_run=dry_run, yes=yes), force=force)
    if done and place.folder is not None:
        shutil.rmtree(place.folder)
    if done:
        click.echo(f"{place.name} is deleted")


def _has_no_server(place: Place) -> bool:
    """Return whether no broker is given and the experiment, imported or simulated, is on none."""
    folder = place.folder
    return folder is not None and not place.broker and not _is_archived(folder) and is_in_folder_alone(folder)


def _is_archived(folder: Path) -> bool:
    return (folder / ARCHIVED).is_file()


def delete_on_server(place: Place, is_wanted: Callable[[list[str]], bool], *, force: bool) -> bool:
    """Delete an experiment from its server and store. Return whether the user agreed.

    Args:
        is_wanted: returns whether to delete the parts in its argument.
        force: whether to delete somebody else's experiment.
    """
    from mqtune.driver.setup.tenancy import tenant_on  # noqa: PLC0415 - only this needs redis
    from mqtune.journal.server.connection import redact  # noqa: PLC0415 - as above
    from mqtune.services.upkeep import deletion  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(server_of(place))
        if place.folder is not None and not deletion.is_on(place.name, url):
            # The server lost the experiment. A lock would create it there.
            return is_wanted([str(place.folder)])
        tenant = tenant_on(url, place.name)
        # Not locked while the user is asked: another process may drive it meanwhile.
        with deletion.undriven(place.name, url) as journal:
            remains = deletion.remains_of(journal, tenant)
        run = f"; {remains.running} of them are running without a driver, and will end" if remains.running else ""
        trials = f"{place.name}: {len(remains.trials)} trials on its server{run}"
        if place.own_folder is None:
            check_owner(url, trials, remains.owner, doing="delete", force=force)
        parts = [trials]
        where = redact(remains.store.partition("#")[0])
        if remains.is_shared:
            if place.folder is None or str(place.folder) not in where:
                click.echo(f"the checkpoints in {where} are kept: {_MAY_BE_ANOTHERS}", err=True)
        elif remains.store:
            parts.append(f"{remains.checkpoints} checkpoints in {where}")
        if messages := deletion.messages_of(place.name, url):
            parts.append(f"{len(messages)} messages in queues of workers")
        if place.folder is not None:
            parts.append(str(place.folder))
        if not is_wanted(parts):
            return False
        if place.own_folder is None:
            note(url, "delete", place.name, f"{len(remains.trials)} trials, of {remains.owner}")
        with deletion.undriven(place.name, url) as journal:
            # Messages are removed first, so that a failure leaves no orphans.
            deletion.remove_messages(deletion.messages_of(place.name, url), url)
            deletion.delete_remains(journal, deletion.remains_of(journal, tenant), tenant)
    return True


def _delete_archived(place: Place, *, dry_run: bool, yes: bool) -> bool:
    """Delete an archived experiment's checkpoints. Return whether the user agreed."""
    from mqtune.checkpoints import open_store  # noqa: PLC0415 - only this needs a store
    from mqtune.journal.files.chapters import checkpoints_in  # noqa: PLC0415 - only this needs redis
    from mqtune.services.upkeep.marks import is_archives  # noqa: PLC0415 - as above

    assert place.folder is not None  # noqa: S101 - that is where it is
    created = created_event(first_events(JournalFile(place.folder / JOURNAL_FILE)), place.folder)
    url = str(created.definition.get("store", ""))
    store = open_store(url) if url else None
    parts = [str(place.folder)]
    if store is not None and is_archives(store, place.name):
        parts.insert(0, f"{len(checkpoints_in(store))} checkpoints in {store.describe()}")
    elif store is not None:
        click.echo(f"the checkpoints in {store.describe()} are kept: they may be somebody else's", err=True)
        store = None
    is_agreed = is_wanted(parts, dry_run=dry_run, yes=yes)
    if is_agreed and store is not None:
        store.remove()
    return is_agreed


def _delete_folder(place: Place, *, dry_run: bool, yes: bool) -> None:
    if place.folder is None:
        raise ConfigurationError(f"experiment {place.name!r} has no folder on this machine")
    if _is_written(place.folder):
        raise NameTaken(f"experiment {place.name!r} seems to be running")
    if is_wanted([str(place.folder)], dry_run=dry_run, yes=yes):
        shutil.rmtree(place.folder)
        click.echo(f"{place.folder} is deleted")


def _is_written(folder: Path) -> bool:
    """Return whether a driver seems to write into the folder."""
    age_s = time.time() - (folder / JOURNAL_FILE).stat().st_mtime
    return (folder / SERVER_FOLDER / "url").exists() or (age_s < _QUIET_S and not _has_ended(folder))


def _has_ended(folder: Path) -> bool:
    try:
        return bool(Results.load(folder).outcome)
    except CopyIncomplete:
        return False
