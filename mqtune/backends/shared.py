"""Backends with slots that several drivers use at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from mqtune.core.crews import Register
from mqtune.core.priorities import Priority
from mqtune.journal.connection import RedisClient


class Pool(NamedTuple):
    """The slots of a fleet.

    It has their number by queue, of all queues, and the queues that suit an experiment, the smallest slots first.
    ``most`` is the number of them that the experiment can use at the same time; None for all.
    """

    slots: Mapping[str, int]
    queues: Sequence[str]
    most: int | None = None


class RegisterSource(Protocol):
    """Knows which workers there are."""

    def refresh(self) -> Register:
        """Return the register of the workers as it is now."""

    def busy(self) -> Mapping[str, Mapping[str, int]]:
        """Return by the token of each experiment in how many slots of each queue it runs."""


@runtime_checkable
class SharedSession(Protocol):
    """Further methods of a backend's session whose slots several experiments may use."""

    #: The priority of the experiment's messages among those that wait in a queue.
    priority: Priority
    #: The register as of the last refresh.
    register: Register

    @property
    def client(self) -> RedisClient:
        """The connection to the server that the experiments share."""

    def pool(self) -> Pool:
        """Return the slots of all workers, as of the last refresh."""

    def read_from(self, source: RegisterSource) -> None:
        """Take the register from *source* from now on, and not from the server."""
