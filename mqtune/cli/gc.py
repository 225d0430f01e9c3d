"""Deletes the remains of killed processes and deleted experiments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from mqtune.cli.output import is_wanted, print_json, say
from mqtune.core.machine import mqtune_home
from mqtune.results.experiments import saved_experiments

if TYPE_CHECKING:
    from mqtune.services.upkeep.garbage import Garbage

_KIB: Final = 1 << 10
_DAY_S: Final = 86_400.0
#: Days, enough to notice and repair a server's loss of data.
UNUSED_DAYS: Final = 7.0
_WHAT: Final = {
    "experiment": "its name alone",
    "messages": "{} messages in queues of workers",
    "keys": "{} keys",
    "checkpoints": "{} checkpoints of an experiment that the broker has no more",
    "server": "{} files of a server that has ended",
    "scratch": "temporary files of a worker that has ended",
}


def delete_unused(
    broker: str | None, places: tuple[str, ...], unused_days: float, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete the remains of killed processes here, and of deleted experiments on a broker.

    Args:
        broker: the broker, if any.
        places: where its experiments store checkpoints.
        unused_days: days without a change, for stores.
        dry_run: whether nothing is deleted.
        yes: whether to skip the question.
        as_json: whether to print JSON.
    """
    if as_json and not (dry_run or yes):
        raise click.UsageError("--json asks nothing; give --yes or --dry-run")
    if places and not broker:
        raise click.UsageError(
            "--checkpoints takes the broker that had the experiments: --broker URL or $MQTUNE_BROKER"
        )
    with contextlib.ExitStack() as stack:
        found, unseen = left_here(), []
        if broker:
            from mqtune.services.upkeep.garbage import garbage_on  # noqa: PLC0415 - only this needs redis

            there = stack.enter_context(garbage_on(broker, places, unused_s=unused_days * _DAY_S))
            found, unseen = [*found, *there.found], there.unseen
        for each in unseen:
            click.echo(f"mqtune: not looked at: {each}", err=True)
        if as_json:
            rows = [_row(each, is_deleted=not dry_run and each.delete()) for each in found]
            print_json({"garbage": rows, "unseen": unseen})
        elif not found:
            say("there is nothing to delete")
        elif is_wanted([_line(each) for each in found], dry_run=dry_run, yes=yes):
            _delete(found)


def left_here() -> list[Garbage]:
    """Return the remains of killed processes in mqtune's home."""
    from mqtune.backends.local.server import left_by_server  # noqa: PLC0415 - slow to import
    from mqtune.services.folders.worker import settle_behind  # noqa: PLC0415 - as above
    from mqtune.services.upkeep.garbage import Garbage  # noqa: PLC0415 - as above
    from mqtune.worker.scratch import Scratch  # noqa: PLC0415 - as above

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


def _delete(found: list[Garbage]) -> None:
    kept = [each for each in found if not each.delete()]
    for each in kept:
        say(f"kept    {_line(each)}: it is gone by now, or somebody has begun to use it")
    say(f"{len(found) - len(kept)} of {len(found)} deleted")


def _row(garbage: Garbage, *, is_deleted: bool) -> dict[str, object]:
    what = {"kind": garbage.kind, "experiment": garbage.experiment, "count": garbage.count, "bytes": garbage.bytes}
    return {**what, "folder": garbage.folder, "deleted": is_deleted}


def _line(garbage: Garbage) -> str:
    what = _WHAT[garbage.kind].format(garbage.count)
    size = "" if garbage.bytes is None else f", {garbage.bytes / _KIB:.1f} KiB"
    return f"{garbage.folder or garbage.experiment}: {what}{size}"
