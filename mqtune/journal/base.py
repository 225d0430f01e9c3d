"""The contract of a journal, which the Redis journal and its in-memory twin keep."""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from mqtune.core.codec import Number, decode_value, encode_value
from mqtune.core.errors import MessageVersionError
from mqtune.core.events import START, Requested
from mqtune.core.plain import from_plain
from mqtune.core.seats import seat_in
from mqtune.core.timing import Timing
from mqtune.core.trial import CheckpointId, Config, Intent, TrialId
from mqtune.journal.room import Room

if TYPE_CHECKING:
    from mqtune.checkpoints import CheckpointStore

#: Answers to a worker that are not intents: its attempt no longer counts; earlier reports never arrived.
FENCED: Final = "fenced"
GAP: Final = "gap"
#: Behind an answer to ``report`` or ``saved``: what else the attempt sends is to wait until the journal has room.
WAIT: Final = "wait"

#: The orders of an attempt: an intent's value; while there is no intent, the words of its ``Order``s, separated by a
#: space, or nothing. Behind such words, from ``report`` and ``saved``, WAIT; in place of them, from ``renew``,
#: UNDRIVEN: nobody drives the experiment any more, and the attempt is to be requeued. Else FENCED or GAP. Each answer
#: repeats all orders.
Answer = str
#: Why a claim is refused. Only a seat of a gang is "beside" another one, which its worker has already, or comes "after"
#: another gang, which was staged before and lacks a seat.
Refusal = Literal["unknown", "superseded", "taken", "ended", "revoked", "undriven", "quota", "beside", "after"]
#: A seat of a gang whose other seats are not all taken yet: its worker holds it, and claims it again; or has given it
#: back.
Seated = Literal["seated", "left"]
#: By what a seat has ended: by itself, or as it was told; by a failure of user code; or by its worker, which gives it
#: back.
EndedBy = Literal["itself", "failure", "worker"]
#: How an attempt has fared on its device: well; failed at once; or failed by an error that says that the device is
#: broken.
Fared = Literal["well", "failed", "broken"]
LossPolicy = Literal["continue", "finish", "stop"]
Intended = Literal["running", "unclaimed", "ended", "superseded"]
#: What must be so of an attempt that is ended as lost: it runs and its lease has run out; it runs; or it is not under
#: way any more.
Guard = Literal["expired", "any", "gone"]


class OnLoss(NamedTuple):
    """The policy of workers once nobody has driven an experiment for *grace_s* seconds, until somebody does again.

    With "continue" nothing changes; with "finish" no attempt is claimed; with "stop" running attempts are requeued,
    too.
    """

    policy: LossPolicy = "continue"
    grace_s: float = 0.0


class Entry(NamedTuple):
    """One journal entry: its id, and an encoded event."""

    id: str
    data: bytes


def new_token() -> str:
    """Return a token for a claim.

    It is short, as each renewal carries it, and too long to be guessed or drawn again.
    """
    return secrets.token_hex(8)


class Chapter(NamedTuple):
    """The oldest entries of a journal behind the chapters before it.

    It is a file in the experiment's store, which has taken them from the server. ``id`` names it there and has the hash
    of its content, ``first`` and ``last`` are the ids of its first and last entry, ``entries`` says how many it has,
    and ``size`` how many bytes these are.
    """

    id: CheckpointId
    first: str
    last: str
    entries: int
    size: int


class Claim(NamedTuple):
    """One claim of an attempt, or of a seat of it, which ``trial`` then names.

    ``token`` is unique to it and fences all its later writes.
    """

    trial: TrialId
    attempt: int
    token: str

    @property
    def seat(self) -> tuple[TrialId, int]:
        """The trial, and the number of the seat."""
        return seat_in(self.trial)

    @property
    def mark(self) -> str:
        """The part of the token in the names of the claim's folders and checkpoints.

        Another claim of the same attempt has another one.
        """
        return self.token[:8]


def revocation(trial: TrialId, attempt: int) -> str:
    """Return the id of the request that stops the trial of a revoked attempt, which no worker may begin."""
    return f"revoke/{trial}/{attempt}"


