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
#: At the end of an answer to ``report`` or ``saved``: the attempt's next data waits until the journal has capacity.
WAIT: Final = "wait"

#: The orders of an attempt: an intent's value or, without an intent, the words of its ``Order``s, separated by spaces.
#: ``report`` and ``saved`` add WAIT to these words. ``renew`` replaces them by UNDRIVEN if the experiment has no
#: driver: the attempt is to be requeued. Else it is FENCED or GAP. Each answer repeats all orders.
Answer = str
#: The reason why a claim is refused. For a seat of a gang: "beside" is a second seat of its worker, and "after" means
#: that a gang that was staged earlier lacks a seat.
Refusal = Literal["unknown", "superseded", "taken", "ended", "revoked", "undriven", "quota", "beside", "after"]
#: A seat of an incomplete gang: its worker has reserved it and claims it again, or has released it.
Seated = Literal["seated", "left"]
#: The cause of a seat's end: by itself or by an order, a failure of user code, or its worker, which requeues it.
EndedBy = Literal["itself", "failure", "worker"]
#: The result of an attempt on its device: well, failed immediately, or failed by an error that means a broken device.
Fared = Literal["well", "failed", "broken"]
LossPolicy = Literal["continue", "finish", "stop"]
Intended = Literal["running", "unclaimed", "ended", "superseded"]
#: The condition for ending an attempt as lost: its lease has expired, it runs, or it is not under way any more.
Guard = Literal["expired", "any", "gone"]


class OnLoss(NamedTuple):
    """The policy of workers while an experiment has had no driver for *grace_s* seconds.

    With "continue" nothing changes. With "finish" no attempt is claimed. "stop" also requeues running attempts.
    """

    policy: LossPolicy = "continue"
    grace_s: float = 0.0


class Entry(NamedTuple):
    """A journal entry: its id and an encoded event."""

    id: str
    data: bytes


def new_token() -> str:
    """Return a token for a claim: short for renewals, and too long to be guessed or drawn again."""
    return secrets.token_hex(8)


class Chapter(NamedTuple):
    """A file in the experiment's store with a journal's entries after the previous chapters.

    ``id`` is its name there, with the hash of its content. ``first`` and ``last`` are the ids of its first and last
    entry, ``entries`` is their number, and ``size`` their bytes.
    """

    id: CheckpointId
    first: str
    last: str
    entries: int
    size: int


class Claim(NamedTuple):
    """A claim of an attempt, or of the seat in ``trial``. Its ``token`` fences later writes."""

    trial: TrialId
    attempt: int
    token: str

    @property
    def seat(self) -> tuple[TrialId, int]:
        """The trial, and the number of the seat."""
        return seat_in(self.trial)

    @property
    def mark(self) -> str:
        """The part of the token in the names of this claim's folders and checkpoints."""
        return self.token[:8]


def revocation(trial: TrialId, attempt: int) -> str:
    """Return the id of the request to stop the trial of a revoked attempt."""
    return f"revoke/{trial}/{attempt}"


class Assignment(NamedTuple):
    """The work of an attempt. It is encoded as a map, and unknown keys are ignored.

    The attempt starts from ``checkpoint``, which may be empty, and may run for ``ttl_s`` seconds, None for ever.
    ``gang`` has the number of seats and their resources (``Resources.gang``), and is empty for one seat.
    """

    config: Config
    checkpoint: CheckpointId = CheckpointId("")
    ttl_s: Number | None = None
    gang: str = ""

    @property
    def seats(self) -> int:
        """The number of the attempt's seats."""
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
    """Return the number of seats in ``Assignment.gang``."""
    count = gang.partition(":")[0]
    return int(count) if count.isdecimal() and len(count) < _SEAT_DIGITS else 1


class Grant(NamedTuple):
    """A worker's lease: assignment, time of the trial's last report or 0, address of seat 0."""

    assignment: Assignment
    timestamp: float
    address: str = ""


class Unclaimed(NamedTuple):
    """A staged, unclaimed attempt, and the worker that has taken it from its queue, or empty.

    ``importing_s`` is the time for which that worker has been importing the trainable, in seconds. It is None if the
    worker waits for something else.
    """

    trial: TrialId
    attempt: int
    worker: str = ""
    importing_s: float | None = None


class UnderWay(NamedTuple):
    """Whether each attempt is under way, and the id of the newest entry then, or empty."""

    newest: str
    under_way: list[bool]


