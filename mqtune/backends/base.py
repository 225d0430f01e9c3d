"""Backends: where an experiment's attempts run.

To bring one, implement both protocols of this module, pass the first as ``Tuner(backend=…)``, and run the contract suite
``mqtune.testing.backends`` on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from mqtune.core.clock import Clock
from mqtune.core.resources import Resources
from mqtune.core.trial import Attempt, Config, TrialId
from mqtune.journal.base import Journal
from mqtune.journal.logs import LogChunk, LogStream


@runtime_checkable
class Backend(Protocol):
    """A place where attempts run, as users configure it; ``Tuner(backend=…)`` takes any object with this method."""

    def open(self, experiment: str, resources: Resources) -> BackendSession:
        """Return a session for one driver of an experiment.

        Each driver opens its own, after the session of the driver before it was closed, or after that driver has died. What
        the journal holds outlives a session, so that the next driver can go on with the experiment.

        Args:
            experiment: the experiment's name.
            resources: the resources that each trial asks for; where they do so by their configs, those of one: see ``TakesResources``.

        Raises:
            ConfigurationError: this backend can't run the experiment.
            BrokerUnavailable: the place can't be reached.
        """


class BackendSession(Protocol):
    """A driver's connection to the place where its attempts run.

    **An attempt's life.** The driver stages an attempt in the journal, which makes it claimable, and then publishes it
    here. The backend runs it in a slot and writes what happens to the journal, as a worker does: ``Journal.claim`` with an
    ``AttemptStarted``, ``Journal.report`` for each batch of reports, ``Journal.renew`` before the lease expires, and
    ``Journal.end`` with an ``AttemptEnded`` once nothing of it runs any more. A refused claim is not run. The answers to
    ``report`` and ``renew`` carry the driver's intents, such as "stop" or "pause"; "fenced" means that the attempt no
    longer counts and must be killed. An attempt that runs longer than its ``ttl_s`` ends as FAILED, with the error type
    "TimeToLive" and ``outlived``. ``mqtune.journal.base`` has the details, and ``examples/extensions`` a backend of threads.

    **Threads.** The driver calls all methods from one thread, which waits for them: none may block for long.

    **Errors.** An outage is retried in the method. What it raises after that, a BrokerUnavailable as a rule, ends the run;
    the attempts stay as they are, and a later driver goes on with them.
    """

    @property
    def journal(self) -> Journal:
        """The experiment's journal, with the driver's methods; a ``MemoryJournal`` or a ``RedisJournal``."""

    @property
    def clock(self) -> Clock:
        """The clock that timestamps in the journal are taken from."""

    @property
    def slots(self) -> int:
        """The number of slots, free or not, that offer what a trial asks for, as of the last refresh.

        Of trials with several seats it is how many can have all of their seats at once, here and below.
        """

    def refresh(self) -> None:
        """Look up which slots there are now; called every few seconds, and when ``Journal.fleet_changed`` is set."""

    def why_no_slot(self) -> str:
        """Return, for people, what is missing when ``slots`` is 0."""

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        """Offer a staged attempt to the slots.

        It may be published again, by this driver or a later one, also while it runs: an attempt is claimed once.
        """

    def started(self, trial: TrialId, attempt: int, queue: str) -> None:
        """Note that an attempt has started, or a further seat of it, of this name; *queue* is that of its ``AttemptStarted``."""

    def ended(self, trial: TrialId, attempt: int) -> None:
        """Note that an attempt has ended, or was withdrawn before it started: its slot is free."""

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        """Note that the driver has ended an attempt as LOST, because its lease expired."""

    def offered(self, resources: Resources) -> int:
        """Return the number of slots, free or not, that offer *resources*, as of the last refresh."""

    def free(self, resources: Resources) -> int:
        """Return the number of those slots that no attempt runs in or waits for."""

    def resource_string(self) -> str:
        """Return what all slots offer, for people."""

    def has_gpus(self) -> bool | None:
        """Return whether any slot has a GPU; None when there is no slot."""

    def queued(self) -> set[tuple[TrialId, int]] | None:
        """Return the published attempts that wait for a slot, or their seats, by name; None when that is unknown.

        The driver publishes again what was staged more than 10 s ago, has not started and is not among them.
        """

    def read_log(self, worker: str, trial: TrialId, attempt: int, stream: LogStream, offset: int) -> LogChunk:
        """Return a part of an attempt's output, from the worker that has it; an empty one where nothing is recorded.

        Raises:
            LogUnavailable: it can't be read.
        """

    def close(self) -> None:
        """Close all connections; attempts that run are left alone, for the next driver."""


class Offer(NamedTuple):
    """A staged attempt that is published, as ``BackendSession.publish`` takes it."""

    trial: TrialId
    attempt: int
    config: Config


@runtime_checkable
class TakesResources(Protocol):
    """What a backend's session may have too: attempts may ask for different resources.

    Without it, an experiment in which they do is refused.
    """

    def expect(self, resources: Resources) -> None:
        """Count slots that offer these among ``slots`` too, from now on: attempts may ask for them."""

    def asks(self, trial: TrialId, attempt: int, resources: Resources) -> None:
        """Note what a staged attempt asks for, before it is published: from now on slots that offer that count too.

        A session hears so of each attempt that an earlier driver has staged.
        """


@runtime_checkable
class TakesGangs(Protocol):
    """What a backend's session may have too: attempts may have several seats. Without it, an experiment in which they do is refused.

    Such an attempt is published once. Each of its seats is claimed, by its name (``mqtune.core.seats``); all begin once the
    last claim is granted, and each ends by ``Journal.end``. ``slots``, ``offered`` and ``free`` count such attempts.
    """

    #: True, always.
    takes_gangs: bool


@runtime_checkable
class PublishesMany(Protocol):
    """What a backend's session may have too: a method for many attempts, where they cost less together than one by one."""

    def publish_all(self, offers: Sequence[Offer]) -> None:
        """Offer staged attempts to the slots in this order, to the same effect as ``publish`` for each.

        What it raises leaves open which of them are offered; each may be published again.
        """