class Assignment(NamedTuple):
    """The work of an attempt; encoded as a map, of which a reader ignores unknown keys.

    ``checkpoint`` is the one that it starts from, or empty; ``ttl_s`` is how long it may run in seconds, None for ever;
    ``gang`` says how many seats it has and what these ask for (``Resources.gang``), and is empty for one seat.
    """

    config: Config
    checkpoint: CheckpointId = CheckpointId("")
    ttl_s: Number | None = None
    gang: str = ""

    @property
    def seats(self) -> int:
        """How many seats the attempt has."""
        return seats_in(self.gang)

    def encode(self) -> bytes:
        """Return the assignment as Redis keeps it."""
        return encode_value(self._asdict())

    @classmethod
    def decode(cls, data: bytes) -> Assignment:
        """Return the assignment that *data* encodes.

        Raises:
            MessageVersionError: the bytes are malformed.
        """
        try:
            known = cls._field_defaults | decode_value(data)
            return from_plain(cls, [known[name] for name in cls._fields])
        except (ValueError, TypeError, LookupError) as error:
            raise MessageVersionError(f"malformed assignment {data[:100]!r}: {error}") from None


def seats_in(gang: str) -> int:
    """Return how many seats an attempt has, by ``Assignment.gang``."""
    count = gang.partition(":")[0]
    return int(count) if count.isdecimal() and len(count) < _SEAT_DIGITS else 1


class Grant(NamedTuple):
    """A lease that a worker was given.

    It has the assignment, the time of the trial's last report (0 if there is none), and seat 0's address.
    """

    assignment: Assignment
    timestamp: float
    address: str = ""


class Unclaimed(NamedTuple):
    """An attempt that is staged and not claimed yet, and the worker that has taken it from its queue, if one has.

    ``importing_s`` is for how many seconds that worker has been importing the trainable; None while it waits for
    something else.
    """

    trial: TrialId
    attempt: int
    worker: str = ""
    importing_s: float | None = None


class UnderWay(NamedTuple):
    """Which of some attempts are under way, in their order, and the id of the newest entry at that moment, or empty."""

    newest: str
    under_way: list[bool]


class Order(NamedTuple):
    """An order to an attempt that does not end it; a later one of its kind takes its place."""

    trial: TrialId
    attempt: int
    word: str

    @property
    def kind(self) -> str:
        """The word without its number: "save" or "go"."""
        return self.word.partition(":")[0]

    @property
    def number(self) -> int:
        """The number of a "save", or the report behind which a trial goes on."""
        return int(self.word.split(":")[1])

    @classmethod
    def save(cls, trial: TrialId, attempt: int, number: int) -> Order:
        """Return the order to save a checkpoint.

        An order whose number is no higher than an earlier one's asks for nothing new.
        """
        return cls(trial, attempt, f"save:{number}")

    @classmethod
    def go(cls, trial: TrialId, attempt: int, sequence: int, answer: str = "") -> Order:
        """Return the order to go on after a report.

        The driver has decided on it, in lockstep, or answers the question in it. An answer has neither a space nor a
        colon.
        """
        return cls(trial, attempt, f"go:{sequence}:{answer}" if answer else f"go:{sequence}")


class Others(NamedTuple):
    """How an experiment's attempts fare elsewhere.

    ``well`` and ``failed`` are the seconds since another worker has noted that; infinite where none has. ``broken``
    says whether another device counts as broken, and ``running`` how many attempts have a lease, on any worker.
    """

    well: float
    failed: float
    broken: bool
    running: int


#: A number of seats has fewer digits.
_SEAT_DIGITS: Final = 5
#: How long a device counts as broken that was noted as such; in that time no other device is noted.
BROKEN_S: Final = 3600.0


class LastAttempt(NamedTuple):
    """The last attempt of a trial that was staged, and the time of the trial's last report (0 if there is none)."""

    trial: TrialId
    attempt: int
    timestamp: float


class Segment(NamedTuple):
    """Consecutive reports of one attempt: the first one's sequence number, how many, the last one's time, the bytes.

    One that begins with number 0 has no reports, and only asks for the answer.
    """

    claim: Claim
    first: int
    size: int
    timestamp: float
    data: bytes


class DriverState(NamedTuple):
    """What a driver tells the server with each heartbeat, for workers and for people elsewhere.

    Attributes:
        on_loss: what workers do when nobody drives.
        waits: why nothing starts now, for people.
        read_to: the id of the newest entry that the driver has read; empty for none.
        most_bytes: how many bytes the journal may have until trials are told to wait; 0 for any number.
    """

    on_loss: OnLoss = OnLoss()
    waits: str = ""
    read_to: str = ""
    most_bytes: int = 0


