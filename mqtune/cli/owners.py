"""Whose experiments a command shows, and whether it may end what is another's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import click

from mqtune.core.errors import ConfigurationError
from mqtune.core.owner import ME, NOBODY, Owner, this_owner

#: Adds the option --owner.
owner_option = click.option(
    "--owner",
    metavar="NAME",
    default="",
    help=f"Show only those of this owner: a user, user@host, an account of the server, or {ME!r}.",
)
#: Adds the option --force, which arrives as *force*.
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


def check_owner(what: str, owner: Owner, url: str, *, force: bool) -> None:
    """Refuse to end what is another's, unless *force* says so, or the account at this server is an operator's.

    This keeps from accidents, as a process says itself whose it is. To forbid is the accounts' matter.

    Raises:
        ConfigurationError: it is another's.
    """
    if force or owner == NOBODY or owner.is_same(this_owner()):
        return
    from mqtune.journal.connection import connect  # noqa: PLC0415 - only this needs redis
    from mqtune.journal.quotas import is_operator  # noqa: PLC0415 - as above

    with contextlib.closing(connect(url, role="operator")) as client:
        if is_operator(client):
            return
    raise ConfigurationError(f"{what}: this is {owner}'s; ask them, or give --force, or use an operator's account")
