"""Backends: the places where an experiment's attempts run.

To add one, implement both protocols of this module, pass the first as ``Tuner(backend=…)``, and run the contract suite
``mqtune.testing.backends`` on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from mqtune.core.clock import Clock
from mqtune.core.resources import Resources
from mqtune.core.trial import Attempt, Config, TrialId
from mqtune.journal.base import Journal
from mqtune.journal.exchange.logs import LogChunk, LogStream


@runtime_checkable
class Backend(Protocol):
    """A place for attempts, as users configure it. ``Tuner(backend=…)`` takes any such object."""

    def open(self, experiment: str, resources: Resources) -> BackendSession:
        """Return a session for one driver of an experiment.

        Each driver opens its own session, after the previous one was closed or its driver died. The journal outlives a
        session, so the next driver can continue the experiment.

        Args:
            resources: the resources of each trial. If they depend on the config, the resources of one of the trials;
                see ``TakesResources``.

        Raises:
            ConfigurationError: this backend can't run the experiment.
            BrokerUnavailable: the backend's server can't be reached.
        """


class BackendSession(Protocol):
    """A driver's connection to the place where its attempts run.

    **An attempt's life.** The driver stages an attempt in the journal, which makes it claimable, and then publishes it
    here. The backend runs it in a slot and writes to the journal, as a worker does: ``Journal.claim`` with an
    ``AttemptStarted``, ``Journal.report`` for each batch of reports, ``Journal.renew`` before the lease expires, and
    ``Journal.end`` with an ``AttemptEnded`` after all its processes have exited. A refused claim is not run. The
    answers to ``report`` and ``renew`` have the driver's intents, such as "stop" or "pause". "fenced" means that the
    attempt no longer counts and must be killed. An attempt that exceeds its ``timeout_s`` ends as FAILED, with the
    error type "AttemptTimeout" and ``outlived``. ``mqtune.journal.base`` has the details, and ``examples/extensions`` a
    backend of threads.

    **Threads.** The driver calls all methods from one thread and waits for them, so none may block for long.

    **Errors.** A method retries during an outage. If it then raises, usually BrokerUnavailable, the run ends. The
    attempts stay as they are, and a later driver continues with them.
    """

    @property
    def journal(self) -> Journal:
        """The journal with the driver's methods: a ``MemoryJournal`` or a ``RedisJournal``."""

    @property
    def clock(self) -> Clock:
        """The clock for timestamps in the journal."""

    @property
    def slots(self) -> int:
        """Number of suitable slots, free or not, as of the last refresh.

        If trials take several slots, this and ``offered`` and ``free`` count how many trials can run at the same time.
        """

    def refresh(self) -> None:
        """Update the slots. Called every few seconds, and when ``Journal.fleet_changed`` is set."""

    def why_no_slot(self) -> str:
        """Return why ``slots`` is 0, such as the missing resource, as text for people."""

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        """Offer a staged attempt to the slots.

        An attempt may be published again, by this driver or a later one, even while it runs. It is still claimed once.
        """

    def started(self, trial: TrialId, attempt: int, queue: str) -> None:
        """Note that an attempt has started in a slot of this queue. *trial* may name a further task."""

    def ended(self, trial: TrialId, attempt: int) -> None:
        """Note that an attempt has ended, or was withdrawn before its start. Its slot is free."""

    def lost(self, trial: TrialId, attempt: Attempt) -> None:
        """Note that the driver has ended an attempt as LOST, because its lease expired."""

    def offered(self, resources: Resources) -> int:
        """Return the number of slots, free or not, that offer *resources*, as of the last refresh."""

    def free(self, resources: Resources) -> int:
        """Return how many slots that offer *resources* have no running or waiting attempt."""

    def resource_string(self) -> str:
        """Return the resources of all slots as text for people."""

    def has_gpus(self) -> bool | None:
        """Return whether any slot has a GPU. None if there are no slots."""

    def queued(self) -> set[tuple[TrialId, int]] | None:
        """Return the attempts sent by ``publish`` that wait for a slot. None if that is unknown.

        A pair has the name of the trial, or of a further task, and the attempt's number. If an attempt was journaled
        more than 10 s ago, has not started, and is missing in the result, the driver publishes it again.
        """

    def read_log(self, worker: str, trial: TrialId, attempt: int, stream: LogStream, offset: int) -> LogChunk:
        """Return a part of an attempt's output from its worker.

        Empty if the backend records no output.

        Raises:
            LogUnavailable: the output can't be read.
        """

    def close(self) -> None:
        """Close all connections. Running attempts continue, for the next driver."""


class Offer(NamedTuple):
    """A staged attempt to publish, with the arguments of ``BackendSession.publish``."""

    trial: TrialId
    attempt: int
    config: Config


@runtime_checkable
class TakesResources(Protocol):
    """Optional methods of a session whose attempts may need different resources.

    Without them, an experiment with resources by config is refused.
    """

    def expect(self, resources: Resources) -> None:
        """From now on, also count slots with these resources in ``slots``."""

    def asks(self, trial: TrialId, attempt: int, resources: Resources) -> None:
        """Note the resources of a staged attempt, before it is published.

        From now on, slots with these resources count in ``slots``. It is also called for attempts that an earlier
        driver has staged.
        """


@runtime_checkable
class TakesSeveralTasks(Protocol):
    """Optional attribute of a session whose attempts may have several tasks.

    Without it, an experiment whose trials take several slots is refused. The driver publishes such an attempt once, and
    the backend claims each task by its name (``mqtune.core.tasks``). All tasks begin when the last claim is granted,
    and each ends with ``Journal.end``. ``slots``, ``offered`` and ``free`` count attempts and not tasks.
    """

    #: Always True.
    takes_several_tasks: bool


@runtime_checkable
class PublishesMany(Protocol):
    """Optional method of a session: publish many attempts more cheaply than one by one."""

    def publish_all(self, offers: Sequence[Offer]) -> None:
        """Offer staged attempts to the slots in this order, like ``publish`` for each.

        If it raises, some may have been offered. Each may be published again.
        """
