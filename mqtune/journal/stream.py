"""A journal's stream on a server: its entries as they are read, and with them where the journal has chapters."""

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
from mqtune.journal.connection import RedisClient

#: What a server says to who uses a key that is of another type.
WRONG_TYPE: Final = "WRONGTYPE"
#: The id of an entry.
_ENTRY: Final = re.compile(r"\d{1,20}-\d{1,20}", re.ASCII)
#: The beginning of an error's text where a pipeline met it: redis-py has the whole command there. Its name and its key
#: are kept.
_PIPELINED: Final = re.compile(r"Command # \d+ \((\S+(?: \S+)?).*?\) of pipeline caused error: ", re.DOTALL)
#: As bytes they are commands whose answers redis-py leaves as they are: a dict for each entry would take twice the time
#: that reading takes.
XRANGE: Final = b"XRANGE"
XREVRANGE: Final = b"XREVRANGE"
XREAD: Final = b"XREAD"


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from inspecting ten thousands of lists that are no garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def without_data(error: BaseException) -> str:
    """Return a server's error in words, without the bytes that a pipeline's command had sent."""
    return _PIPELINED.sub(r"\1: ", str(error))


def entries_in(found: Iterable[tuple[bytes, Sequence[bytes]]]) -> list[Entry]:
    """Return the entries of an answer, in which each is its id and a list of fields' names and values.

    Ours have one field. Anybody with an account for it may have appended an entry with other fields: the first value is
    then not an event, and decoding it says so.
    """
    new, kind = tuple.__new__, Entry
    # What Entry(…) does, in half its time: a report may be one of a flood.
    return [new(kind, (id_.decode(), fields[1])) for id_, fields in found]


@contextlib.contextmanager
def naming(key: str) -> Iterator[None]:
    """Have an error of the server's, that a key is of another type, name that key.

    Raises:
        MessageVersionError: it is.
    """
    try:
        yield
    except ResponseError as error:
        if WRONG_TYPE not in str(error):
            raise
        raise MessageVersionError(
            f"the key {key} is of another type than mqtune's: something else has written to it; delete it (redis-cli "
            f"DEL), and run "
            "the script again, or mqtune delete the experiment"
        ) from None


def read_entries(client: Any, command: bytes, key: str, *more: object) -> list[Entry]:
    """Return the entries that an ``XRANGE`` or ``XREVRANGE`` of a journal finds on the server.

    Chapters are not looked into.

    Raises:
        MessageVersionError: the key is no journal's.
    """
    with naming(key), uncollected():
        return entries_in(client.execute_command(command, key, *more))


def first_of(kept: bytes | None) -> Entry | None:
    """Return the first entry of all, which is kept once it is in a chapter."""
    if kept is None:
        return None
    id_, _, data = kept.partition(b" ")
    return Entry(id_.decode(errors="replace"), data)


def id_of(field: bytes | None) -> str:
    """Return the id of an entry that a field has, or nothing.

    Raises:
        MessageVersionError: it has something else.
    """
    if not field:
        return ""
    id_ = field.decode(errors="replace")
    if _ENTRY.fullmatch(id_) is None:
        raise MessageVersionError(f"{id_[:100]!r} is no entry of a journal: something else has written to it")
    return id_


def read_with(client: Any, of: ExperimentKeys, field: str, *command: object) -> tuple[Any, bytes | None]:
    """Return the answer to a command on the journal, and what is known of its chapters after that, by a field."""
    keys = of.journal, of.chapters
    if not isinstance(client, RedisClient):
        with naming(keys[0]):
            found = client.execute_command(*command)
        with naming(keys[1]):
            return found, client.hmget(keys[1], field)[0]
    answers = client.execute_both(command, ("HMGET", keys[1], field))
    for key, answer in zip(keys, answers, strict=True):
        if isinstance(answer, ResponseError):
            with naming(key):
                raise answer
    found, [kept] = answers
    return found, kept
