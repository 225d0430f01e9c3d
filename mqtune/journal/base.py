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
from mqtune.journal.server.room import Room

if TYPE_CHECKING:
    from mqtune.checkpoints import CheckpointStore

#: Answers to a worker that are not intents: its attempt no longer counts; earlier reports never arrived.
FENCED: Final = "fenced"
GAP: Final = "gap"
#: After an answer to ``report`` or ``saved``: the attempt's further data has to wait for room in the journal.
WAIT: Final = "wait"

#: All orders of an attempt: an intent's value, or the words of its ``Order``s, separated by spaces, perhaps WAIT behind
#: them. In place of them: FENCED, GAP, or, from ``renew``, UNDRIVEN: there is no driver, and the attempt is requeued.
Answer = str
#: The reason why a claim is refused. Only a seat of a gang is "beside" another one, which its worker has already, or
#: "after" another gang, which was staged before and lacks a seat.
Refusal = Literal["unknown", "superseded", "taken", "ended", "revoked", "undriven", "quota", "beside", "after"]
#: A seat of a gang with free seats: its worker has it, and claims it again; or has returned it.
Seated = Literal["seated", "left"]
#: How a seat ended: by itself or by an order, by a failure of user code, or by its worker, which returns it.
EndedBy = Literal["itself", "failure", "worker"]
#: How an attempt has fared on its device: well; failed at the start; or failed by an error of a broken device.
Fared = Literal["well", "failed", "broken"]
LossPolicy = Literal["continue", "finish", "stop"]
Intended = Literal["running", "unclaimed", "ended", "superseded"]
#: The condition for ending an attempt as lost: it runs and its lease has expired; it runs; or it is not under way.
Guard = Literal["expired", "any", "gone"]


class OnLoss(NamedTuple):
    """The policy of workers once an experiment had no driver for *grace_s* seconds.

    With "continue" nothing changes. With "finish" no attempt is claimed. "stop" also requeues running attempts.
    """

    policy: LossPolicy = "continue"
    grace_s: float = 0.0


class Entry(NamedTuple):
    """A journal entry: its id and an encoded event."""

    id: str
    data: bytes


def new_token() -> str:
    """Return a token for a claim: short, as each renewal carries it, and too long to be guessed."""
    return secrets.token_hex(8)


class Chapter(NamedTuple):
    """A file in the experiment's store with entries that have left the server.

    It follows the chapters before it. ``id`` has the hash of its content; ``first`` and ``last`` are ids of entries;
    ``size`` is in bytes.
    """

    id: CheckpointId
    first: str
    last: str
    entries: int
    size: int


class Claim(NamedTuple):
    """One claim of an attempt, or of a seat, which ``trial`` then names; ``token`` fences it."""

    trial: TrialId
    attempt: int
    token: str

    @property
    def seat(self) -> tuple[TrialId, int]:
        """The trial, and the number of the seat."""
        return seat_in(self.trial)

    @property
    def mark(self) -> str:
        """The part of the token in the names of the claim's folders and checkpoints."""
        return self.token[:8]


def revocation(trial: TrialId, attempt: int) -> str:
    """Return the id of the request by which a revoked attempt's trial is stopped."""
    return f"revoke/{trial}/{attempt}"


class Assignment(NamedTuple):
    """The work of an attempt, encoded as a map. Readers ignore unknown keys.

    ``checkpoint`` is the one that it starts from, or empty; ``timeout_s``, with the key ``ttl_s``, is how long it may
    run, or None; ``gang`` has the number and the resources of its seats (``Resources.gang``), or is empty for one seat.
    """

    config: Config
    checkpoint: CheckpointId = CheckpointId("")
    timeout_s: Number | None = None
    gang: str = ""

    @property
    def seats(self) -> int:
        """The number of seats of the attempt."""
        return seats_in(self.gang)

    def encode(self) -> bytes:
        """Return the assignment as Redis keeps it."""
        return encode_value({"ttl_s" if name == "timeout_s" else name: own for name, own in self._asdict().items()})

    @classmethod
    def decode(cls, data: bytes) -> Assignment:
        """Return the assignment that *data* encodes.

        Raises:
            MessageVersionError: the bytes are malformed.
        """
        try:
            known = cls._field_defaults | decode_value(data)
            known["timeout_s"] = known.get("ttl_s")
            return from_plain(cls, [known[name] for name in cls._fields])
        except (ValueError, TypeError, LookupError) as error:
            raise MessageVersionError(f"malformed assignment {data[:100]!r}: {error}") from None


