"""``mqtune fleet acl``: prints commands that create accounts on a shared Redis server."""

from __future__ import annotations

import os
import secrets
import sys
from typing import Final

import click

from mqtune.core.errors import ConfigurationError
from mqtune.services.ownership.acl import ROLES, Role, account, password_hash, rules_of

_VARIABLE: Final = "MQTUNE_ACL_PASSWORD"
#: Values of --password.
_STDIN: Final = "stdin"
_HASH: Final = "sha256:"


@click.command("acl")
@click.argument("role", type=click.Choice(ROLES))
@click.option("--user", help="Name of the account; by default mqtune-ROLE.")
@click.option(
    "--password",
    "source",
    metavar=f"{_STDIN}|{_HASH}HEX",
    help=f"{_STDIN}: read the password from standard input. {_HASH}HEX: its SHA-256. By default the password is "
    f"${_VARIABLE}, or else a new one.",
)
@click.option(
    "--experiments",
    default="*",
    show_default=True,
    help="Names of the experiments that the account may use; * is a wildcard: 'team-a-*'.",
)
@click.option(
    "--remote-control",
    is_flag=True,
    help="Let a monitor send Celery's remote commands. Flower needs them, and they can end trials.",
)
@click.option(
    "--all-keys",
    is_flag=True,
    help="Let a driver for all experiments see the names of all keys on the server, as mqtune gc needs.",
)
@click.option(
    "--db",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of the database, as in the broker's URL.",
)
@click.option("--aclfile", is_flag=True, help="Print the line for an ACL file instead of a command for redis-cli.")
def _acl(
    role: Role,
    user: str | None,
    source: str | None,
    experiments: str,
    remote_control: bool,
    all_keys: bool,
    db: int,
    aclfile: bool,
) -> None:
    """Print the command that creates an account on Redis (7 or later) or Valkey.

    \b
    mqtune fleet acl worker | redis-cli

    Only the password's hash is in the command. A new password is printed to standard error. An existing account gets
    this version's rules and keeps its passwords. A second command records the account in the audit stream, which
    `mqtune events` shows.
    """  # noqa: D301 - click wants the character itself
    user = user or f"mqtune-{role}"
    hashed, new = _hash_of(source)
    rules = rules_of(role, experiments=experiments, db=db, remote_control=remote_control, all_keys=all_keys)
    line = account(user, hashed, rules, aclfile=aclfile)
    if new:
        click.echo(
            f"password of {user}, valid once the server has accepted the command (redis-cli prints OK), and shown only "
            f"here: {new}\n"
            f"broker: redis://{user}:{new}@HOST:6379/{db}",
            err=True,
        )
    click.echo(line)
    if not aclfile:
        from mqtune.services.ownership.audit import audit_line  # noqa: PLC0415 - redis is slow to import

        # One redis-cli creates the account and records it.
        click.echo(audit_line("acl", user, f"{role} for {experiments}"))


def _hash_of(source: str | None) -> tuple[str, str]:
    """Return the hash of the password, and the password itself if it is new, else an empty text."""
    if source is not None and source.startswith(_HASH):
        return source.removeprefix(_HASH), ""
    if source not in (None, _STDIN):
        raise ConfigurationError(
            f"--password takes {_STDIN} or {_HASH}HEX, not the password itself, which other users of this machine "
            f"could see; or set ${_VARIABLE}"
        )
    password = os.environ.get(_VARIABLE, "") if source is None else _read_stdin()
    new = "" if password else secrets.token_urlsafe(24)
    return password_hash(password or new), new


def _read_stdin() -> str:
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise ConfigurationError("--password stdin: standard input is empty; write the password on its first line")
    return password


COMMANDS: Final = {"acl": _acl}
