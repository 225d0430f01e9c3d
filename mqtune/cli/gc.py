"""``mqtune gc``: deletes the remains of killed processes and deleted experiments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from mqtune.cli.archive import ended_option, find_ended, is_removed
from mqtune.cli.delete import delete_on_server
from mqtune.cli.output import broker_option, is_wanted, print_json, say
from mqtune.cli.owners import force_option
from mqtune.cli.place import Place
from mqtune.core.machine import mqtune_home
from mqtune.results.experiments import saved_experiments

if TYPE_CHECKING:
    from mqtune.services.upkeep.garbage import Garbage

_KIB: Final = 1 << 10
_DAY_S: Final = 86_400.0
#: Days, enough to notice and repair a server's loss of data.
_MIN_AGE_DAYS: Final = 7.0
#: Kind of a whole experiment.
_ENDED: Final = "ended"
_WHAT: Final = {
    _ENDED: "the experiment, which has ended, with its checkpoints",
    "experiment": "its name alone",
    "messages": "{} messages in queues of workers",
    "keys": "{} keys",
    "checkpoints": "{} checkpoints of an experiment that the broker no longer has",
    "server": "{} files of a server that has ended",
    "scratch": "temporary files of a worker that has ended",
}


@click.command("gc")
@broker_option("The Redis server to search too; it takes a driver's account.")
@ended_option("Also delete every experiment on the broker that finished this long ago, such as 30d, or before a date.")
@click.option(
    "--checkpoints",
    "places",
    multiple=True,
    metavar="PLACE",
    help="Also search this place, as in Checkpoints(store=…), for checkpoints of deleted experiments; may be repeated.",
)
@click.option(
    "--min-age",
    "min_age_days",
    type=click.FloatRange(min=0),
    default=_MIN_AGE_DAYS,
    show_default=True,
    metavar="DAYS",
    help="Only checkpoints in stores that nothing was added to for this long.",
)
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON. Without --yes, nothing is deleted.")
def command(
    broker: str | None,
    ended: float | None,
    places: tuple[str, ...],
    min_age_days: float,
    *,
    dry_run: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Delete orphans: remains of killed processes here, and of deleted experiments on a broker.

    Anything that may be in use is kept. Only the account of `mqtune fleet acl driver --all-keys` sees all orphans on a
    broker. --ended keeps experiments that are unfinished, driven or another's, and all folders on this machine. A timer
    may run it with --yes.
    """
    if places and not broker:
        raise click.UsageError(
            "--checkpoints needs the broker that had the experiments: --broker URL or $MQTUNE_BROKER"
        )
    with contextlib.ExitStack() as stack:
        ended_items: list[Garbage] = []
        unseen, is_complete = [], True
        if ended is not None:
            ages, is_complete = find_ended(broker, ended, doing="delete", force=force)
            ended_items = [_ended(name, broker, ended, force=force) for name in ages]
        items = [*left_here(), *ended_items]
        if broker:
            from mqtune.services.upkeep.garbage import garbage_on  # noqa: PLC0415 - only this needs redis

            search = stack.enter_context(garbage_on(broker, places, unused_s=min_age_days * _DAY_S))
            items, unseen = [*items, *search.found], search.unseen
        for part in unseen:
            click.echo(f"mqtune: not searched: {part}", err=True)
        kept: list[Garbage] = []
        if as_json:
            is_real = yes and not dry_run
            kept = [garbage for garbage in items if is_real and not garbage.delete()]
            rows = [_row(garbage, is_deleted=is_real and garbage not in kept) for garbage in items]
            print_json({"garbage": rows, "unseen": unseen})
        elif not items:
            say("there is nothing to delete")
        elif is_wanted([_line(garbage) for garbage in items], dry_run=dry_run, yes=yes):
            kept = _delete(items)
    if not is_complete or any(garbage.kind == _ENDED for garbage in kept):
        raise click.exceptions.Exit(1)


def _ended(name: str, broker: str | None, before: float, *, force: bool) -> Garbage:
    """Return an experiment to delete, which has ended."""
    from mqtune.services.upkeep.garbage import Garbage  # noqa: PLC0415 - as above

    def remove(place: Place) -> None:
        delete_on_server(place, lambda _: True, force=force)

    return Garbage(_ENDED, name, 1, None, partial(is_removed, name, broker, before, remove))


def left_here() -> list[Garbage]:
    """Return the remains of killed processes in mqtune's home."""
    from mqtune.backends.local.server import left_by_server  # noqa: PLC0415 - slow to import
    from mqtune.services.folders.worker import settle_behind  # noqa: PLC0415 - as above
    from mqtune.services.upkeep.garbage import Garbage  # noqa: PLC0415 - as above
    from mqtune.worker.host.scratch import Scratch  # noqa: PLC0415 - as above

    def clear(folder: Path) -> bool:
        return bool(left_by_server(folder, delete=True)) and not left_by_server(folder)

    def discard(worker: Path) -> bool:
        return worker in scratch.left() and scratch.discard(worker)

    scratch = Scratch(mqtune_home())
    settle_behind(mqtune_home(), scratch)
    servers = [
        Garbage("server", folder.name, len(left), _size(left), partial(clear, folder), str(left[0].parent))
        for folder in saved_experiments()
        if (left := left_by_server(folder))
    ]
    return servers + [
        Garbage("scratch", "", 1, _size(worker.rglob("*")), partial(discard, worker), str(worker))
        for worker in scratch.left()
    ]


def _size(files: Iterable[Path]) -> int | None:
    with contextlib.suppress(OSError):
        return sum(path.lstat().st_size for path in files)
    return None


def _delete(items: list[Garbage]) -> list[Garbage]:
    """Delete garbage, and return the kept part."""
    kept = [garbage for garbage in items if not garbage.delete()]
    for garbage in kept:
        say(f"kept    {_line(garbage)}: it is gone by now, or in use again")
    say(f"{len(items) - len(kept)} of {len(items)} deleted")
    return kept


def _row(garbage: Garbage, *, is_deleted: bool) -> dict[str, object]:
    summary = {"kind": garbage.kind, "experiment": garbage.experiment, "count": garbage.count, "bytes": garbage.bytes}
    return {**summary, "folder": garbage.folder, "deleted": is_deleted}


def _line(garbage: Garbage) -> str:
    content = _WHAT[garbage.kind].format(garbage.count)
    size = "" if garbage.bytes is None else f", {garbage.bytes / _KIB:.1f} KiB"
    return f"{garbage.folder or garbage.experiment}: {content}{size}"
