"""The interface of a journal. The Redis journal and the in-memory journal implement it."""

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
from mqtune.core.tasks import task_in
from mqtune.core.timing import Timing
from mqtune.core.trial import CheckpointId, Config, Intent, TrialId
from mqtune.journal.server.room import Room

if TYPE_CHECKING:
    from mqtune.checkpoints import CheckpointStore

#: Answer to a worker whose attempt no longer counts.
FENCED: Final = "fenced"
#: Answer to a worker if earlier reports of its attempt never arrived.
GAP: Final = "gap"
#: Added to an answer to ``report`` or ``saved``: the worker must not send more of this attempt while the journal is
#: full.
WAIT: Final = "wait"

#: The journal's answer to a worker about one attempt. Usually it has the attempt's orders: an intent's value, or the
#: words of its ``Order`` objects with spaces between them, and perhaps WAIT at the end. Otherwise it is FENCED, GAP, or
#: UNDRIVEN. Only ``renew`` returns UNDRIVEN: the experiment has no driver, so the worker requeues the attempt.
Answer = str
#: The reason why a claim is refused; ``lua/claim.lua`` explains each. "beside" and "after" are for attempts
#: with several tasks.
Refusal = Literal["unknown", "superseded", "taken", "ended", "revoked", "undriven", "quota", "beside", "after"]
#: The answer to a claim while other tasks of the attempt are unclaimed: the worker has reserved the task, or has
#: returned it.
Reserved = Literal["reserved", "left"]
#: How a task ended: by itself or an order, by a failure of user code, or because its worker returned it.
EndedBy = Literal["itself", "failure", "worker"]
#: How an attempt did on its device: well; failed at the start; or failed with an error of a broken device.
Fared = Literal["well", "failed", "broken"]
LossPolicy = Literal["continue", "finish", "stop"]
#: The result of ``Journal.intend``: the attempt runs, was unclaimed and has ended now, had ended, or has a successor.
Intended = Literal["running", "unclaimed", "ended", "superseded"]
#: The condition for ending an attempt as lost: it runs and its lease has expired; it runs; or it neither runs nor
#: waits.
Guard = Literal["expired", "any", "gone"]


class OnLoss(NamedTuple):
    """The policy of workers when an experiment has had no driver for *grace_s* seconds.

    With "continue" nothing changes. With "finish" they claim no further attempt. With "stop" they also requeue running
    attempts.
    """

    policy: LossPolicy = "continue"
    grace_s: float = 0.0


class Entry(NamedTuple):
    """A journal entry: its id and an encoded event."""

    id: str
    data: bytes


def new_token() -> str:
    """Return a random token for a claim. It is short, because each renewal carries it."""
    return secrets.token_hex(8)


class Chapter(NamedTuple):
    """A file in the experiment's store with journal entries that were removed from Redis.

    ``id`` contains a hash of the file. ``first`` and ``last`` are ids of entries, ``entries`` is their number, and
    ``size`` the bytes of their events. Each chapter continues where the previous one ends.
    """

    id: CheckpointId
    first: str
    last: str
    entries: int
    size: int


class Claim(NamedTuple):
    """One worker's claim of an attempt or a task. ``token`` fences other claims.

    For a further task of an attempt, ``trial`` is the task's name.
    """

    trial: TrialId
    attempt: int
    token: str

    @property
    def task(self) -> tuple[TrialId, int]:
        """The trial, and the number of the task."""
        return task_in(self.trial)

    @property
    def mark(self) -> str:
        """The first part of the token, for the names of the claim's folders and checkpoints."""
        return self.token[:8]


def revocation(trial: TrialId, attempt: int) -> str:
    """Return the id of the request that stops a trial because its attempt was revoked."""
    return f"revoke/{trial}/{attempt}"