def seats_in(gang: str) -> int:
    """Return the number of seats in ``Assignment.gang``."""
    count = gang.partition(":")[0]
    return int(count) if count.isdecimal() and len(count) < _SEAT_DIGITS else 1


class Grant(NamedTuple):
    """A new lease: assignment, time of the trial's last report (0: none), and seat 0's address."""

    assignment: Assignment
    timestamp: float
    address: str = ""


class Unclaimed(NamedTuple):
    """An unclaimed attempt, and the worker that has taken it from its queue, if one has.

    ``importing_s`` is the time for which that worker has been importing the trainable, in seconds. It is None if the
    worker waits for something else.
    """

    trial: TrialId
    attempt: int
    worker: str = ""
    importing_s: float | None = None


class AttemptCheck(NamedTuple):
    """Whether each of some attempts is under way, and the newest entry's id then, or empty."""

    newest: str
    under_way: list[bool]


class Order(NamedTuple):
    """An order to an attempt that does not end it. It replaces an earlier one of its kind."""

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
        """Return the order to save a checkpoint. Only a number higher than all before has an effect."""
        return cls(trial, attempt, f"save:{number}")

    @classmethod
    def go(cls, trial: TrialId, attempt: int, sequence: int, answer: str = "") -> Order:
        """Return the order to continue after a report, with the answer to its question, if any.

        An answer has neither a space nor a colon.
        """
        return cls(trial, attempt, f"go:{sequence}:{answer}" if answer else f"go:{sequence}")


class Others(NamedTuple):
    """The results of an experiment's attempts elsewhere.

    ``well`` and ``failed`` are the seconds since another worker has noted that, infinite for never. ``broken`` says
    whether another device counts as broken. ``running`` is the number of attempts with a lease.
    """

    well: float
    failed: float
    broken: bool
    running: int


#: More digits than any number of seats has.
_SEAT_DIGITS: Final = 5
#: How long a noted device counts as broken; meanwhile no other device is noted.
BROKEN_S: Final = 3600.0


class LastAttempt(NamedTuple):
    """A trial's last staged attempt, and the time of its last report (0: none)."""

    trial: TrialId
    attempt: int
    timestamp: float


class Segment(NamedTuple):
    """Consecutive reports of one attempt: first number, count, time of the last one, bytes.

    A segment that begins with number 0 has no reports and only asks for the answer.
    """

    claim: Claim
    first: int
    size: int
    timestamp: float
    data: bytes


class DriverState(NamedTuple):
    """A driver's message to workers and people, with each heartbeat.

    Attributes:
        on_loss: the policy of workers without a driver.
        waits: the reason why nothing starts now, for people.
        read_to: the id of the newest entry that the driver has read; empty for none.
        most_bytes: the size of the journal from which on trials have to wait; 0 for any.
    """

    on_loss: OnLoss = OnLoss()
    waits: str = ""
    read_to: str = ""
    most_bytes: int = 0


class ServerState(NamedTuple):
    """The server's answer to a heartbeat: the bytes of the journal's entries there."""

    journal_bytes: int = 0


