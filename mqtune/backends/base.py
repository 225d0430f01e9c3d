"""What a driver needs of the place where its attempts run."""

from __future__ import annotations

from typing import Protocol

from mqtune.core.resources import Resources
from mqtune.core.trial import Attempt, Config, TrialId
from mqtune.journal.logs import LogChunk, LogStream

__all__ = ["Backend"]


class Backend(Protocol):
    """Where attempts run."""

    @property
    def slots(self) -> int:
        """How many slots fit, as of the last refresh."""

    def refresh(self) -> None:
        """Look at which slots there are now."""

    def why_no_slot(self) -> str:
        """Say what is missing when there is none."""

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        """Offer a staged attempt to the slots; doing it twice does no harm."""

    def started(self, trial: TrialId, attempt: int, queue: str) -> None:
        """Hear that a worker has claimed an attempt that came by *queue*."""

    def ended(self, trial: TrialId, attempt: int) -> None:
        """Hear that an attempt has ended, or is taken back."""

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        """Hear that the driver has counted an attempt as lost, because its worker is silent: it can't say so itself."""

    def offered(self, resources: Resources) -> int:
        """Return how many slots, free or not, offer this, as of the last refresh."""

    def free(self, resources: Resources) -> int:
        """Return how many of them no attempt has, nor waits for."""

    def resource_string(self) -> str:
        """Return what all slots offer, for people."""

    def has_gpus(self) -> bool | None:
        """Whether any slot has a GPU; None when there is no slot to ask."""

    def queued(self) -> set[tuple[TrialId, int]] | None:
        """Return the attempts that wait to be claimed; None when that can't be told."""

    def read_log(self, worker: str, trial: TrialId, attempt: int, stream: LogStream, offset: int) -> LogChunk:
        """Return a part of what an attempt printed, from the worker that has it.

        Raises:
            LogUnavailable: it can't be had.
        """

    def close(self) -> None:
        """Let go of all connections."""
