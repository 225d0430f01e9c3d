"""The audit stream of a broker: changes of its fleet and accounts, and uses of force."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, cast

import redis

from mqtune.core.errors import ConfigurationError
from mqtune.core.keys import AUDIT, QUOTAS
from mqtune.core.owner import NOBODY, Owner, this_owner
from mqtune.journal import CONNECT_TIMEOUT_S, account_of, entry_time, person, retrying

if TYPE_CHECKING:
    from redis.typing import EncodableT, FieldT

AuditAction = Literal[
    "drain", "disable", "enable", "quota", "cap", "drop-quota", "aging", "delete", "archive", "submit", "halt", "force"
]
#: Maximum number of entries. With 200 bytes each and ten actions a day, they last for years.
MOST: Final = 20_000
logger = logging.getLogger(__name__)


class AuditEntry(NamedTuple):
    """An entry of the audit stream.

    Attributes:
        at: its time by the server's clock, in seconds since the epoch.
        by: the person, as stated by that person's process.
        action: an ``AuditAction``, or "acl" by the output of ``mqtune fleet acl``.
        target: a worker, a device, a pattern, an experiment or an account.
        detail: details in words.
    """

    at: float
    by: str
    action: str
    target: str
    detail: str


def note(client: redis.Redis, action: AuditAction, target: str, detail: str = "") -> None:
    """Append an entry to the audit stream, before its action is carried out.

    A full server rejects the entry. The action continues with a warning, as it may free memory.

    Raises:
        AccessDenied: the account may not write to the stream, because an earlier version made it.
        BrokerUnavailable: the server is away.
    """
    fields: dict[FieldT, EncodableT] = {
        "by": str(person(client)),
        "action": action,
        "target": target,
        "detail": detail,
    }

    def append() -> None:
        try:
            client.xadd(AUDIT, fields, maxlen=MOST)
        except redis.exceptions.OutOfMemoryError:
            logger.warning("the audit stream lacks this, as Redis is full: %s %s %s", action, target, detail)

    retrying(append, patience_s=CONNECT_TIMEOUT_S)


def audit_line(action: str, target: str, detail: str) -> str:
    """Return the redis-cli command that appends an entry."""
    fields = ("by", str(this_owner()), "action", action, "target", target, "detail", detail)
    quoted = " ".join('"{}"'.format(text.replace("\\", "").replace('"', "")) for text in fields)
    return f"XADD {AUDIT} MAXLEN ~ {MOST} * {quoted}"


def newest_entries(client: redis.Redis, count: int) -> list[AuditEntry]:
    """Return the newest entries of the audit stream, oldest first.

    Raises:
        AccessDenied: the account is not for all experiments.
        BrokerUnavailable: the server is away.
    """
    newest = retrying(lambda: client.xrevrange(AUDIT, count=count), patience_s=CONNECT_TIMEOUT_S)
    # redis-py's types cover all settings.
    entries = cast("Iterable[tuple[bytes, dict[bytes, bytes]]]", newest)
    return [_entry(id_.decode(), fields) for id_, fields in entries][::-1]


def check_owner(client: redis.Redis, owned: str, owner: Owner, *, doing: str, force: bool) -> None:
    """Refuse actions on another's property without *force* or an operator's account.

    Force is recorded in the audit stream. This prevents accidents only: a process states its own owner. Permissions are
    the accounts' matter.

    Raises:
        ConfigurationError: it is another's property.
        AccessDenied: force is used, and the account may not write to the audit stream.
    """
    if owner == NOBODY or owner.is_same(person(client)):
        return
    if force:
        note(client, "force", owned, f"{doing}; of {owner}")
    elif not is_operator(client):
        raise ConfigurationError(
            f"{owned}: this is {owner}'s; ask them, or give --force (in Python force=True), or use an operator's "
            "account"
        )


def is_operator(client: redis.Redis) -> bool:
    """Whether a client's account has an operator's permissions.

    The default account never counts as one.
    """
    if not account_of(client):
        return False
    try:
        client.hexists(QUOTAS, "")
    except redis.exceptions.NoPermissionError:
        return False
    return True


def _entry(id_: str, fields: dict[bytes, bytes]) -> AuditEntry:
    texts = (fields.get(name, b"").decode(errors="replace") for name in (b"by", b"action", b"target", b"detail"))
    return AuditEntry(entry_time(id_), *texts)
