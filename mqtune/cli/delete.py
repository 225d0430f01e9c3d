"""``mqtune delete``: deletes undriven experiments and remains."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path
from typing import Final

import click

from mqtune.cli.archive import archive_there
from mqtune.cli.ended import delete_ended
from mqtune.cli.output import broker_option, is_wanted
from mqtune.cli.owners import check_owner, force_option, note
from mqtune.cli.place import Place, complete_experiment, find_place, is_asked_for, server_of
from mqtune.cli.terms import past_time
from mqtune.cli.unused import UNUSED_DAYS, delete_unused
from mqtune.core.errors import ConfigurationError, CopyIncomplete, NameTaken
from mqtune.core.machine import ARCHIVED, SERVER_FOLDER, mqtune_home
from mqtune.core.timing import Timing
from mqtune.journal.copy import JOURNAL_FILE, JournalFile
from mqtune.results.experiments import created_event, first_events
from mqtune.results.results import Results

#: An unfinished copy of a journal that is younger is still being written.
_QUIET_S: Final = 3 * Timing().lock_s
_MAY_BE_ANOTHERS: Final = (
    "an experiment of this name on another broker may have them too, such as one of which this broker is a copy. If it is "
    "this broker, under another address than its drivers gave, delete the files in .tenants there first"
)


@click.command("delete")
@click.argument("name", required=False, shell_complete=complete_experiment)
@broker_option("The Redis server that has the experiment; it takes a driver's account.")
@click.option("--here", is_flag=True, help="Delete only its folder on this machine.")
@click.option(
    "--archive",
    "archives",
    is_flag=True,
    help="Write it into its folder on this machine first, and delete it on its broker alone.",
)
@click.option(
    "--ended",
    metavar="TIME",
    callback=lambda _, __, given: None if given is None else past_time(given),
    help="Delete on the broker, without a NAME, all experiments that finished so long ago, such as 30d, or before a date.",
)
@click.option(
    "--unused",
    is_flag=True,
    help="Delete, without a NAME, the remains of killed processes on this machine, and of deleted experiments on the "
    "broker.",
)
@click.option(
    "--checkpoints",
    "places",
    multiple=True,
    metavar="PLACE",
    help="With --unused: look also where the broker's experiments store checkpoints, as Checkpoints(store=…) has it; may "
    "be repeated.",
)
@click.option(
    "--unused-days",
    type=click.FloatRange(min=0),
    default=UNUSED_DAYS,
    show_default=True,
    help="With --checkpoints: take only stores to which nothing was added for so long.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be deleted, and delete nothing.")
@click.option(
    "-y", "--yes", is_flag=True, help="Don't ask. With --archive: also if it has not finished; trials that run end."
)
@force_option
@click.option("--json", "as_json", is_flag=True, help="With --unused: print JSON.")
def command(
    name: str | None,
    broker: str | None,
    places: tuple[str, ...],
    unused_days: float,
    *,
    here: bool,
    archives: bool,
    ended: float | None,
    unused: bool,
    dry_run: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Delete an experiment: its data in Redis, its checkpoints, and its folder on this machine.

    An experiment with a living driver is refused: end it first. Another's on a broker needs --force or an operator's
    account. With --archive it stays in its folder, readable by all commands, with its journal, dict checkpoints and
    code. Folder checkpoints stay in their store. `mqtune drive NAME --broker URL` restores it to a broker. --ended
    keeps experiments that are unfinished, driven, another's, or can't be archived, and folders on this machine; a timer
    may run it with --yes. --unused keeps whatever may be in use; an account by `mqtune acl driver --all-keys` sees
    everything.
    """
    if unused:
        if name is not None or here or archives or force or ended is not None:
            raise click.UsageError(
                "--unused is for all experiments; leave out NAME, --here, --archive, --ended and --force"
            )
        delete_unused(broker, places, unused_days, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    if places or is_asked_for("unused_days") or as_json:
        raise click.UsageError("--checkpoints, --unused-days and --json are for --unused")
    if ended is not None:
        if name is not None or here:
            raise click.UsageError("--ended is for all experiments of a broker; leave out NAME and --here")
        delete_ended(
            broker,
            ended,
            lambda place: _delete_everywhere(place, dry_run=False, yes=True, force=force),
            archives=archives,
            dry_run=dry_run,
            yes=yes,
            force=force,
        )
        return
    if name is None:
        raise click.UsageError("give the NAME of an experiment; or --unused for remains that belong to no experiment")
    if archives and (here or dry_run):
        raise click.UsageError("--archive keeps the folder, and has no --dry-run; leave out --here and --dry-run")
    place = find_place(name, broker)
    try:
        if archives:
            archive_there(place, yes=yes, force=force)
        else:
            _delete(place, name, here=here, dry_run=dry_run, yes=yes, force=force)
    except NameTaken as error:
        raise NameTaken(f"{error}; end it first: mqtune stop {place.name} --experiment --now") from None


def _delete(place: Place, name: str, *, here: bool, dry_run: bool, yes: bool, force: bool) -> None:
    _check_folder(place)
    if yes and not dry_run and place.name != name and place.folder != Path(name):
        # A script that runs twice could otherwise delete another experiment.
        raise click.UsageError(f"{name!r} is short for {place.name!r}; with --yes give the whole name")
    if here:
        _delete_folder(place, dry_run=dry_run, yes=yes)
        return
    is_archived = place.folder is not None and (place.folder / ARCHIVED).is_file()
    if is_archived:
        done = _delete_archived(place, dry_run=dry_run, yes=yes)
    else:
        done = _delete_everywhere(place, dry_run=dry_run, yes=yes, force=force)
    if done and place.folder is not None:
        shutil.rmtree(place.folder)
    if done:
        click.echo(f"{place.name} is deleted")


def _check_folder(place: Place) -> None:
    """Refuse a folder outside mqtune's home."""
    if place.folder is not None and place.folder.resolve().parent != mqtune_home().resolve():
        raise ConfigurationError(f"{place.folder} is not in {mqtune_home()}: delete it by hand")


def _delete_everywhere(place: Place, *, dry_run: bool, yes: bool, force: bool) -> bool:
    """Delete a server's and store's data. Return whether that was wanted."""
    from mqtune.driver.tenancy import tenant_on  # noqa: PLC0415 - only this needs redis
    from mqtune.journal.connection import redact  # noqa: PLC0415 - as above
    from mqtune.services.upkeep import deletion  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        url = stack.enter_context(server_of(place))
        if place.folder is not None and not deletion.is_on(place.name, url):
            # Locking it would create it there.
            return is_wanted([str(place.folder)], dry_run=dry_run, yes=yes)
        tenant = tenant_on(url, place.name)
        # Another process may drive it meanwhile.
        with deletion.undriven(place.name, url) as journal:
            found = deletion.remains_of(journal, tenant)
        run = f"; {found.running} of them run, without a driver, and end" if found.running else ""
        trials = f"{place.name}: {len(found.trials)} trials on its server{run}"
        if place.own_folder is None:
            check_owner(url, trials, found.owner, doing="delete", force=force)
        parts = [trials]
        where = redact(found.store.partition("#")[0])
        if found.is_shared:
            if place.folder is None or str(place.folder) not in where:
                click.echo(f"the checkpoints in {where} stay: {_MAY_BE_ANOTHERS}", err=True)
        elif found.store:
            parts.append(f"{found.checkpoints} checkpoints in {where}")
        if messages := deletion.messages_of(place.name, url):
            parts.append(f"{len(messages)} messages in queues of workers")
        if place.folder is not None:
            parts.append(str(place.folder))
        if not is_wanted(parts, dry_run=dry_run, yes=yes):
            return False
        if place.own_folder is None:
            note(url, "delete", place.name, f"{len(found.trials)} trials, of {found.owner}")
        with deletion.undriven(place.name, url) as journal:
            # Messages first, so that a failure leaves no orphans.
            deletion.remove_messages(deletion.messages_of(place.name, url), url)
            deletion.delete_remains(journal, deletion.remains_of(journal, tenant), tenant)
    return True


def _delete_archived(place: Place, *, dry_run: bool, yes: bool) -> bool:
    """Delete an archive's checkpoints. Return whether that was wanted."""
    from mqtune.checkpoints import open_store  # noqa: PLC0415 - only this needs a store
    from mqtune.journal.chapters import checkpoints_in  # noqa: PLC0415 - only this needs redis
    from mqtune.services.upkeep.marks import is_archives  # noqa: PLC0415 - as above

    assert place.folder is not None  # noqa: S101 - that is where it is
    created = created_event(first_events(JournalFile(place.folder / JOURNAL_FILE)), place.folder)
    url = str(created.definition.get("store", ""))
    store = open_store(url) if url else None
    parts = [str(place.folder)]
    if store is not None and is_archives(store, place.name):
        parts.insert(0, f"{len(checkpoints_in(store))} checkpoints in {store.describe()}")
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
        raise NameTaken(f"experiment {place.name!r} seems to run")
    if is_wanted([str(place.folder)], dry_run=dry_run, yes=yes):
        shutil.rmtree(place.folder)
        click.echo(f"{place.folder} is deleted")


def _is_written(folder: Path) -> bool:
    """Return whether a driver seems to write there."""
    age_s = time.time() - (folder / JOURNAL_FILE).stat().st_mtime
    return (folder / SERVER_FOLDER / "url").exists() or (age_s < _QUIET_S and not _has_ended(folder))


def _has_ended(folder: Path) -> bool:
    try:
        return bool(Results.load(folder).outcome)
    except CopyIncomplete:
        return False
