"""``mqtune acl``: accounts on a shared Redis server."""

from __future__ import annotations

import os
import secrets
import sys
from typing import Final

import click

from mqtune.core.errors import ConfigurationError
from mqtune.services.ownership.acl import ROLES, Role, account, password_hash, rules_of

_VARIABLE: Final = "MQTUNE_ACL_PASSWORD"


@click.command("acl")
@click.argument("role", type=click.Choice(ROLES))
@click.option("--user", help="Name of the account; by default mqtune-ROLE.")
@click.option(
    "--password-stdin",
    is_flag=True,
    help=f"Read the password from standard input. By default it is that of ${_VARIABLE}, or else a new one.",
)
@click.option("--password-hash", "hashed", help="SHA-256 of the password in hex, instead of a password.")
@click.option(
    "--experiments",
    default="*",
    show_default=True,
    help="Experiments that the account may use, by name; * is a wildcard: 'team-a-*'.",
)
@click.option(
    "--remote-control",
    is_flag=True,
    help="Let a monitor send Celery's remote commands, which Flower needs; they can end trials.",
)
@click.option(
    "--all-keys",
    is_flag=True,
    help="Let a driver for all experiments see the names of all keys on the server, which mqtune delete --unused "
    "needs.",
)
@click.option(
    "--db",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of the database, as in the broker's URL.",
)
@click.option("--aclfile", is_flag=True, help="Print the line for an ACL file instead of a command for redis-cli.")
def command(
    role: Role,
    user: str | None,
    password_stdin: bool,
    hashed: str | None,
    experiments: str,
    remote_control: bool,
    all_keys: bool,
    db: int,
    aclfile: bool,
) -> None:
    """Print the command that creates an account on Redis (7 or later) or Valkey.

    \b
    mqtune acl worker | redis-cli

    Only the password's hash is printed; a new password goes to standard error. An existing account gets this version's
    rules and keeps its passwords. A second command records the account in the audit stream, which `mqtune events`
    shows.
    """  # noqa: D301 - click wants the character itself
    user = user or f"mqtune-{role}"
    made = ""
    if hashed is None:
        password = _password(from_stdin=password_stdin)
        if not password:
            password = made = secrets.token_urlsafe(24)
        hashed = password_hash(password)
    elif password_stdin:
        raise ConfigurationError("--password-stdin and --password-hash: give only one of them")
    rules = rules_of(role, experiments=experiments, db=db, remote_control=remote_control, all_keys=all_keys)
    line = account(user, hashed, rules, aclfile=aclfile)
    if made:
        click.echo(
            f"password of {user} once the server has accepted the command (redis-cli prints OK), shown only here: {made}\n"
            f"broker: redis://{user}:{made}@HOST:6379/{db}",
            err=True,
        )
    click.echo(line)
    if not aclfile:
        from mqtune.services.ownership.audit import audit_line  # noqa: PLC0415 - it needs redis, which is slow to import

        # The server records it together with the account.
        click.echo(audit_line("acl", user, f"{role} for {experiments}"))


def _password(*, from_stdin: bool) -> str:
    if not from_stdin:
        return os.environ.get(_VARIABLE, "")
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise ConfigurationError("--password-stdin: standard input is empty; write the password on its first line")
    return password
