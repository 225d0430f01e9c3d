"""Reads a journal's stream in Redis, together with facts about its chapters."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from redis.exceptions import ResponseError

from mqtune.core.errors import MessageVersionError
from mqtune.core.keys import ExperimentKeys
from mqtune.journal.base import Entry
from mqtune.journal.server.connection import RedisClient

#: The server's error for a key of another type.
WRONG_TYPE: Final = "WRONGTYPE"
#: The id of an entry.
_ENTRY: Final = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)
#: If a command's name is bytes, redis-py does not convert the answer. To convert each entry would double the time.
XRANGE: Final = b"XRANGE"
XREVRANGE: Final = b"XREVRANGE"
XREAD: Final = b"XREAD"


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection in the block, which would inspect ten thousands of live lists."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def entries_in(items: Iterable[tuple[bytes, Sequence[bytes]]]) -> list[Entry]:
    """Convert the server's entries: pairs of an id, and the names and values of its fields.

    mqtune's entries have one field. If something else has appended an entry with other fields, decoding its first value
    fails later.
    """
    # This is Entry(…) in half the time, because there may be a million reports.
    new, kind = tuple.__new__, Entry
    return [new(kind, (id_.decode(), fields[1])) for id_, fields in items]


@contextlib.contextmanager
def naming(key: str) -> Iterator[None]:
    """Turn a server's error about the type of a key into one that names the key.

    Raises:
        MessageVersionError: the key has the wrong type.
    """
    try:
        yield
    except ResponseError as error:
        if WRONG_TYPE not in str(error):
            raise
        raise MessageVersionError(
            f"the Redis key {key} has the wrong type, so something other than mqtune has written it; delete it "
            "(redis-cli DEL) and run the script again, or delete the experiment (mqtune delete)"
        ) from None


def first_of(kept: bytes | None) -> Entry | None:
    """Decode the experiment's first entry from the index of chapters. None if it is not there."""
    if kept is None:
        return None
    id_, _, data = kept.partition(b" ")
    return Entry(id_.decode(errors="replace"), data)


def id_of(field: bytes | None) -> str:
    """Return the entry's id in a field, or an empty text for an empty field.

    Raises:
        MessageVersionError: the value is not an entry's id.
    """
    if not field:
        return ""
    id_ = field.decode(errors="replace")
    if _ENTRY.fullmatch(id_) is None:
        raise MessageVersionError(
            f"{id_[:100]!r} is not the id of a journal's entry: something other than mqtune has written it"
        )
    return id_


def read_with(client: Any, of: ExperimentKeys, field: str, *command: object) -> tuple[Any, bytes | None]:
    """Run a command on the journal, and read a field of its index of chapters directly after it."""
    keys = of.journal, of.chapters
    if not isinstance(client, RedisClient):
        with naming(keys[0]):
            reply = client.execute_command(*command)
        with naming(keys[1]):
            return reply, client.hmget(keys[1], field)[0]
    answers = client.execute_both(command, ("HMGET", keys[1], field))
    for key, answer in zip(keys, answers, strict=True):
        if isinstance(answer, ResponseError):
            with naming(key):
                raise answer
    reply, [kept] = answers
    return reply, kept
