"""The states of all experiments on a broker, read together and without their journals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import redis

from mqtune.core.keys import SUBMISSIONS, ExperimentKeys
from mqtune.journal.base import entry_time
from mqtune.journal.redis import experiments_on, number
from mqtune.journal.server.retry import RetryingCaller, retrying

#: How many commands are sent together. They take some tens of milliseconds of the server's time.
_COMMANDS: Final = 1_000
_FIELDS: Final = ("last", "driver_until", "read", "bytes", "most_bytes")


class State(NamedTuple):
    """The state of an experiment. Times are in seconds since the epoch, by the server's clock.

    Attributes:
        last: the id of the newest entry of its journal; empty before the first.
        driver_until: when its driver's lock expires or has expired; 0 if it never had a driver.
        read: the id of the newest entry that the driver had read at its last heartbeat; empty if unknown.
        size: the bytes of its journal in Redis.
        most: the limit of these bytes; 0 for no limit.
    """

    last: str
    driver_until: float
    read: str
    size: int
    most: int


class AttemptCounts(NamedTuple):
    """The numbers of running and waiting attempts, and since when the oldest one waits, or 0."""

    running: int
    waiting: int
    oldest: float


def ask_each(client: redis.Redis, commands: Sequence[tuple[str | bytes, ...]], *, patience_s: float) -> list[Any]:
    """Send commands that only read. Return an answer for each.

    An answer is None if this account lacks the permission, or if a key has the wrong type.

    Raises:
        BrokerUnavailable: the server is missing.
    """
    answers = _answers(client, commands, patience_s=patience_s)
    return [None if isinstance(answer, redis.RedisError) else answer for answer in answers]


def _answers(client: redis.Redis, commands: Sequence[tuple[str | bytes, ...]], *, patience_s: float) -> list[object]:
    """Send commands. Return for each its answer, or the server's error as an object."""

    def ask(part: Sequence[tuple[str | bytes, ...]]) -> list[object]:
        with client.pipeline(transaction=False) as pipe:
            for command in part:
                # redis-py has no types for it.
                pipe.execute_command(*command)  # type: ignore[no-untyped-call]
            answers = pipe.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, redis.ConnectionError | redis.TimeoutError):
                # The server loads its data, or the connection broke.
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


class States(RetryingCaller):
    """Reads the states of experiments. Those that this account may not read are left out."""

    def __init__(self, client: redis.Redis, *, patience_s: float) -> None:
        super().__init__(client, patience_s=patience_s)
        #: Experiments that this account may not read. They are not asked for again, because the server logs each
        #: refusal.
        self._denied: set[str] = set()

    def read(self, names: Iterable[str]) -> dict[str, State]:
        """Return the states of these experiments by name.

        Raises:
            BrokerUnavailable: the server is missing.
        """
        names = list(names)
        self._denied &= {*names}
        asked = [name for name in names if name not in self._denied]
        answers = self._ask([("HMGET", ExperimentKeys(name).meta, *_FIELDS) for name in asked])
        by_name = dict(zip(asked, answers, strict=True))
        self._denied |= {name for name, answer in by_name.items() if answer is None}
        return {name: _state_of(answer) for name, answer in by_name.items() if answer is not None}

    def under_way(self, names: Iterable[str]) -> Mapping[str, AttemptCounts]:
        """Return how many attempts of each of these experiments run and wait, by experiment.

        Raises:
            BrokerUnavailable: the server is missing.
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
        """Return for each of these experiments whether a worker runs its submitted script.

        It is False for an experiment that this account may not read.

        Raises:
            BrokerUnavailable: the server is missing.
        """
        names = list(names)
        commands: list[tuple[str, ...]] = []
        for name in names:
            commands += [("HGET", ExperimentKeys(name).submission, "state"), ("ZSCORE", SUBMISSIONS, name)]
        *answers, (seconds, _) = ask_each(self._client, [*commands, ("TIME",)], patience_s=self._patience_s)
        rows = zip(names, answers[::2], answers[1::2], strict=True)
        return {name: state == b"running" and float(until or 0) > seconds * 1000 for name, state, until in rows}

    def next_times(self, after: Mapping[str, str]) -> dict[str, float]:
        """Return the time of the next entry after a given one, by experiment.

        *after* has the id of the given entry by experiment. Experiments without a next entry are left out.

        Raises:
            BrokerUnavailable: the server is missing.
        """
        commands = [
            ("XRANGE", ExperimentKeys(name).journal, f"({entry}", "+", "COUNT", "1") for name, entry in after.items()
        ]
        answers = zip(after, self._ask(commands), strict=True)
        return {name: entry_time(entries[0][0].decode()) for name, entries in answers if entries}

    def _ask(self, commands: Sequence[tuple[str, ...]]) -> list[Any]:
        return ask_each(self._client, commands, patience_s=self._patience_s)


def _state_of(fields: Sequence[bytes | None]) -> State:
    last, until, read, size, most = fields
    return State(
        (last or b"").decode(errors="replace"),
        number(until) / 1000,
        (read or b"").decode(errors="replace"),
        number(size),
        number(most),
    )
