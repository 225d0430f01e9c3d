"""``mqtune delete``: deletes an experiment that nobody drives, wherever it is."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from pathlib import Path
from typing import Final

import click

from mqtune.cli.output import broker_option, say
from mqtune.cli.place import Place, find_place, name_argument, server_of
from mqtune.core.errors import ConfigurationError, CopyIncomplete, NameTaken
from mqtune.core.machine import ARCHIVED, SERVER_FOLDER, mqtune_home
from mqtune.journal.copy import JOURNAL_FILE, JournalFile
from mqtune.journal.lock import LOCK_S
from mqtune.results.experiments import created_event, first_events
from mqtune.results.results import Results

#: A journal's copy that is younger than this, and has no end, is still written.
_QUIET_S: Final = 3 * LOCK_S


@click.command("delete")
@name_argument
@broker_option("The Redis server that has the experiment; it takes a driver's account.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@click.option("--here", is_flag=True, help="Delete only its folder on this machine.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask.")
def command(name: str, broker: str | None, *, dry_run: bool, here: bool, yes: bool) -> None:
    """Delete an experiment: what Redis has of it, its checkpoints, and its folder on this machine.

    One that a living driver has is refused: end it first.
    """
    place = find_place(name, broker)
    _check_folder(place)
    if yes and not dry_run and place.name != name and place.folder != Path(name):
        # What was done twice by a script would otherwise delete another one, whose name begins alike.
        raise click.UsageError(f"{name!r} is short for {place.name!r}; with --yes give the whole name")
    if here:
        _delete_folder(place, dry_run=dry_run, yes=yes)
        return
    try:
        is_archived = place.folder is not None and (place.folder / ARCHIVED).is_file()
        delete = _delete_archived if is_archived else _delete_everywhere
        done = delete(place, dry_run=dry_run, yes=yes)
    except NameTaken as error:
        raise NameTaken(f"{error}; end it first: mqtune end {place.name} --now") from None
    if done and place.folder is not None:
        shutil.rmtree(place.folder)
    if done:
        click.echo(f"{place.name} is deleted")


def _check_folder(place: Place) -> None:
    """Refuse a folder that is not mqtune's alone."""
    if place.folder is not None and place.folder.resolve().parent != mqtune_home().resolve():
        raise ConfigurationError(f"{place.folder} is not in {mqtune_home()}: delete it by hand")


def _delete_everywhere(place: Place, *, dry_run: bool, yes: bool) -> bool:
    """Delete what a server and a store have, and return whether that was wanted."""
    from mqtune.driver import deletion  # noqa: PLC0415 - only this needs redis
    from mqtune.driver.owning import owner_on  # noqa: PLC0415 - as above
    from mqtune.journal.connection import redact  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(server_of(place))
        if place.folder is not None and not deletion.is_on(place.name, url):
            # Who takes its lock would make it known there.
            return is_wanted([str(place.folder)], dry_run=dry_run, yes=yes)
        owner = owner_on(url, place.name)
        # Another process may drive it while the question waits for an answer.
        with deletion.undriven(place.name, url) as journal:
            found = deletion.remains_of(journal, owner)
        parts = [f"{place.name}: {len(found.trials)} trials on its server"]
        # Without the mark by which the store is known again.
        where = redact(found.store.partition("#")[0])
        if found.is_shared:
            click.echo(f"the checkpoints in {where} stay: an experiment on another broker has them too", err=True)
        elif found.store:
            parts.append(f"{found.checkpoints} checkpoints in {where}")
        if messages := deletion.messages_of(place.name, url):
            parts.append(f"{len(messages)} messages in queues of workers")
        if place.folder is not None:
            parts.append(str(place.folder))
        if not is_wanted(parts, dry_run=dry_run, yes=yes):
            return False
        with deletion.undriven(place.name, url) as journal:
            # Before what they are about, so that a failure leaves nothing that nobody knows of.
            deletion.remove_messages(deletion.messages_of(place.name, url), url)
            deletion.delete_remains(journal, deletion.remains_of(journal, owner), owner)
    return True


def _delete_archived(place: Place, *, dry_run: bool, yes: bool) -> bool:
    """Delete the checkpoints of an experiment that is in a folder alone, and return whether that was wanted."""
    from mqtune.checkpoints import open_store  # noqa: PLC0415 - only this needs a store
    from mqtune.driver.owning import is_archives  # noqa: PLC0415 - only this needs redis

    assert place.folder is not None  # noqa: S101 - that is where it is
    created = created_event(first_events(JournalFile(place.folder / JOURNAL_FILE)), place.folder)
    url = str(created.definition.get("store", ""))
    store = open_store(url) if url else None
    parts = [str(place.folder)]
    if store is not None and is_archives(store, place.name):
        parts.insert(0, f"{len(store.ids())} checkpoints in {store.describe()}")
    elif store is not None:
        click.echo(f"what there is in {store.describe()} stays: it may be somebody else's", err=True)
        store = None
    is_sure = is_wanted(parts, dry_run=dry_run, yes=yes)
    if is_sure and store is not None:
        store.remove()
    return is_sure


def _delete_folder(place: Place, *, dry_run: bool, yes: bool) -> None:
    if place.folder is None:
        raise ConfigurationError(f"experiment {place.name!r} has no folder on this machine")
    if _is_written(place.folder):
        raise NameTaken(f"experiment {place.name!r} seems to run; end it first: mqtune end {place.name} --now")
    if is_wanted([str(place.folder)], dry_run=dry_run, yes=yes):
        shutil.rmtree(place.folder)
        click.echo(f"{place.folder} is deleted")


def _is_written(folder: Path) -> bool:
    """Whether a driver seems to write there."""
    age_s = time.time() - (folder / JOURNAL_FILE).stat().st_mtime
    return (folder / SERVER_FOLDER / "url").exists() or (age_s < _QUIET_S and not _has_ended(folder))


def _has_ended(folder: Path) -> bool:
    try:
        return bool(Results.load(folder).outcome)
    except CopyIncomplete:
        return False


def is_wanted(parts: list[str], *, dry_run: bool, yes: bool) -> bool:
    """Say what goes, and return whether somebody wants that."""
    for part in parts:
        say(f"{'would delete' if dry_run else 'delete'}  {part}")
    if dry_run:
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here; give --yes")
    return click.confirm("Really? Nothing brings it back")