class Assignment(NamedTuple):
    """The work of an attempt. Readers of its encoded form ignore unknown keys.

    Attributes:
        checkpoint: the checkpoint that it starts from, or empty.
        timeout_s: how long it may run; None for no limit. The encoded form calls it ``ttl_s``.
        task_plan: the number and resources of its tasks, as in ``Resources.task_plan``; empty for one task. The encoded
            form calls it ``gang``.
    """

    config: Config
    checkpoint: CheckpointId = CheckpointId("")
    timeout_s: Number | None = None
    task_plan: str = ""

    @property
    def tasks(self) -> int:
        """The number of tasks of the attempt."""
        return tasks_in(self.task_plan)

    def encode(self) -> bytes:
        """Encode the assignment for Redis."""
        return encode_value({_KEYS.get(name, name): own for name, own in self._asdict().items()})

    @classmethod
    def decode(cls, data: bytes) -> Assignment:
        """Decode an assignment.

        Raises:
            MessageVersionError: the bytes are malformed.
        """
        try:
            known = cls._field_defaults | decode_value(data)
            known |= {name: known[key] for name, key in _KEYS.items() if key in known}
            return from_plain(cls, [known[name] for name in cls._fields])
        except (ValueError, TypeError, LookupError) as error:
            raise MessageVersionError(f"the assignment of an attempt can't be read: {data[:100]!r}: {error}") from None


def tasks_in(task_plan: str) -> int:
    """Return the number of tasks in ``Assignment.task_plan``."""
    count = task_plan.partition(":")[0]
    return int(count) if count.isdecimal() and len(count) < _TASK_DIGITS else 1


class Grant(NamedTuple):
    """The answer to a granted claim: the worker has the lease of the attempt now.

    ``timestamp`` is the time of the trial's last report, 0 before the first. ``address`` is the address of its
    task 0, if it has several.
    """

    assignment: Assignment
    timestamp: float
    address: str = ""


class Unclaimed(NamedTuple):
    """An unclaimed attempt, and the worker that has received it from a queue, or an empty text.

    ``importing_s`` is for how many seconds that worker has been importing the trainable. It is None if the worker waits
    for something else.
    """

    trial: TrialId
    attempt: int
    worker: str = ""
    importing_s: float | None = None


class AttemptCheck(NamedTuple):
    """The result of ``Journal.look``.

    ``under_way`` says of each attempt whether it runs or waits. ``newest`` is the id of the newest entry at that
    moment; empty if the journal has no entry.
    """

    newest: str
    under_way: list[bool]


class Order(NamedTuple):
    """An order to save a checkpoint or to continue. It replaces an earlier one of its kind."""

    trial: TrialId
    attempt: int
    word: str

    @property
    def kind(self) -> str:
        """The word without its number: "save" or "go"."""
        return self.word.partition(":")[0]

    @property
    def number(self) -> int:
        """The number of the save, or the number of the report after which the trial continues."""
        return int(self.word.split(":")[1])

    @classmethod
    def save(cls, trial: TrialId, attempt: int, number: int) -> Order:
        """Return the order to save a checkpoint. Only a new highest *number* has an effect."""
        return cls(trial, attempt, f"save:{number}")

    @classmethod
    def go(cls, trial: TrialId, attempt: int, sequence: int, answer: str = "") -> Order:
        """Return the order to continue after the report *sequence*.

        If that report asked a question, *answer* is the answer to it. It must not contain a space or a colon.
        """
        return cls(trial, attempt, f"go:{sequence}:{answer}" if answer else f"go:{sequence}")


class Others(NamedTuple):
    """How an experiment's attempts do on other workers and devices.

    Attributes:
        well: seconds since another worker has noted a good attempt; infinite if none has.
        failed: the same for an attempt that failed at its start.
        broken: whether another device counts as broken.
        running: the number of attempts with a lease.
    """

    well: float
    failed: float
    broken: bool
    running: int


#: A number of tasks has fewer digits than this.
_TASK_DIGITS: Final = 5
#: The fields of an assignment with another key in its encoded form.
_KEYS: Final = {"timeout_s": "ttl_s", "task_plan": "gang"}
#: How long a device counts as broken, in seconds. In this time, no other device of the experiment is noted as broken.
BROKEN_S: Final = 3600.0


class LastAttempt(NamedTuple):
    """A trial's last staged attempt, and the time of the trial's last report, or 0."""

    trial: TrialId
    attempt: int
    timestamp: float


