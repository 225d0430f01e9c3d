"""Owners of experiments, and the options --owner and --force."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from mqtune.cli.servers import redis_at
from mqtune.core.owner import ME, NOBODY, Owner, this_owner

if TYPE_CHECKING:
    from mqtune.journal.server.connection import RedisClient
    from mqtune.services.ownership.audit import AuditAction

owner_option = click.option(
    "--owner",
    metavar="NAME",
    default="",
    help=f"Only those of this owner: a user, user@host, an account of the server, or {ME}.",
)
#: The option --force, passed as *force*. Its use is recorded in the broker's audit stream.
force_option = click.option("--force", is_flag=True, help="Act even if it belongs to somebody else.")


def owner_of(described: Mapping[str, Any]) -> Owner:
    """Return the owner in a summary, or NOBODY if it has none."""
    owner = described.get("owner")
    return Owner(**{part: str(owner.get(part, "")) for part in Owner._fields}) if isinstance(owner, dict) else NOBODY


def is_of(owner: Owner, wanted: str) -> bool:
    """Return whether an owner is the one of --owner, *wanted*. Without --owner, all are."""
    if wanted == ME:
        return owner.is_same(this_owner())
    return not wanted or owner.matches(wanted)


def has_others(owners: Iterable[Owner]) -> bool:
    """Return whether any of these owners is known and somebody else than the current user."""
    me = this_owner()
    return any(owner != NOBODY and not owner.is_same(me) for owner in owners)


def check_owner(url: str, owned: str, owner: Owner, *, doing: str, force: bool) -> None:
    """Check that the user may act on something that belongs to *owner* on this server.

    Raises:
        ConfigurationError: it belongs to somebody else, and the user neither gave --force nor is an operator.
    """
    from mqtune.services.ownership import audit  # noqa: PLC0415 - only this needs redis

    with _client_of(url) as client:
        audit.check_owner(client, owned, owner, doing=doing, force=force)


def note(url: str, action: AuditAction, target: str, detail: str = "") -> None:
    """Append an entry to this server's audit stream."""
    from mqtune.services.ownership import audit  # noqa: PLC0415 - as above

    with _client_of(url) as client:
        audit.note(client, action, target, detail)


@contextlib.contextmanager
def _client_of(url: str) -> Iterator[RedisClient]:

    with redis_at(url, role="operator") as client:
        yield client