class Order(NamedTuple):
    """An order to an attempt that does not end it. A later order of the same kind replaces it."""

    trial: TrialId
    attempt: int
    word: str

    @property
    def kind(self) -> str:
        """The word without its number: "save" or "go"."""
        return self.word.partition(":")[0]

    @property
    def number(self) -> int:
        """The number of a "save", or the report after which a trial continues."""
        return int(self.word.split(":")[1])

    @classmethod
    def save(cls, trial: TrialId, attempt: int, number: int) -> Order:
        """Return the order to save a checkpoint. A number up to an earlier one repeats that order."""
        return cls(trial, attempt, f"save:{number}")

    @classmethod
    def go(cls, trial: TrialId, attempt: int, sequence: int, answer: str = "") -> Order:
        """Return the order to continue after a report, with the answer to its question.

        An answer has no space and no colon.
        """
        return cls(trial, attempt, f"go:{sequence}:{answer}" if answer else f"go:{sequence}")


class Others(NamedTuple):
    """The results of an experiment's attempts elsewhere.

    ``well`` and ``failed`` are the seconds since another worker's note, or infinite. ``broken`` is whether another
    device counts as broken. ``running`` is the number of leased attempts on all workers.
    """

    well: float
    failed: float
    broken: bool
    running: int


#: More digits than any number of seats has.
_SEAT_DIGITS: Final = 5
#: The time for which a noted device counts as broken. No other device is noted in that time.
BROKEN_S: Final = 3600.0


class LastAttempt(NamedTuple):
    """The last staged attempt of a trial, and the time of its last report or 0."""

    trial: TrialId
    attempt: int
    timestamp: float


class Segment(NamedTuple):
    """Consecutive reports of one attempt: first number, count, time of the last, and bytes.

    A segment from number 0 has no reports and only asks for the answer.
    """

    claim: Claim
    first: int
    size: int
    timestamp: float
    data: bytes


class DriverState(NamedTuple):
    """A driver's state in its heartbeats, for workers and people.

    Attributes:
        on_loss: the policy of workers without a driver.
        waits: the reason why nothing starts now, for people.
        read_to: the id of the newest entry that the driver has read, or empty.
        most_bytes: the size of the journal from which trials have to wait, in bytes; 0 for any size.
    """

    on_loss: OnLoss = OnLoss()
    waits: str = ""
    read_to: str = ""
    most_bytes: int = 0


class ServerState(NamedTuple):
    """The server's answer to a heartbeat: the size of its journal entries, in bytes."""

    journal_bytes: int = 0


