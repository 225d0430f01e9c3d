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
from mqtune.core.errors import ConfigurationError, NameTaken
from mqtune.core.machine import SERVER_FOLDER, mqtune_home
from mqtune.journal.copy import JOURNAL_FILE
from mqtune.journal.lock import LOCK_S
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
        done = _delete_everywhere(place, dry_run=dry_run, yes=yes)
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
    from mqtune.driver.deletion import delete_remains, remains_of, undriven  # noqa: PLC0415 - only this needs redis
    from mqtune.journal.connection import redact  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(server_of(place))
        # Another process may drive it while the question waits for an answer.
        with undriven(place.name, url) as journal:
            found = remains_of(journal)
        parts = [f"{place.name}: {len(found.trials)} trials on its server"]
        if found.store:
            # Without the mark by which the store is known again.
            parts.append(f"{found.checkpoints} checkpoints in {redact(found.store.partition('#')[0])}")
        if place.folder is not None:
            parts.append(str(place.folder))
        if not _is_wanted(parts, dry_run=dry_run, yes=yes):
            return False
        with undriven(place.name, url) as journal:
            delete_remains(journal, remains_of(journal))
    return True


def _delete_folder(place: Place, *, dry_run: bool, yes: bool) -> None:
    if place.folder is None:
        raise ConfigurationError(f"experiment {place.name!r} has no folder on this machine")
    if _is_written(place.folder):
        raise NameTaken(f"experiment {place.name!r} seems to run; end it first: mqtune end {place.name} --now")
    if _is_wanted([str(place.folder)], dry_run=dry_run, yes=yes):
        shutil.rmtree(place.folder)
        click.echo(f"{place.folder} is deleted")


def _is_written(folder: Path) -> bool:
    """Whether a driver seems to write there."""
    age_s = time.time() - (folder / JOURNAL_FILE).stat().st_mtime
    return (folder / SERVER_FOLDER / "url").exists() or (age_s < _QUIET_S and not Results.load(folder).outcome)


def _is_wanted(parts: list[str], *, dry_run: bool, yes: bool) -> bool:
    for part in parts:
        say(f"{'would delete' if dry_run else 'delete'}  {part}")
    if dry_run:
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here; give --yes")
    return click.confirm("Really? Nothing brings it back")
