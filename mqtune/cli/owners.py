"""The options --owner and --force, and the owners of the experiments that a command shows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from mqtune.core.owner import ME, NOBODY, Owner, this_owner

if TYPE_CHECKING:
    from mqtune.journal.connection import RedisClient
    from mqtune.services.ownership.audit import AuditAction

#: Adds the option --owner.
owner_option = click.option(
    "--owner",
    metavar="NAME",
    default="",
    help=f"Show only those of this owner: a user, user@host, an account of the server, or {ME!r}.",
)
#: Adds the option --force, which arrives as *force*; the use of it is in the broker's audit stream.
force_option = click.option("--force", is_flag=True, help="Do it although it is another's.")


def owner_of(described: Mapping[str, Any]) -> Owner:
    """Return the owner in a summary of an experiment; NOBODY where an earlier version wrote it, or it can't be read."""
    found = described.get("owner")
    return Owner(**{part: str(found.get(part, "")) for part in Owner._fields}) if isinstance(found, dict) else NOBODY


def is_of(owner: Owner, wanted: str) -> bool:
    """Whether an owner is the one that --owner asks for; all are where it asks for none."""
    if wanted == ME:
        return owner.is_same(this_owner())
    return not wanted or owner.matches(wanted)


def has_others(owners: Iterable[Owner]) -> bool:
    """Whether one of these owners is known and is somebody else."""
    me = this_owner()
    return any(owner != NOBODY and not owner.is_same(me) for owner in owners)


def check_owner(url: str, what: str, owner: Owner, *, doing: str, force: bool) -> None:
    """Refuse to act on another's property on this server; see ``mqtune.services.ownership.audit.check_owner``.

    Raises:
        ConfigurationError: it is another's.
    """
    from mqtune.services.ownership import audit  # noqa: PLC0415 - only this needs redis

    with _client_of(url) as client:
        audit.check_owner(client, what, owner, doing=doing, force=force)


def note(url: str, action: AuditAction, target: str, detail: str = "") -> None:
    """Append an entry to the audit stream of this server; see ``mqtune.services.ownership.audit.note``."""
    from mqtune.services.ownership import audit  # noqa: PLC0415 - as above

    with _client_of(url) as client:
        audit.note(client, action, target, detail)


@contextlib.contextmanager
def _client_of(url: str) -> Iterator[RedisClient]:
    from mqtune.journal.connection import connect  # noqa: PLC0415 - as above

    with contextlib.closing(connect(url, role="operator")) as client:
        yield client