class Journal(ABC):
    """One experiment's events in one order, and the leases and intents of its attempts.

    Every method may be repeated after a failure with an unknown outcome: no event is written twice. An event is
    appended and published in one step. Any thread may call. All methods raise BrokerUnavailable while no server
    answers. A driver's raise DriverFenced once a later driver has the lock, and JournalGone once the server has lost
    it.
    """

    experiment: str
    timing: Timing = Timing()
    #: This driver's store for chapters; without one nothing leaves the server.
    chapter_store: CheckpointStore | None = None
    #: The number of outages: no server, a broken connection, or another server. Each may have lost data.
    outages: int = 0
    #: Whether entries can be read more than once.
    keeps: bool = True
    #: Whether attempts may be lost, with their worker or on their way to one, so that the driver searches for them.
    loses_attempts: bool = True
    #: Whether waiting takes real time. Otherwise time passes, and things happen, only while the driver waits.
    is_live: bool = True
    #: Set when ``read`` sees workers join or leave. The reader clears it.
    fleet_changed: bool = False

    # For the driver.

    def room(self) -> Room | None:
        """Return the room in the server's memory; None without a server or the permission."""
        return None

    @abstractmethod
    def lock(self, holder: str, description: str, hold_s: float, *, dead: str = "") -> None:
        """Take or keep the driver's lock; from then on this object writes with its epoch.

        *holder* is a token that no other driver has, *description* is for people, and *hold_s* is how long the lock is
        kept. A lock with the description *dead*, of a driver known to be dead, is taken without waiting.

        Raises:
            NameTaken: another driver holds it; the message has its description.
        """

    @abstractmethod
    def heartbeat(self, holder: str, hold_s: float, state: DriverState) -> ServerState:
        """Keep the lock of this *holder* for *hold_s* more seconds, and exchange states."""

    @abstractmethod
    def unlock(self, holder: str) -> None:
        """Release the lock. Do nothing if another driver has it."""

    @abstractmethod
    def definition(self) -> bytes | None:
        """Return the experiment's definition, or None if there is no such experiment."""

    @abstractmethod
    def record(self, *events: bytes, definition: bytes | None = None) -> None:
        """Append events that no worker acts on, and replace the definition, in one step."""

    @abstractmethod
    def stage(self, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> bool:
        """Make a trial's next attempt claimable. Return False if it or a later one already was."""

    @abstractmethod
    def intend(self, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Intended:
        """Append the decision to end an attempt, and notify its worker.

        An unclaimed attempt ends immediately, by *ended*. A forgotten one counts as ended; ``lose`` journals its end.
        """

    @abstractmethod
    def close_trial(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        """Append that a trial is over or paused, after the end of its attempt *attempt*.

        Return False if a later attempt was staged, or the event is repeated. A forgotten trial's event is accepted.
        """

    @abstractmethod
    def order(self, orders: Sequence[Order]) -> list[bool]:
        """Give running attempts orders, which are no events. Return which attempts run.

        Their workers are notified. An intent goes before all orders.
        """

    @abstractmethod
    def drop_checkpoints(self, checkpoints: Sequence[CheckpointId], event: bytes) -> None:
        """Append that these checkpoints are deleted, and delete those on the server.

        A repeated call appends nothing, and deletes what was put there again.
        """

    @abstractmethod
    def checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        """Return the data of a checkpoint on the server, or None if it is gone."""

    @abstractmethod
    def expired(self) -> list[TrialId]:
        """Return the names of the seats whose lease has expired."""

    @abstractmethod
    def look(self, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> AttemptCheck:
        """Return which of these attempts are under way, and repair their bookkeeping.

        An attempt that is only missing from the leases, with *lease_s* seconds, or from the unclaimed attempts, returns
        there.
        """

    @abstractmethod
    def lose(
        self, trial: TrialId, attempt: int, guard: Guard, event: bytes, timestamp: float = 0.0, read: str = ""
    ) -> bool:
        """End an attempt as lost. Return False if *guard* does not hold.

        A running attempt is not lost before the driver has read all reports of its trial: the scheduler is shown none
        after the end. A later attempt of the trial is no guard against "gone" if the driver has read the whole journal
        and found none: somebody has written nonsense.

        The server may have lost the time of the trial's last report, too: *timestamp*. The driver has read up to the
        entry *read*.
        """

    @abstractmethod
    def unclaimed(self, *, older_than_s: float = 0.0, count: int | None = None) -> list[Unclaimed]:
        """Return up to *count* seats that were staged *older_than_s* seconds ago, oldest first."""

    @abstractmethod
    def read(self, after: str, *, count: int, block_s: float = 0) -> list[Entry]:
        """Return up to *count* entries after an id, waiting up to *block_s* seconds for the first.

        With fewer than *count*, there are no others. With *block_s*, it also returns, perhaps without an entry, when a
        worker joins or leaves the fleet.

        Raises:
            ChapterUnavailable: a chapter with some of the entries can't be read.
        """

    def first(self) -> Entry | None:
        """Return the experiment's first entry, which the server keeps, or None."""
        entries = self.read(START.entry, count=1)
        return entries[0] if entries else None

    @abstractmethod
    def holds(self, entry: str) -> bool:
        """Return whether the journal has an entry. It keeps each one, unless the server loses data.

        Raises:
            ChapterUnavailable: the chapter with this entry can't be read.
        """

    @abstractmethod
    def chapters(self) -> list[Chapter]:
        """Return the chapters, in order.

        Raises:
            MessageVersionError: the server's list of them can't be decoded.
        """

    @abstractmethod
    def trim(self, chapter: Chapter, before: str) -> int | None:
        """Record a chapter that the store has, and remove its entries from the server.

        Return how many bytes of the journal are left there. Do nothing and return None if the last chapter does not end
        with the entry *before*; if that is empty and there are chapters, or the journal begins with another entry; if
        the server has lost the chapter's last entry; or if that is the newest. A repeated chapter is not added again.
        """

    @abstractmethod
    def checkpoints(self) -> set[CheckpointId]:
        """Return the checkpoints on the server."""

    @abstractmethod
    def bring_checkpoint(self, checkpoint: CheckpointId, data: bytes) -> None:
        """Store a checkpoint's data that the server has lost. Existing data stays."""

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
        """Replace the journal's content, and restore the calling driver's lock, in one step.

        From then on every attempt has ended, no lease is held, and no claim counts. Checkpoints on the server stay.

        Args:
            entries: returns all entries after the chapters, at least one, with their ids, as often as it is called.
            attempts: the last one of every trial, in the entries or on the server.
            events: appended after the entries.
            requests: for each request among the entries, its id and its entry's id.
            definition: the experiment's.
            chapters: those in the store.
            first: the experiment's first entry, if there are chapters.
        """

    @abstractmethod
    def erase(self, trials: Sequence[TrialId]) -> None:
        """Delete the experiment with all these trials, except for the lock.

        Workers that run its attempts are fenced. Later entries have higher ids than the deleted ones.
        """

    @abstractmethod
    def request(self, event: Requested) -> str:
        """Append a request for the driver and return its entry's id. No driver has to run.

        A request whose id is in the journal already is not written again.

        Raises:
            JournalGone: there is no such experiment, or no driver has restored it yet.
        """

    @abstractmethod
    def hold(self, held: Sequence[Unclaimed], hold_s: float) -> None:
        """Note for *hold_s* seconds that workers will claim these attempts, if they are staged.

        Attempts that are not staged are ignored. The driver doesn't publish held attempts again. Any worker may still
        claim one first.
        """

    @abstractmethod
    def claim(
        self, claim: Claim, worker: str, lease_s: float, event: bytes, address: str = ""
    ) -> Grant | Refusal | Seated:
        """Take the lease of an attempt and append its start. At most one claim of it is granted.

        Each seat of a gang is claimed. Until all are, a claim holds its seat for *lease_s* seconds: it is repeated to
        hold it longer and to find out, and with 0 seconds returns the seat. The claim of the last seat grants all, and
        appends all starts in one step. Of gangs with equal resources, the one that was staged first gets seats first.

        None is granted without a driver under the policies "finish" and "stop", beyond a quota (the attempt then counts
        as staged just now), or if the attempt's revocation was requested (:func:`revocation`) before it began.

        The other seats of a gang reach this one at *address*.
        """

    @abstractmethod
    def report(self, segments: Sequence[Segment]) -> list[Answer]:
        """Append one entry with the new, unfenced segments, at most one of each attempt.

        A repeated call must carry the same segments. A full journal accepts them, and tells attempts that continue to
        WAIT. A server without memory refuses this, ``put_checkpoint`` and ``saved`` by BrokerFull without delay.
        """

    @abstractmethod
    def put_checkpoint(self, claim: Claim, checkpoint: CheckpointId, data: bytes) -> Answer:
        """Store a checkpoint's data until it is dropped. A report or ``saved`` has to name it."""

    @abstractmethod
    def saved(self, claim: Claim, events: Mapping[CheckpointId, bytes]) -> Answer:
        """Append once that checkpoints, at least one, were saved without a report.

        They are appended again if the attempt saved another in between.
        """

    @abstractmethod
    def renew(self, claims: Sequence[Claim], lease_s: float) -> list[Answer]:
        """Renew leases, also expired ones, and return the orders of their attempts."""

    @abstractmethod
    def compare(self, fared: Fared, worker: str, device: str) -> Others:
        """Note the result of an attempt on a worker's device, and return those of others.

        The last note of each kind is kept; of a broken device the first, for ``BROKEN_S``, and further ones count as
        failed. A server that is away or full raises BrokerUnavailable without delay: a lost note does no harm.
        """

    @abstractmethod
    def end(self, claim: Claim, event: bytes, reports: int = 0, by: EndedBy = "itself") -> bool:
        """Append the end of an attempt and release its lease.

        A gang has ended with its last seat. Then the end of seat 0 is appended, or the first end of another seat that
        came before it and has failed or was returned by its worker, as the others end because of that. A returned seat
        goes before a failure: a training fails without one of its parts. With such an end, or seat 0's, the others
        get orders to end.

        Return False, and do nothing, if the attempt no longer counts, or the journal lacks some of its first *reports*
        reports.
        """


#: An id begins with a number of 64 bits.
_ENTRY_TIME: Final = re.compile(r"(\d{1,20})-", re.ASCII)


def entry_time(entry: str) -> float:
    """Return the server's time of an entry, in seconds since the epoch; 0 for a malformed id."""
    return int(matched[1]) / 1000 if (matched := _ENTRY_TIME.match(entry)) else 0.0


def entry_order(entry: str) -> tuple[int, int]:
    """Return an entry's id as numbers in the order of the journal."""
    time_ms, _, number = entry.partition("-")
    return int(time_ms), int(number)
