"""How the experiments of a broker stand, many at a time, without reading their journals.

It is for readers of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import redis

from mqtune.core.keys import SUBMISSIONS, ExperimentKeys
from mqtune.journal.base import entry_time
from mqtune.journal.redis import experiments_on, number
from mqtune.journal.server.retry import retrying

#: How many commands are sent before the first answer is read: some tens of milliseconds of a server's time.
_COMMANDS: Final = 1_000
_FIELDS: Final = ("last", "driver_until", "read", "bytes", "most_bytes")


class State(NamedTuple):
    """How an experiment stands; times are in seconds since the epoch, by the server's clock.

    Attributes:
        last: the newest entry of its journal; empty before the first.
        driver_until: when its driver's lock runs out, or ran out; 0 if it never had one.
        read: the newest entry that the driver had read when it last kept the lock; empty where that is not known.
        size: the bytes of its journal.
        most: how many it may have; 0 for any number.
    """

    last: str
    driver_until: float
    read: str
    size: int
    most: int


class AttemptCounts(NamedTuple):
    """The running and waiting attempts of an experiment, and since when one waits (0: none)."""

    running: int
    waiting: int
    oldest: float


def ask_each(client: redis.Redis, commands: Sequence[tuple[str | bytes, ...]], *, patience_s: float) -> list[Any]:
    """Return the answer to each of these commands, which only read.

    Return None where this account may not, or a key is of another type.

    Raises:
        BrokerUnavailable: the server is away.
    """
    answers = _answers(client, commands, patience_s=patience_s)
    return [None if isinstance(answer, redis.RedisError) else answer for answer in answers]


def _answers(client: redis.Redis, commands: Sequence[tuple[str | bytes, ...]], *, patience_s: float) -> list[object]:
    """Return the answer to each command, or the server's error."""

    def ask(part: Sequence[tuple[str | bytes, ...]]) -> list[object]:
        with client.pipeline(transaction=False) as pipe:
            for command in part:
                # redis-py has no types for it.
                pipe.execute_command(*command)  # type: ignore[no-untyped-call]
            answers = pipe.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, redis.ConnectionError | redis.TimeoutError):
                # It loads its file, or was cut off.
                raise answer
        return answers

    results: list[object] = []
    for begin in range(0, len(commands), _COMMANDS):
        part = commands[begin : begin + _COMMANDS]
        results += retrying(partial(ask, part), patience_s=patience_s)
    return results


def readable_on(client: redis.Redis, *, patience_s: float) -> list[str]:
    """Return the names of the experiments on a server that the account may read, newest first."""
    names = experiments_on(client, patience_s=patience_s)
    answers = _answers(client, [("HGET", ExperimentKeys(name).meta, "last") for name in names], patience_s=patience_s)
    readable = zip(names, answers, strict=True)
    return [name for name, answer in readable if not isinstance(answer, redis.exceptions.NoPermissionError)]


class States:
    """The states of a broker's experiments, without those that this account may not read.

    Args:
        client: a checked connection.
        patience_s: how long calls are repeated while the server is away.
    """

    def __init__(self, client: redis.Redis, *, patience_s: float) -> None:
        self._client = client
        self._patience_s = patience_s
        #: Experiments of others, which are not asked for again: the server logs each refusal.
        self._denied: set[str] = set()

    def read(self, names: Iterable[str]) -> dict[str, State]:
        """Return the states of these experiments, without those that this account may not read.

        Raises:
            BrokerUnavailable: the server is away.
        """
        names = list(names)
        self._denied &= {*names}
        asked = [name for name in names if name not in self._denied]
        answers = self._ask([("HMGET", ExperimentKeys(name).meta, *_FIELDS) for name in asked])
        by_name = dict(zip(asked, answers, strict=True))
        self._denied |= {name for name, answer in by_name.items() if answer is None}
        return {name: _state(answer) for name, answer in by_name.items() if answer is not None}

    def under_way(self, names: Iterable[str]) -> Mapping[str, AttemptCounts]:
        """Return how many attempts of these experiments run and wait.

        Experiments that this account may not read are left out.

        Raises:
            BrokerUnavailable: the server is away.
        """
        names = list(names)
        commands: list[tuple[str, ...]] = []
        for keys in map(ExperimentKeys, names):
            commands += [
                ("ZCARD", keys.leases),
                ("ZCARD", keys.staged),
                ("ZRANGE", keys.staged, "0", "0", "WITHSCORES"),
            ]
        answers = self._ask(commands)
        rows = zip(names, answers[::3], answers[1::3], answers[2::3], strict=True)
        return {
            name: AttemptCounts(running, waiting, float(first[1]) / 1000 if first else 0.0)
            for name, running, waiting, first in rows
            if None not in (running, waiting, first)
        }

    def scripts(self, names: Iterable[str]) -> Mapping[str, bool]:
        """Return whether a worker runs the submitted script of each of these experiments.

        An experiment that this account may not read counts as one without a script.

        Raises:
            BrokerUnavailable: the server is away.
        """
        names = list(names)
        commands: list[tuple[str, ...]] = []
        for name in names:
            commands += [("HGET", ExperimentKeys(name).submission, "state"), ("ZSCORE", SUBMISSIONS, name)]
        *answers, (seconds, _) = ask_each(self._client, [*commands, ("TIME",)], patience_s=self._patience_s)
        rows = zip(names, answers[::2], answers[1::2], strict=True)
        return {name: state == b"running" and float(until or 0) > seconds * 1000 for name, state, until in rows}

    def next_times(self, after: Mapping[str, str]) -> dict[str, float]:
        """Return the time of each experiment's entry after this one, if there is one.

        Raises:
            BrokerUnavailable: the server is away.
        """
        commands = [
            ("XRANGE", ExperimentKeys(name).journal, f"({entry}", "+", "COUNT", "1") for name, entry in after.items()
        ]
        answers = zip(after, self._ask(commands), strict=True)
        return {name: entry_time(entries[0][0].decode()) for name, entries in answers if entries}

    def _ask(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        return ask_each(self._client, commands, patience_s=self._patience_s)


def _state(fields: Sequence[bytes | None]) -> State:
    last, until, read, size, most = fields
    return State(
        (last or b"").decode(errors="replace"),
        number(until) / 1000,
        (read or b"").decode(errors="replace"),
        number(size),
        number(most),
    )