class ServerState(NamedTuple):
    """What the server answers to a heartbeat: the bytes of the journal's entries there."""

    journal_bytes: int = 0


class Journal(ABC):
    """One experiment's events, in one order for everybody, and the leases and intents of its attempts.

    Every method may be repeated after a failure whose outcome is unknown: an event is not written twice. Events are
    appended and published in one atomic step. All methods may be called from any thread, and raise BrokerUnavailable
    when no server answers. Those of the driver raise DriverFenced once a later driver has the lock, and JournalGone
    when the server has lost the lock of this one.
    """

    experiment: str
    #: The times by which it goes.
    timing: Timing = Timing()
    #: Where this driver may keep chapters; without one nothing leaves the server.
    chapter_store: CheckpointStore | None = None
    #: The number of times that the server was away, a connection broke or led to another server: it may have lost data.
    outages: int = 0
    #: Whether entries can be read more than once.
    keeps: bool = True
    #: Whether workers may die, and attempts be lost on their way to them, so that somebody has to look for those.
    loses_attempts: bool = True
    #: Whether waiting takes real time; else time passes only while the driver waits, and nothing else happens
    #: meanwhile.
    is_live: bool = True
    #: Set when ``read`` saw workers join or leave; its reader clears it.
    fleet_changed: bool = False

    # For the driver.

    def room(self) -> Room | None:
        """Return the room in the server's memory; None where there is no server, or this account may not know."""
        return None

    @abstractmethod
    def lock(self, holder: str, description: str, hold_s: float, *, dead: str = "") -> None:
        """Take or keep the driver's lock for *hold_s* seconds; from then on this object writes with its epoch.

        What workers do without a driver stays as the last heartbeat has said.

        Args:
            holder: a token that no other driver has.
            description: who that is, for people.
            hold_s: how long it is held.
            dead: the description of a driver that is known to be dead; its lock is taken without waiting.

        Raises:
            NameTaken: another driver holds it; the message carries its description.
        """

    @abstractmethod
    def heartbeat(self, holder: str, hold_s: float, state: DriverState) -> ServerState:
        """Keep the driver's lock for *hold_s* more seconds, and exchange states with the server.

        Args:
            holder: the token by which this object has taken the lock.
            hold_s: how long it is held.
            state: what workers, and people elsewhere, are to know of the driver.
        """

    @abstractmethod
    def unlock(self, holder: str) -> None:
        """Release the lock; a no-op when another driver holds it."""

    @abstractmethod
    def definition(self) -> bytes | None:
        """Return the experiment's definition, or None when there is no such experiment."""

    @abstractmethod
    def record(self, *events: bytes, definition: bytes | None = None) -> None:
        """Append, in one step, events that no worker acts on.

        The definition, if there is one, replaces the experiment's earlier one.
        """

    @abstractmethod
    def stage(self, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> bool:
        """Make an attempt claimable in place of the one before it; return False when it or a later one already was."""

    @abstractmethod
    def intend(self, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Intended:
        """Append the decision to end an attempt and notify its worker; end an unclaimed attempt at once, by *ended*.

        An attempt that the server has forgotten counts as ended; ``lose`` journals its end.
        """

    @abstractmethod
    def close_trial(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        """Append that a trial is over or paused, whose attempt *attempt* has ended.

        Return False when a later attempt was staged, or when the event is repeated. The server has forgotten trials
        that ended long ago, and takes their events.
        """

    @abstractmethod
    def order(self, orders: Sequence[Order]) -> list[bool]:
        """Give attempts orders, which are no news, and notify their workers.

        Return which of them run: the others get none. An intent goes before all orders.
        """

    @abstractmethod
    def drop_checkpoints(self, checkpoints: Sequence[CheckpointId], event: bytes) -> None:
        """Append that these checkpoints are deleted, and delete those that the server holds.

        Doing it again appends nothing, and deletes what was put there again.
        """

    @abstractmethod
    def checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        """Return the data of a checkpoint that the server holds, or None when it is gone."""

    @abstractmethod
    def expired(self) -> list[TrialId]:
        """Return the trials whose attempt's lease has expired, by the names of the seats."""

    @abstractmethod
    def look(self, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> UnderWay:
        """Return which of the attempts that the driver considers under way are, and repair their bookkeeping.

        An attempt that is only missing from the leases, or from the unclaimed attempts, is put back there, with a lease
        of *lease_s* seconds, which a worker that still runs it renews.
        """

    @abstractmethod
    def lose(
        self, trial: TrialId, attempt: int, guard: Guard, event: bytes, timestamp: float = 0.0, read: str = ""
    ) -> bool:
        """End an attempt as lost; return False when what *guard* says is not so.

        An attempt that runs is not lost before the driver has read all reports of its trial: behind the end no
        scheduler is shown them. A later attempt of the trial is no guard against "gone" if the driver has read the
        whole journal and found none: somebody has written nonsense.

        Args:
            trial: the trial.
            attempt: the attempt's number.
            guard: what must be so.
            event: the entry that ends it.
            timestamp: the time of the trial's last report, which may be gone, too.
            read: the id of the last entry that the driver has read.
        """

    @abstractmethod
    def unclaimed(self, *, older_than_s: float = 0.0, count: int | None = None) -> list[Unclaimed]:
        """Return the attempts that were staged more than *older_than_s* seconds ago, each seat of a gang by itself.

        Of more than *count* it returns those that were staged first.
        """

    @abstractmethod
    def read(self, after: str, *, count: int, block_s: float = 0) -> list[Entry]:
        """Return up to *count* entries after the id *after*, in order, waiting up to *block_s* seconds for the first.

        Fewer than *count* are all that there are. Those in chapters are read from the store. With *block_s*, it also
        returns, perhaps without an entry, when a worker joins or leaves the fleet.

        Raises:
            ChapterUnavailable: a chapter with some of them can't be read.
        """

    def first(self) -> Entry | None:
        """Return the first entry of all, which the server keeps; None where there is none."""
        found = self.read(START.entry, count=1)
        return found[0] if found else None

    @abstractmethod
    def holds(self, entry: str) -> bool:
        """Return whether the journal has the entry of this id; it keeps it, unless the server loses data.

        Raises:
            ChapterUnavailable: the chapter that would have it can't be read.
        """

    @abstractmethod
    def chapters(self) -> list[Chapter]:
        """Return the chapters, in their order.

        Raises:
            MessageVersionError: what the server has in their place is nothing of the kind.
        """

    @abstractmethod
    def trim(self, chapter: Chapter, before: str) -> int | None:
        """Have readers find a chapter's entries in the store, and remove them from the server.

        Return how many bytes of the journal are left there. Return None, and do nothing, in these cases: the last
        chapter does not end with the entry *before*; that is empty, and there are chapters, or the journal begins with
        another entry than this one; the server has lost the chapter's last entry; or that is the newest. A chapter that
        is the last one already is not added again.
        """

    @abstractmethod
    def checkpoints(self) -> set[CheckpointId]:
        """Return the checkpoints that the server holds."""

    @abstractmethod
    def bring_checkpoint(self, checkpoint: CheckpointId, data: bytes) -> None:
        """Store a checkpoint's data that the server has lost; what it has stays."""

    @abstractmethod
    def restore(
        self,
        entries: Callable[[], Iterable[Entry]],
        attempts: Sequence[LastAttempt],
        events: Sequence[bytes],
        *,
        requests: Mapping[str, str],
        definition: bytes,
        chapters: Sequence[Chapter] = (),
        first: Entry | None = None,
    ) -> None:
        """Restore what the server has lost, and the lock of the driver that calls this.

        In one step these chapters, these entries, with their ids, and the events after them replace the journal's
        content. From then on every attempt has ended, no lease is held, and no claim counts. Checkpoints that are still
        there stay.

        Args:
            entries: returns all entries behind the chapters, in order, at least one, as often as it is called.
            attempts: the last one of every trial, in the entries or on the server.
            events: appended after the entries.
            requests: for each request among the entries, its id and that of its entry.
            definition: the experiment's.
            chapters: those that are in the store.
            first: the first entry of all, where there are chapters.
        """

    @abstractmethod
    def erase(self, trials: Sequence[TrialId]) -> None:
        """Delete the experiment with all these trials, except for the lock.

        Workers that run its attempts are fenced from then on. The ids of later entries are higher than those of deleted
        ones.
        """

    @abstractmethod
    def request(self, event: Requested) -> str:
        """Append a request to the driver, and return the id of its entry; for anybody, also while no driver lives.

        A request of an id that is in the journal already is not written again, and its entry's id is returned.

        Args:
            event: the request.

        Raises:
            JournalGone: there is no such experiment, or the server has lost it and no driver has put it back yet.
        """

    @abstractmethod
    def hold(self, held: Sequence[Unclaimed], hold_s: float) -> None:
        """Note that workers hold these attempts and will claim them, for *hold_s* more seconds.

        Ignore those that are not staged. The driver doesn't publish held attempts again. Any worker may still claim one
        first.
        """

    @abstractmethod
    def claim(
        self, claim: Claim, worker: str, lease_s: float, event: bytes, address: str = ""
    ) -> Grant | Refusal | Seated:
        """Take the lease of an attempt and append its start; at most one claim of an attempt is ever granted.

        Of a gang, each seat is claimed. Until all are, a claim holds its seat for *lease_s* seconds: it is repeated to
        hold it longer and to find out, and with 0 seconds gives the seat back. The claim that takes the last one grants
        all, and appends the starts of all in one step. Seats go to the gang first that was staged first, of those that
        ask for the same.

        Without a driver no claim is granted under the policies "finish" and "stop". None is granted beyond a quota of
        the server's; the attempt stays staged then, and counts as staged just now. None is granted, whether a driver
        lives or not, of an attempt whose revocation was requested (:func:`revocation`) before it began.

        Args:
            claim: the claim.
            worker: the worker's name.
            lease_s: for how long it has the lease, or the seat.
            event: the start.
            address: where the other seats of a gang reach this one.
        """

    @abstractmethod
    def report(self, segments: Sequence[Segment]) -> list[Answer]:
        """Append one entry with the segments that are new and not fenced; an attempt has at most one segment.

        A repeated call must carry the same segments. They are taken in any case: where the journal is full,
        the attempts that continue are told to WAIT with more. A server without memory refuses this, ``put_checkpoint``
        and ``saved`` by BrokerFull; the caller is not kept waiting.
        """

    @abstractmethod
    def put_checkpoint(self, claim: Claim, checkpoint: CheckpointId, data: bytes) -> Answer:
        """Store a checkpoint's data on the server until it is dropped.

        A report or ``saved`` must name it afterwards.
        """

    @abstractmethod
    def saved(self, claim: Claim, events: Mapping[CheckpointId, bytes]) -> Answer:
        """Append that checkpoints were saved without a report, at least one.

        They are appended once, unless the attempt saved another in between.
        """

    @abstractmethod
    def renew(self, claims: Sequence[Claim], lease_s: float) -> list[Answer]:
        """Renew leases, also expired ones of attempts that were not ended as lost.

        The answers also say that the driver is lost.
        """

    @abstractmethod
    def compare(self, fared: Fared, worker: str, device: str) -> Others:
        """Note how an attempt has just fared on a worker's device, and return how others do.

        Of each kind the last note is kept, but the first one of a broken device for ``BROKEN_S``: further ones count as
        failed. While no server answers, or it is full, it raises BrokerUnavailable at once: a note that is lost does no
        harm.
        """

    @abstractmethod
    def end(self, claim: Claim, event: bytes, reports: int = 0, by: EndedBy = "itself") -> bool:
        """Append the end of an attempt and release its lease.

        A gang has ended with its last seat. The end of seat 0 is appended then, or the end of another seat that came
        first and has failed or was given back by its worker, as the others end because of that. The latter goes before
        a failure: a training fails where a part of it is gone. With such an end, or that of seat 0, the others get
        orders to end.

        Return False, and do nothing, when the attempt no longer counts, or the journal lacks some of its first
        *reports* reports.
        """


#: An id begins with a number of 64 bits.
_ENTRY_TIME: Final = re.compile(r"(\d{1,20})-", re.ASCII)


def entry_time(entry: str) -> float:
    """Return when an entry was written, in seconds since the epoch by the server's clock.

    It is 0 for a malformed id.
    """
    return int(found[1]) / 1000 if (found := _ENTRY_TIME.match(entry)) else 0.0


def entry_order(entry: str) -> tuple[int, int]:
    """Return an entry's id as numbers, whose order is the journal's."""
    time_ms, _, number = entry.partition("-")
    return int(time_ms), int(number)