class Journal(ABC):
    """An experiment's events, in one order, and the leases and intents of its attempts.

    Every method may be repeated after a failure with an unknown outcome: no event is written twice. Events are appended
    and published in one atomic step. All methods are thread-safe and raise BrokerUnavailable if no server answers. The
    driver's methods raise DriverFenced once a later driver has the lock, and JournalGone if the server has lost the
    lock of this one.
    """

    experiment: str
    #: Its intervals and deadlines.
    timing: Timing = Timing()
    #: The store for chapters. Without one, all entries stay on the server.
    chapter_store: CheckpointStore | None = None
    #: The number of outages: no server, a broken connection, or another server. Each may have lost data.
    outages: int = 0
    #: Whether entries can be read more than once.
    keeps: bool = True
    #: Whether workers may die and attempts may be lost in queues, so that the driver has to check for them.
    loses_attempts: bool = True
    #: Whether waiting takes real time. Otherwise time passes only while the driver waits.
    is_live: bool = True
    #: Set when ``read`` sees workers join or leave. The reader clears it.
    fleet_changed: bool = False

    # For the driver.

    def room(self) -> Room | None:
        """Return the server's free memory. Return None without a server, or without permission."""
        return None

    @abstractmethod
    def lock(self, holder: str, description: str, hold_s: float, *, dead: str = "") -> None:
        """Take or renew the driver's lock for *hold_s* seconds.

        This object then writes with the lock's epoch. The policy of workers without a driver stays that of the last
        heartbeat.

        Args:
            holder: this driver's unique token.
            description: the driver, for people.
            hold_s: the duration of the lock, in seconds.
            dead: the description of a driver that is known to be dead. Its lock is taken without waiting.

        Raises:
            NameTaken: another driver has the lock. The message has its description.
        """

    @abstractmethod
    def heartbeat(self, holder: str, hold_s: float, state: DriverState) -> ServerState:
        """Renew the driver's lock for *hold_s* seconds, and exchange states with the server.

        Args:
            holder: this driver's token, as for ``lock``.
            hold_s: the duration of the lock, in seconds.
            state: the driver's state.
        """

    @abstractmethod
    def unlock(self, holder: str) -> None:
        """Release the lock. Do nothing if another driver has it."""

    @abstractmethod
    def definition(self) -> bytes | None:
        """Return the experiment's definition, or None without such an experiment."""

    @abstractmethod
    def record(self, *events: bytes, definition: bytes | None = None) -> None:
        """Append, in one step, events that no worker acts on. A definition replaces the earlier one."""

    @abstractmethod
    def stage(self, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> bool:
        """Make an attempt claimable. Return False if it or a later one already was."""

    @abstractmethod
    def intend(self, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Intended:
        """Append the decision to end an attempt and notify its worker.

        *ended* ends an unclaimed attempt immediately. An attempt that the server has lost counts as ended. ``lose``
        journals its end.
        """

    @abstractmethod
    def close_trial(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        """Append that a trial is over or paused, after the end of its attempt *attempt*.

        Return False if a later attempt was staged, or if the event is repeated. The server has deleted trials that
        ended long ago, and accepts their events.
        """

    @abstractmethod
    def order(self, orders: Sequence[Order]) -> list[bool]:
        """Give attempts orders, without events, and notify their workers.

        An intent precedes all orders. Return whether each attempt runs: the others get no order.
        """

    @abstractmethod
    def drop_checkpoints(self, checkpoints: Sequence[CheckpointId], event: bytes) -> None:
        """Append that these checkpoints are deleted, and delete those on the server.

        A repeated call appends nothing and deletes checkpoints that were stored again.
        """

    @abstractmethod
    def checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        """Return the data of a checkpoint on the server, or None if it is gone."""

    @abstractmethod
    def expired(self) -> list[TrialId]:
        """Return the trials of attempts with an expired lease, by the names of the seats."""

    @abstractmethod
    def look(self, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> UnderWay:
        """Return whether each attempt is under way, and repair the bookkeeping of those.

        An attempt that is missing only from the leases or from the unclaimed attempts is restored there, with a lease
        of *lease_s* seconds. A worker that runs it renews the lease.
        """

    @abstractmethod
    def lose(
        self, trial: TrialId, attempt: int, guard: Guard, event: bytes, timestamp: float = 0.0, read: str = ""
    ) -> bool:
        """End an attempt as lost. Return False if *guard* does not hold.

        A running attempt is not lost before the driver has read all reports of its trial, as no scheduler sees reports
        after the end. With "gone", a later attempt on the server is ignored if the driver has read the whole journal
        without finding it: that data is invalid.

        Args:
            trial: the trial.
            attempt: the attempt's number.
            guard: the condition.
            event: the entry that ends it.
            timestamp: the time of the trial's last report, which the server may have lost.
            read: the id of the last entry that the driver has read.
        """

    @abstractmethod
    def unclaimed(self, *, older_than_s: float = 0.0, count: int | None = None) -> list[Unclaimed]:
        """Return up to *count* attempts staged more than *older_than_s* seconds ago, oldest first.

        Each seat of a gang is returned separately.
        """

    @abstractmethod
    def read(self, after: str, *, count: int, block_s: float = 0) -> list[Entry]:
        """Return up to *count* entries after the id *after*, in order.

        It waits up to *block_s* seconds for the first. Fewer than *count* entries are the last ones. Entries in
        chapters are read from the store. With *block_s*, it also returns, perhaps without an entry, when a worker joins
        or leaves the fleet.

        Raises:
            ChapterUnavailable: a chapter with some of the entries can't be read.
        """

    def first(self) -> Entry | None:
        """Return the journal's first entry, which stays on the server, or None."""
        found = self.read(START.entry, count=1)
        return found[0] if found else None

    @abstractmethod
    def holds(self, entry: str) -> bool:
        """Return whether the journal has the entry with this id. Only a loss of data removes it.

        Raises:
            ChapterUnavailable: the chapter with this entry can't be read.
        """

    @abstractmethod
    def chapters(self) -> list[Chapter]:
        """Return the chapters, in order.

        Raises:
            MessageVersionError: the server's list of chapters is malformed.
        """

    @abstractmethod
    def trim(self, chapter: Chapter, before: str) -> int | None:
        """Move the entries of a chapter, which is in the store, out of the server's journal.

        Return the size of the remaining entries there, in bytes. Return None and do nothing if the last chapter does
        not end with the entry *before*; if *before* is empty and there are chapters, or the journal begins with another
        entry; or if the chapter's last entry is lost or is the newest. The last chapter is not added again.
        """

    @abstractmethod
    def checkpoints(self) -> set[CheckpointId]:
        """Return the checkpoints on the server."""

    @abstractmethod
    def bring_checkpoint(self, checkpoint: CheckpointId, data: bytes) -> None:
        """Restore a checkpoint's data that the server has lost. Existing data stays."""

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
        """Restore the journal that the server has lost, and the lock of the calling driver.

        In one step, the chapters, the entries with their ids, and the events replace the journal's content. Then every
        attempt has ended, there are no leases, and no claim counts. Existing checkpoints stay.

        Args:
            entries: returns all entries after the chapters, in order, at least one. It may be called several times.
            attempts: the last attempt of every trial, in the entries or on the server.
            events: events to append after the entries.
            requests: the id of each request in the entries, with the id of its entry.
            definition: the experiment's definition.
            chapters: the chapters in the store.
            first: the journal's first entry, if there are chapters.
        """

    @abstractmethod
    def erase(self, trials: Sequence[TrialId]) -> None:
        """Delete the experiment with all these trials, except for the lock.

        Its running attempts are then fenced. Later entries have higher ids than the deleted ones.
        """

    @abstractmethod
    def request(self, event: Requested) -> str:
        """Append a request to the driver, running or not, and return the id of its entry.

        A request with a known id is not written again. The id of its entry is returned.

        Raises:
            JournalGone: the experiment does not exist, or was lost and is not restored yet.
        """

    @abstractmethod
    def hold(self, held: Sequence[Unclaimed], hold_s: float) -> None:
        """Note for *hold_s* seconds that workers will claim these attempts, if they are staged.

        The driver does not publish them again meanwhile. Another worker may still claim one first.
        """

    @abstractmethod
    def claim(
        self, claim: Claim, worker: str, lease_s: float, event: bytes, address: str = ""
    ) -> Grant | Refusal | Seated:
        """Take the lease of an attempt and append its start.

        At most one claim of an attempt is ever granted. Each seat of a gang is claimed. Until all are, a claim reserves
        its seat for *lease_s* seconds. A repeated claim renews that, and with 0 seconds releases the seat. The claim of
        the last seat grants all seats and appends all starts in one step. Of gangs with equal seats, the one that was
        staged first gets them first.

        No claim is granted without a driver under the policies "finish" and "stop", or after a request to revoke the
        attempt (:func:`revocation`). Beyond a quota of the server, the attempt stays staged, as if staged just now.

        Args:
            claim: the claim.
            worker: the worker's name.
            lease_s: the duration of the lease, or of the reservation, in seconds.
            event: the start.
            address: the address of this seat for the gang's other seats.
        """

    @abstractmethod
    def report(self, segments: Sequence[Segment]) -> list[Answer]:
        """Append one entry with the new, unfenced segments, at most one for each attempt.

        A repeated call must have the same segments. A full journal accepts them, and answers WAIT to attempts that
        continue. A server without memory refuses this, ``put_checkpoint`` and ``saved`` immediately with BrokerFull.
        """

    @abstractmethod
    def put_checkpoint(self, claim: Claim, checkpoint: CheckpointId, data: bytes) -> Answer:
        """Store a checkpoint's data until it is dropped. A report or ``saved`` must then name it."""

    @abstractmethod
    def saved(self, claim: Claim, events: Mapping[CheckpointId, bytes]) -> Answer:
        """Append that one or more checkpoints were saved without a report.

        A repeated call appends nothing, unless the attempt saved another one in between.
        """

    @abstractmethod
    def renew(self, claims: Sequence[Claim], lease_s: float) -> list[Answer]:
        """Renew leases, even expired ones of attempts that are not lost. It may answer UNDRIVEN."""

    @abstractmethod
    def compare(self, fared: Fared, worker: str, device: str) -> Others:
        """Note the result of an attempt on a worker's device, and return those of others.

        The last note of each kind counts. A note of a broken device stays for ``BROKEN_S``, and further ones count as
        failed. It raises BrokerUnavailable immediately if no server answers or it is full, as a note may be lost.
        """

    @abstractmethod
    def end(self, claim: Claim, event: bytes, reports: int = 0, by: EndedBy = "itself") -> bool:
        """Append the end of an attempt and release its lease.

        A gang ends with its last seat. Then the end of seat 0 is appended, or that of the seat that has ended the
        others: an earlier one that its worker has requeued or, without such a seat, that has failed. After one of these
        ends, the other seats get orders to end.

        Return False and do nothing if the attempt no longer counts, or the journal lacks some of its first *reports*
        reports.
        """


#: An id begins with a number of 64 bits.
_ENTRY_TIME: Final = re.compile(r"(\d{1,20})-", re.ASCII)


def entry_time(entry: str) -> float:
    """Return an entry's time in seconds since the epoch, or 0 for a malformed id."""
    return int(found[1]) / 1000 if (found := _ENTRY_TIME.match(entry)) else 0.0


def entry_order(entry: str) -> tuple[int, int]:
    """Return an entry's id as numbers in the order of the journal."""
    time_ms, _, number = entry.partition("-")
    return int(time_ms), int(number)