class Segment(NamedTuple):
    """Consecutive reports of one attempt, to append to the journal.

    ``first`` is the number of the first report, ``size`` is how many there are, and ``timestamp`` is the time of the
    last one. A segment with ``first`` 0 has no reports: it only asks for the attempt's orders.
    """

    claim: Claim
    first: int
    size: int
    timestamp: float
    data: bytes


class DriverState(NamedTuple):
    """A driver's message to workers and people, sent with each heartbeat.

    Attributes:
        on_loss: the policy of workers without a driver.
        waits: why no trial starts now, for people; empty if trials start.
        read_to: the id of the newest entry that the driver has read; empty if it has read none.
        most_bytes: the limit of the journal's bytes, at which reports have to wait; 0 for no limit.
    """

    on_loss: OnLoss = OnLoss()
    waits: str = ""
    read_to: str = ""
    most_bytes: int = 0


class ServerState(NamedTuple):
    """The server's answer to a driver's heartbeat: the bytes of the journal's entries in Redis."""

    journal_bytes: int = 0


class Journal(ABC):
    """One experiment's events in one order, and the leases and intents of its attempts.

    If a call fails with an unknown outcome, it may be repeated: no event is written twice. An event is appended and
    published in one step. Any thread may call. All methods raise BrokerUnavailable while no server answers. The
    driver's methods raise DriverFenced once a later driver has the lock, and JournalGone once the server has lost the
    lock.
    """

    experiment: str
    timing: Timing = Timing()
    #: The store in which this driver saves chapters. Without a store, all entries stay on the server.
    chapter_store: CheckpointStore | None = None
    #: How often the server was missing, a connection broke, or another server answered. The server may have lost data
    #: each time.
    outages: int = 0
    #: Whether entries can be read more than once.
    keeps: bool = True
    #: Whether attempts may get lost, with their worker or on their way to one. If so, the driver searches for them.
    loses_attempts: bool = True
    #: Whether waiting takes real time. In a simulation, time passes only while the driver waits.
    is_live: bool = True
    #: Set when ``read`` sees workers join or leave. The reader clears it.
    fleet_changed: bool = False

    # For the driver.

    def room(self) -> Room | None:
        """Return the room in the server's memory. None without a server or the permission."""
        return None

    @abstractmethod
    def lock(self, holder: str, description: str, hold_s: float, *, dead: str = "") -> None:
        """Take or renew the driver's lock for *hold_s* seconds.

        This object's later writes carry its epoch. *holder* is this driver's unique token, and *description* describes
        it to people. *dead* is the description of a driver that is known to be dead: its lock is taken without waiting.

        Raises:
            NameTaken: another driver has the lock. The message describes it.
        """

    @abstractmethod
    def heartbeat(self, holder: str, hold_s: float, state: DriverState) -> ServerState:
        """Renew the lock for *hold_s* seconds. Store the driver's state; return the server's."""

    @abstractmethod
    def unlock(self, holder: str) -> None:
        """Release the lock. Do nothing if another driver has it."""

    @abstractmethod
    def definition(self) -> bytes | None:
        """Return the experiment's definition, or None if there is no such experiment."""

    @abstractmethod
    def record(self, *events: bytes, definition: bytes | None = None) -> None:
        """Append events that no worker acts on, in one step. Replace the definition if one is given."""

    @abstractmethod
    def stage(self, trial: TrialId, attempt: int, assignment: Assignment, event: bytes) -> bool:
        """Append that an attempt is staged. Return False if it or a later one was staged before."""

    @abstractmethod
    def intend(self, trial: TrialId, attempt: int, intent: Intent, event: bytes, ended: bytes) -> Intended:
        """Append the decision to end an attempt, and notify its worker.

        An unclaimed attempt ends immediately, with the event *ended*. An attempt that the server has forgotten counts
        as ended; ``lose`` appends its end.
        """

    @abstractmethod
    def close_trial(self, trial: TrialId, attempt: int, event: bytes) -> bool:
        """Append that a trial without a running attempt is over or paused.

        *attempt* is its last attempt. Return False if that attempt has not ended, a later one was staged, or the event
        is already in the journal. The event of a trial that the server has forgotten is accepted.
        """

    @abstractmethod
    def order(self, orders: Sequence[Order]) -> list[bool]:
        """Give orders to running attempts and notify their workers.

        Return for each whether the attempt runs. Orders are not journaled. An attempt with an intent ignores them.
        """

    @abstractmethod
    def drop_checkpoints(self, checkpoints: Sequence[CheckpointId], event: bytes) -> None:
        """Append that these checkpoints are deleted, and delete those on the server.

        A repeated call appends nothing, but deletes checkpoints that a worker has stored again.
        """

    @abstractmethod
    def checkpoint(self, checkpoint: CheckpointId) -> bytes | None:
        """Return the data of a checkpoint on the server, or None if it is gone."""

    @abstractmethod
    def expired(self) -> list[TrialId]:
        """Return the names of the tasks whose lease has expired."""

    @abstractmethod
    def look(self, attempts: Sequence[tuple[TrialId, int]], lease_s: float) -> AttemptCheck:
        """Return which of these attempts run or are unclaimed. Repair the lists of both kinds.

        If a running attempt has no lease, it gets one of *lease_s* seconds. A waiting attempt that is missing in the
        list of unclaimed attempts is added.
        """

    @abstractmethod
    def lose(
        self, trial: TrialId, attempt: int, guard: Guard, event: bytes, timestamp: float = 0.0, read: str = ""
    ) -> bool:
        """End an attempt as lost, with *event*.

        Return False, and do nothing, if *guard* does not hold. A running attempt is not ended before the driver has
        read all reports of its trial, because schedulers see no report after the end. With "gone", the trial must have
        no later attempt, unless the driver has read the whole journal without finding it: the server's data is corrupt
        then.

        *read* is the last entry that the driver has read. *timestamp* is the time of the trial's last report; it is
        restored, because the server may have lost it.
        """

    @abstractmethod
    def unclaimed(self, *, older_than_s: float = 0.0, count: int | None = None) -> list[Unclaimed]:
        """Return up to *count* tasks, unclaimed for *older_than_s* seconds or more, oldest first."""

    @abstractmethod
    def read(self, after: str, *, count: int, block_s: float = 0) -> list[Entry]:
        """Return up to *count* entries after an id, waiting up to *block_s* seconds for the first.

        If it returns fewer than *count*, it has reached the journal's end. A waiting call also returns when a worker
        joins or leaves the fleet, perhaps without an entry.

        Raises:
            ChapterUnavailable: a chapter with some of the entries can't be read.
        """

    def first(self) -> Entry | None:
        """Return the experiment's first entry, or None. It always stays on the server."""
        entries = self.read(START.entry, count=1)
        return entries[0] if entries else None

    @abstractmethod
    def holds(self, entry: str) -> bool:
        """Return whether the journal has an entry. It is missing only if the server has lost data.

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
        """Add a chapter that the store has to the list, and remove its entries from the server.

        *before* is the last entry of the previous chapter, or empty for the first chapter. Return how many bytes of the
        journal are left on the server. A repeated call changes nothing.

        Return None, and do nothing, if another chapter was added before or the journal begins with another entry; if
        the server has lost the chapter's last entry; or if that is the newest entry.
        """

    @abstractmethod
    def checkpoints(self) -> set[CheckpointId]:
        """Return the checkpoints on the server."""

    @abstractmethod
    def bring_checkpoint(self, checkpoint: CheckpointId, data: bytes) -> None:
        """Store a checkpoint's data again after the server has lost it. Existing data stays."""

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

        From then on every attempt has ended, no lease exists, and no claim counts. Checkpoints on the server stay.

        Args:
            entries: returns all entries after the chapters, at least one, with their ids. It may be called repeatedly.
            attempts: the last attempt of each trial in the entries or on the server.
            events: events to append after the entries.
            requests: the entry's id for the id of each request among the entries.
            first: the experiment's first entry, if there are chapters.
        """

    @abstractmethod
    def erase(self, trials: Sequence[TrialId]) -> None:
        """Delete the experiment with all these trials, except for the lock.

        Workers that run its attempts are fenced. Later entries have higher ids than the deleted ones.
        """

    @abstractmethod
    def request(self, event: Requested) -> str:
        """Append a request for the driver. Return the entry's id. No driver needs to run.

        If the journal already has a request with this id, nothing is written.

        Raises:
            JournalGone: there is no such experiment, or no driver has restored it yet.
        """

    @abstractmethod
    def hold(self, held: Sequence[Unclaimed], hold_s: float) -> None:
        """Note for *hold_s* seconds that workers have received these attempts and will claim them.

        In that time the driver doesn't publish them again. Any worker may still claim one first. Attempts that are not
        waiting to be claimed are ignored.
        """

    @abstractmethod
    def claim(
        self, claim: Claim, worker: str, lease_s: float, event: bytes, address: str = ""
    ) -> Grant | Refusal | Reserved:
        """Take the lease of an attempt and append its start.

        At most one claim of an attempt is granted. No claim is granted if there is no driver and the policy is "finish"
        or "stop", if a quota is used up, or if the attempt was revoked before it began (:func:`revocation`). With a
        used-up quota, the attempt counts as staged just now.

        If an attempt has several tasks, each is claimed. A claim reserves its task for *lease_s* seconds. The worker
        repeats the claim to keep the task and to learn whether the attempt has started; a claim with 0 seconds returns
        the task. The claim of the last task grants all claims and appends all starts in one step. If such attempts have
        equal plans, workers get tasks of the one that was staged first. Other tasks reach this one at *address*.
        """

    @abstractmethod
    def report(self, segments: Sequence[Segment]) -> list[Answer]:
        """Append segments, at most one of each attempt, as one entry. Return each attempt's answer.

        Segments of fenced attempts and repeated ones are left out. A repeated call must carry the same segments. A full
        journal accepts them, but adds WAIT to the answers. If the server's memory is full, this method,
        ``put_checkpoint`` and ``saved`` raise BrokerFull without waiting.
        """

    @abstractmethod
    def put_checkpoint(self, claim: Claim, checkpoint: CheckpointId, data: bytes) -> Answer:
        """Store a checkpoint's data until it is dropped. A report or ``saved`` must name it then."""

    @abstractmethod
    def saved(self, claim: Claim, events: Mapping[CheckpointId, bytes]) -> Answer:
        """Append that checkpoints, at least one, were saved without a report.

        A repeated call appends nothing, except if the attempt has saved another checkpoint in between.
        """

    @abstractmethod
    def renew(self, claims: Sequence[Claim], lease_s: float) -> list[Answer]:
        """Renew leases, even expired ones. Return each claim's answer, usually its orders."""

    @abstractmethod
    def compare(self, fared: Fared, worker: str, device: str) -> Others:
        """Note how an attempt did on a worker's device. Return how attempts do elsewhere.

        Only the newest note of each kind is kept. For ``BROKEN_S`` after a note of a broken device, notes of other
        broken devices count as "failed".

        Raises:
            BrokerUnavailable: the server is missing or full. The call does not wait: a lost note does no harm.
        """

    @abstractmethod
    def end(self, claim: Claim, event: bytes, reports: int = 0, by: EndedBy = "itself") -> bool:
        """Append the end of an attempt and release its lease.

        Return False, and do nothing, if the attempt no longer counts, or if the journal lacks one of its first
        *reports* reports.

        An attempt ends with its last task. Then one end is appended, which is usually the end of task 0. If another
        task has ended the attempt, by a failure or because its worker returned it, the end of that task is appended. A
        returned task takes precedence over a failed one, because the loss of one task makes others fail. As soon as
        task 0 or such a task ends, the other tasks get orders to end.
        """


#: An entry's id begins with the server's time in milliseconds, a number of 64 bits.
_ENTRY_TIME: Final = re.compile(r"(\d{1,20})-", re.ASCII)


def entry_time(entry: str) -> float:
    """Return the server's time of an entry, in seconds since the epoch; 0 for a malformed id."""
    return int(matched[1]) / 1000 if (matched := _ENTRY_TIME.match(entry)) else 0.0


def entry_order(entry: str) -> tuple[int, int]:
    """Return an entry's id as a sort key: later entries have larger ones."""
    time_ms, _, number = entry.partition("-")
    return int(time_ms), int(number)
