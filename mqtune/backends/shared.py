"""Backends with slots that several drivers use at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from mqtune.core.crews import Register
from mqtune.core.priorities import Priority
from mqtune.journal.server.connection import RedisClient


class Pool(NamedTuple):
    """The slots of a fleet, as far as they matter for sharing it.

    Attributes:
        slots: the number of slots of each queue.
        queues: the queues whose slots fit the experiment's trials, those with the smallest slots first.
        most: how many slots the experiment can use at the same time; None for all.
    """

    slots: Mapping[str, int]
    queues: Sequence[str]
    most: int | None = None


class RegisterSource(Protocol):
    """Provides the register of workers."""

    def refresh(self) -> Register:
        """Return the current register of the workers."""

    def busy(self) -> Mapping[str, Mapping[str, int]]:
        """Return the number of busy slots by experiment (as ``events.busy_as`` names it) and queue."""


@runtime_checkable
class SharedSession(Protocol):
    """Further members of a session whose slots several experiments may use."""

    #: Priority of the experiment's messages in a queue.
    priority: Priority
    #: The register as of the last refresh.
    register: Register

    @property
    def client(self) -> RedisClient:
        """The connection to the experiments' shared server."""

    def pool(self) -> Pool:
        """Return the slots of all workers, as of the last refresh."""

    def read_from(self, source: RegisterSource) -> None:
        """From now on, take the register from *source* and not from the server."""
