"""What a fault may do with the run that it befalls."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from world import Experiment, Worker, World


class Run(Protocol):
    """The run that a fault befalls."""

    world: World
    random: Random
    lease_s: float
    lock_s: float
    #: How long after a driver's death workers go by the experiment's policy, at the latest.
    undriven_after_s: float

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something in some seconds, or when the experiment is over."""

    def wrong(self, promise: str, what: str) -> None:
        """Take note of a broken promise."""

    def isolated(self, workers: list[Worker], begin: float) -> None:
        """Take note that workers could hear nothing since *begin* until now."""

    def forgot(self, begin: float) -> None:
        """Take note that the Redis was away since *begin*, and has come back with less."""

    def undriven(self, experiment: Experiment, for_s: float) -> None:
        """Record that nobody drives an experiment from now on, and keep it so for some seconds."""

    def broke(self, seat: int, device: str, error: str) -> None:
        """Take note that a device of a seat is broken from now on: what runs there fails with this error."""

    def left(self, worker: Worker) -> None:
        """Take note that a worker was told to end."""

    def struck(self, kind: str, what: str) -> None:
        """Take note of a fault that has waited for its moment."""

    def revoked(self, experiment: Experiment, trial: str, attempt: int) -> None:
        """Take note that Celery was told to revoke the task of an attempt."""
