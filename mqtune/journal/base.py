"""What a journal is: the contract that Redis and the in-memory twin keep."""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import MessageVersionError
from mqtune.core.events import Requested
from mqtune.core.trial import CheckpointId, Config, Intent, TrialId

__all__ = [
    "FENCED",
    "GAP",
    "Answer",
    "Assignment",
    "Claim",
    "DriverSide",
    "Entry",
    "Grant",
    "Held",
    "Intended",
    "Journal",
    "LastAttempt",
    "LossPolicy",
    "OnLoss",
    "Reconciled",
    "Refusal",
    "Released",
    "Segment",
    "entry_order",
]

#: Answers to a worker that are no intents: its attempt no longer counts; reports before these never arrived.
FENCED: Final = "fenced"
GAP: Final = "gap"

#: An intent's value ("" for run), FENCED or GAP; while there is no intent, words with a space between: "save:<n>" for the n-th
#: wish that a checkpoint be saved, and, from ``renew``, "go:<sequence>" for how far a trial in lockstep is cleared, or
#: UNDRIVEN alone: nobody drives the experiment any more, and the attempt is to be handed back. Words come again with each
#: answer.
Answer = str
Refusal = Literal["unknown", "superseded", "taken", "ended", "undriven"]
LossPolicy = Literal["continue", "finish", "stop"]
Intended = Literal["running", "unclaimed", "ended", "superseded"]


class OnLoss(NamedTuple):
    """What workers do once nobody has driven an experiment for *grace_s* seconds, until somebody does again.

    With "continue" nothing; with "finish" no attempt is claimed any more; with "stop" those that run are handed back, too.
    """

    policy: LossPolicy = "continue"
    grace_s: float = 0.0


class Entry(NamedTuple):
    """One journal entry: its id, and an encoded event."""

    id: str
    data: bytes


class Claim(NamedTuple):
    """One claim of an attempt; ``token`` is unique to it and fences all its later writes."""

    trial: TrialId
    attempt: int
    token: str


class Assignment(NamedTuple):
    """What an attempt is to do; it travels as a map, and a reader ignores what it doesn't know.

    ``checkpoint`` is the one that it starts from, or empty; ``ttl_s`` how long it may run (None: for ever).
    """

    config: Config
    checkpoint: CheckpointId = CheckpointId("")
    ttl_s: float | None = None

    def encode(self) -> bytes:
        """Return it as it stands in Redis."""
        return encode_value(self._asdict())

    @classmethod
    def decode(cls, data: bytes) -> Assignment:
        """Return what *data* says.

        Raises:
            MessageVersionError: the bytes are no assignment.
        """
        try:
            known = decode_value(data)
            found = cls(**{name: known[name] for name in cls._fields if name in known})
        except (ValueError, TypeError, LookupError) as error:
            raise MessageVersionError(f"an attempt is to do {data[:100]!r}, which can't be read: {error}") from None
        config, checkpoint, ttl_s = found
        if type(config) is not dict or type(checkpoint) is not str or not isinstance(ttl_s, int | float | None):
            raise MessageVersionError(f"an attempt is to do {reprlib.repr(tuple(found))}, which can't be done")
        return found


class Grant(NamedTuple):
    """What a worker gets with a lease: the assignment, and the time of the trial's last report (0 if there is none)."""

    assignment: Assignment
    timestamp: float


class Held(NamedTuple):
    """An attempt that a worker has taken from its queue and not claimed yet.

    ``importing_s`` is for how long it has been importing the trainable for it; None while it waits for something else.
    """

    trial: TrialId
    attempt: int
    worker: str
    importing_s: float | None = None


class Reconciled(NamedTuple):
    """Of attempts that were asked about, whether each is under way; and the id of the newest entry then, or empty."""

    newest: str
    under_way: list[bool]


class Released(NamedTuple):
    """That, in lockstep, the driver has decided on a report of an attempt, and that its trial may go on."""

    trial: TrialId
    attempt: int
    sequence: int


class LastAttempt(NamedTuple):
    """The last attempt of a trial that was staged, and the time of the trial's last report (0 if there is none)."""

    trial: TrialId
    attempt: int
    timestamp: float


