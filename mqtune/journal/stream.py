"""Reads a journal's stream on a server, and with it the place of its chapters."""

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
#: redis-py leaves the answers to bytes unchanged; a dict for each entry would take twice the time of reading.
XRANGE: Final = b"XRANGE"
XREVRANGE: Final = b"XREVRANGE"
XREAD: Final = b"XREAD"


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from inspecting ten thousands of live lists."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def entries_in(items: Iterable[tuple[bytes, Sequence[bytes]]]) -> list[Entry]:
    """Return the entries of an answer: for each, its id and its fields' names and values.

    Ours have one field. An account with access may have appended an entry with other fields: the first value is then no
    event, and decoding it fails.
    """
    # As Entry(…), in half the time: there may be a million reports.
    new, kind = tuple.__new__, Entry
    return [new(kind, (id_.decode(), fields[1])) for id_, fields in items]


@contextlib.contextmanager
def naming(key: str) -> Iterator[None]:
    """Name the key in a server's error about its type.

    Raises:
        MessageVersionError: the key is of another type.
    """
    try:
        yield
    except ResponseError as error:
        if WRONG_TYPE not in str(error):
            raise
        raise MessageVersionError(
            f"the key {key} is of another type than mqtune's: something else has written to it; delete it (redis-cli "
            f"DEL), and run the "
            "script again, or mqtune delete the experiment"
        ) from None


def first_of(kept: bytes | None) -> Entry | None:
    """Return the experiment's first entry, which the server keeps once it is in a chapter."""
    if kept is None:
        return None
    id_, _, data = kept.partition(b" ")
    return Entry(id_.decode(errors="replace"), data)


def id_of(field: bytes | None) -> str:
    """Return a field's id of an entry, or an empty text.

    Raises:
        MessageVersionError: the field has another value.
    """
    if not field:
        return ""
    id_ = field.decode(errors="replace")
    if _ENTRY.fullmatch(id_) is None:
        raise MessageVersionError(f"{id_[:100]!r} is no entry of a journal: something else has written to it")
    return id_


def read_with(client: Any, of: ExperimentKeys, field: str, *command: object) -> tuple[Any, bytes | None]:
    """Return the answer to a command on the journal, and a field about its chapters after it."""
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