class Segment(NamedTuple):
    """Consecutive reports of one attempt: the first one's sequence number, how many, the last one's time, the bytes."""

    claim: Claim
    first: int
    size: int
    timestamp: float
    data: bytes


class DriverSide(ABC):
    """What a driver does with a journal, beside reading it.

    Every method may be repeated after a failure whose outcome is not known: what was written is not written again.
    Events are appended and published in one atomic step. Methods of the driver raise DriverFenced once a later driver
    has the lock, and JournalGone when the server has lost that this one had it. All methods may be called from any thread,
    and raise BrokerUnavailable when no server answers.
    """

    experiment: str
    #: What the workers are told with each ``lock``.
    on_loss: OnLoss = OnLoss()

    @property
    @abstractmethod
    def outages(self) -> int:
        """How often the server was away and came back, or may have: as often as this object had to connect again."""

    @abstractmethod
    def lock(self, owner: str, description: str, hold_s: float, *, dead: str = "") -> None:
        """Take or keep the driver's lock for *hold_s* seconds; from then on this object writes with its epoch.

        Args:
            owner: a token that no other driver has.
            description: who that is, for people.
            hold_s: how long it is held.
            dead: the description of a driver that is known to be dead; its lock is taken without waiting.

        Raises:
            NameTaken: another driver holds it; the message carries its description.
        """

    @abstractmethod
    def unlock(self, owner: str) -> None:
        """Give the lock back; nothing happens when another driver holds it."""

    @abstractmethod
    def definition(self) -> bytes | None:
        """Return what the experiment was created with, or None when there is no such experiment."""

    @abstractmethod
    def record(self, event: bytes, *, definition: bytes | None = None) -> None:
        """Append an event that concerns the whole experiment; of the definitions that come with such events the newest counts."""

    @abstractmethod
    def stage(self, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> bool:
        """Make an attempt claimable, superseding the one before it; False when it or a later one already was."""

    @abstractmethod
    def intend(self, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Intended:
        """Append the decision to end an attempt and tell its worker; an unclaimed one is ended at once by *ended*."""

    @abstractmethod
    def close_trial(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        """Append that a trial, whose attempt *attempt* has ended, is over or paused; False when a later one was staged, or for an event again.

        A trial that the server doesn't know has ended so long ago that it was forgotten.
        """

    @abstractmethod
    def request_save(self, trial: TrialId, attempt: int) -> bool:
        """Have a running attempt save a checkpoint as soon as it can; False when it doesn't run. Each call is another wish."""

    @abstractmethod
    def release(self, released: Sequence[Released]) -> None:
        """Let trials in lockstep go on behind these reports; repeating it does no harm."""

    @abstractmethod
    def drop_checkpoints(self, checkpoints: Sequence[CheckpointId], event: bytes) -> None:
        """Append that these checkpoints are deleted, and delete those that are held here."""

    @abstractmethod
    def checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        """Return the data of a checkpoint that is held here, or None when it is gone."""

    @abstractmethod
    def expired(self) -> list[TrialId]:
        """Return the trials whose attempt's lease has run out."""

    @abstractmethod
    def reap(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        """End an attempt whose lease has run out; False when it was renewed or ended in between."""

    @abstractmethod
    def reconcile(self, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> Reconciled:
        """Say of attempts that the driver takes to be under way whether they are.

        What only lacks its place among the leases, or among those that nobody has claimed, gets it back: a lease for *lease_s*
        seconds, which a worker that still runs it renews.
        """

    @abstractmethod
    def void(self, trial: TrialId, attempt: int, timestamp: float, event: bytes) -> bool:
        """End an attempt that is under way no more, though the journal doesn't say so; False when it is, or a later one was staged.

        *timestamp* is the time of the trial's last report.
        """

    @abstractmethod
    def forfeit_leases(self) -> None:
        """Have all leases run out now; for a driver that knows that no worker is left, such as that of a private server."""

    @abstractmethod
    def unclaimed(self, older_than_s: float) -> list[TrialId]:
        """Return the trials whose attempt was staged more than *older_than_s* seconds ago and that no worker has claimed, or holds."""

    @abstractmethod
    def held(self) -> list[Held]:
        """Return attempts that workers hold; of very many, some of those that were staged first."""


class Journal(DriverSide):
    """One experiment's events, in one order for everybody, and the leases and intents of its attempts."""

    outages: int = 0
    #: Whether what was read can be read again.
    keeps: bool = True
    #: Set when ``read`` saw that workers joined or left; its reader clears it.
    fleet_changed: bool = False

    @abstractmethod
    def read(self, after: str, *, count: int, block_s: float = 0) -> list[Entry]:
        """Return up to *count* entries after the id *after*, in order, waiting up to *block_s* seconds for the first.

        With *block_s*, it also returns, perhaps without an entry, when a worker joins or leaves the fleet.
        """

    @abstractmethod
    def holds(self, entry: str) -> bool:
        """Return whether the entry of this id is there; once it is, only a server that loses what it had changes that."""

    @abstractmethod
    def checkpoints(self) -> set[CheckpointId]:
        """Return the checkpoints that are held here."""

    @abstractmethod
    def restore(
        self,
        entries: Callable[[], Iterable[Entry]],
        attempts: Sequence[LastAttempt],
        events: Sequence[bytes],
        *,
        requests: Mapping[str, str],
        definition: bytes,
        owner: str,
        description: str,
        hold_s: float,
    ) -> None:
        """Put back what the server has lost; for the driver, which then has its lock again as before.

        In one step the journal gets these entries, with their ids, and behind them the events, in place of all that it has.
        From then on every attempt has ended, no lease is held, and nobody's claim counts. Checkpoints that are still there stay.

        Args:
            entries: returns all entries, in order, at least one, as often as it is called.
            attempts: of every trial that there is, here or on the server; who drives knows them all.
            events: what follows the entries.
            requests: for each request among the entries, its id and that of its entry.
            definition: what the experiment was created with.
            owner: the driver's token.
            description: who that is, for people.
            hold_s: how long the lock is held.
        """

    @abstractmethod
    def erase(self, trials: Sequence[TrialId]) -> None:
        """Forget the experiment, with all these trials, but for the lock; whoever runs an attempt of it is fenced from then on."""

    @abstractmethod
    def request(self, event: Requested) -> str:
        """Append a request to the driver, and return the id of its entry; for anybody, also while no driver lives.

        A request of an id that is in the journal already is not written again, and its entry's id is returned.

        Raises:
            JournalGone: there is no such experiment, or the server has lost it and no driver has put it back yet.
        """

    @abstractmethod
    def hold(self, held: Sequence[Held], hold_s: float) -> None:
        """Say that workers have these attempts, and will claim them, for *hold_s* more seconds; those that are not staged are left out.

        Nobody need publish them again meanwhile. Whoever claims one first has it all the same.
        """

    @abstractmethod
    def claim(self, claim: Claim, worker: str, lease_s: float, event: bytes) -> Grant | Refusal:
        """Take the lease of an attempt and append its start; at most one claim of an attempt is ever granted.

        None is, after the driver's loss, under a policy by which nothing starts then.
        """

    @abstractmethod
    def report(self, segments: Sequence[Segment]) -> list[Answer]:
        """Append one entry with the segments that are new and not fenced; an attempt has at most one segment.

        A repeated call must carry segments that are cut as they were.
        """

    @abstractmethod
    def put_checkpoint(self, claim: Claim, checkpoint: CheckpointId, data: bytes) -> Answer:
        """Hold a checkpoint's data here until it is dropped; nothing names it until a report, or ``saved``, does."""

    @abstractmethod
    def saved(self, claim: Claim, checkpoint: CheckpointId, event: bytes) -> Answer:
        """Append that there is a checkpoint that no report came with; once, unless the attempt saved another in between."""

    @abstractmethod
    def renew(self, claims: Sequence[Claim], lease_s: float) -> list[Answer]:
        """Renew leases, also those that ran out and were not reaped yet; the answers say also that the driver is lost."""

    @abstractmethod
    def end(self, claim: Claim, event: bytes) -> bool:
        """Append the end of an attempt and give up its lease; False when the attempt no longer counts."""


def entry_order(entry: str) -> tuple[int, int]:
    """Return an entry's id as numbers, whose order is the journal's."""
    time_ms, _, number = entry.partition("-")
    return int(time_ms), int(number)
