"""Inspect, follow and steer a broker's experiments from any process on any machine.

A request is an event in the experiment's journal. The driver carries out each request once, in the journal's order, and
journals its answer. The next driver carries out unanswered requests.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TypeVar, cast

from mqtune.core.checks import given_of
from mqtune.core.errors import AccessDenied, BrokerUnavailable, ConfigurationError, JournalGone, RequestRefused
from mqtune.core.events import (
    START,
    DriverStarted,
    Event,
    ExperimentCreated,
    ExperimentEnded,
    RequestAnswered,
    Requested,
    TrialStaged,
    decode_event,
)
from mqtune.core.keys import ExperimentKeys, is_name
from mqtune.core.machine import make_folder
from mqtune.core.owner import NOBODY, Owner
from mqtune.core.priorities import Priority
from mqtune.core.text import there_are
from mqtune.core.trial import Config, TrialStatus
from mqtune.journal.base import Entry, entry_time
from mqtune.journal.files.copy import JOURNAL_FILE, JournalFile
from mqtune.journal.redis import RedisJournal, number
from mqtune.journal.server.clock import ServerClock
from mqtune.journal.server.connection import CONNECT_TIMEOUT_S, connect, redact
from mqtune.journal.server.owner import person
from mqtune.journal.server.retry import retrying
from mqtune.journal.states import readable_on
from mqtune.journal.stream import naming
from mqtune.results.checkpoints import Origin
from mqtune.results.follower import follow
from mqtune.results.results import Results

if TYPE_CHECKING:
    from mqtune.services.submissions.board import SubmissionState

T = TypeVar("T")

#: Newest entries to search for the experiment's end; only a few events follow it.
_LAST_COUNT: Final = 50
#: Entries per read.
_PAGE_COUNT: Final = 1_000
#: First and longest wait between polls for an answer, in seconds.
_LOOK_S: Final = (0.005, 0.1)
_RETRY_S: Final = 0.1


class Answer(NamedTuple):
    """The answer to a request, which may be pending.

    If ``is_done`` is false, the request is in the journal and will be carried out; ``reason`` says what delays it.
    ``trial`` is the request's trial, or the new one. ``config`` is set if the request made a trial or asked for one.
    Repeating a request with its ``request_id`` returns its answer and does nothing twice.
    """

    request_id: str
    is_done: bool
    reason: str = ""
    trial: str = ""
    config: Config | None = None


class Steering(Protocol):
    """Carries out actions on an experiment, or requests them from the driver."""

    def steer(
        self,
        action: str,
        trial: str,
        arguments: dict[str, object],
        *,
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Return the answer; raise an ``MqtuneError`` if the action is refused.

        Args:
            action: "stop", "pause", "resume", "restart", "save", "complete", "abandon", "fail", "label", "add", "ask",
                "tell", "set" or "end".
            trial: the trial's id; empty for an action on the experiment.
            arguments: the action's arguments, by name.
            wait_s: longest wait for the driver's answer, in seconds.
            request_id: id of the request to repeat.
        """


class TrialHandle:
    """Steers one trial of an experiment from any process.

    In the driver's process, methods act immediately. Elsewhere they wait for the driver's answer, for at most
    *wait_s* seconds. Without a driver they return immediately, and the next driver carries the request out. Pass
    ``request_id`` to repeat a request whose answer was lost. An impossible action raises an error that says why.

    Args:
        id: the trial's id.
        steering: carries out the actions.
    """

    def __init__(self, id: str, steering: Steering) -> None:  # noqa: A002 - as trials call it
        self.id = id
        self._steering = steering

    def __repr__(self) -> str:
        return f"<trial {self.id}>"

    def stop(self, reason: str = "", *, wait_s: float | None = None, request_id: str = "") -> Answer:
        """Stop the trial early."""
        return self._do("stop", wait_s, request_id, reason=reason)

    def pause(self, reason: str = "", *, wait_s: float | None = None, request_id: str = "") -> Answer:
        """Pause the trial: save a checkpoint if possible, end its process and free its slot."""
        return self._do("pause", wait_s, request_id, reason=reason)

    def resume(
        self,
        config: Config | None = None,
        reason: str = "",
        *,
        checkpoint: Origin | None = None,
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Stage the paused trial again, from its newest checkpoint.

        Args:
            config: values to change.
            reason: why, in a few words.
            checkpoint: another checkpoint: "best", or the id of a kept one; in the driver's process also a folder's
                path. "decided" is its checkpoint at the report of ``Tuner.next_report`` on which it was paused; without
                one it starts from scratch.
        """
        return self._do("resume", wait_s, request_id, config=config, checkpoint=checkpoint, reason=reason)

    def restart(
        self,
        config: Config | None = None,
        reason: str = "",
        *,
        source: str = "",
        checkpoint: Origin | None = None,
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Restart the trial in place, from scratch or from a checkpoint.

        A running attempt ends first.

        Args:
            config: values to change.
            reason: why, in a few words.
            source: id of the trial whose checkpoint to start from.
            checkpoint: "newest", "best" or an id, of *source* or of this trial; in the driver's process also a folder.
        """
        return self._do(
            "restart", wait_s, request_id, config=config, source=source, checkpoint=checkpoint, reason=reason
        )

    def save(self, *, wait_s: float | None = None, request_id: str = "") -> Answer:
        """Have the running trial save a checkpoint soon. The answer doesn't wait for it."""
        return self._do("save", wait_s, request_id)

    def complete(self, reason: str = "", *, wait_s: float | None = None, request_id: str = "") -> Answer:
        """End the trial as COMPLETED."""
        return self._do("complete", wait_s, request_id, reason=reason)

    def abandon(self, reason: str = "", *, wait_s: float | None = None, request_id: str = "") -> Answer:
        """Abandon the trial: its config is never proposed again, and searchers ignore it."""
        return self._do("abandon", wait_s, request_id, reason=reason)

    def fail(self, reason: str = "", *, wait_s: float | None = None, request_id: str = "") -> Answer:
        """End the trial as FAILED, without a retry."""
        return self._do("fail", wait_s, request_id, reason=reason)

    def label(
        self,
        tags: Sequence[str] = (),
        *,
        untag: Sequence[str] = (),
        note: str = "",
        notes: str | None = None,
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Change the trial's tags or notes, in any status.

        This takes effect immediately, even without a driver.

        Args:
            tags: tags to add.
            untag: tags to remove.
            note: a line to append to the notes.
            notes: text that replaces the notes.
        """
        given = _labels(tags, untag, note, notes)
        return self._steering.steer("label", self.id, given, wait_s=wait_s, request_id=request_id)

    def _do(self, action: str, wait_s: float | None, request_id: str, **arguments: object) -> Answer:
        return self._steering.steer(action, self.id, given_of(**arguments), wait_s=wait_s, request_id=request_id)


def _labels(tags: Sequence[str], untag: Sequence[str], note: str, notes: str | None) -> dict[str, object]:
    given = {"tags": list(tags) or None, "untag": list(untag) or None, "note": note or None, "notes": notes}
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ExperimentState:
    """The state of an experiment on its broker."""

    name: str
    metric: str
    created_at: float
    #: finished, interrupted or failed; empty before its end.
    outcome: str
    #: Whether a driver runs it.
    is_driven: bool
    #: Age of the newest event, in seconds.
    age_s: float
    #: Number of journal entries.
    entries: int = 0
    #: Why its driver starts nothing, as of some seconds ago. Empty without a driver.
    waits: str = ""
    #: Its creator.
    owner: Owner = NOBODY
    #: Its unfinished submitted script. None while it has a driver, and after its end.
    script: SubmissionState | None = None


class _Broker:
    """A connection to a broker, and its clock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.place = redact(url)
        # redis-py's types cover all settings; with ours, answers are bytes.
        self.redis: Any = connect(url, role="reader")
        self.clock = ServerClock(self.redis)

    def names(self) -> list[str]:
        """Return the names of all readable experiments, newest first."""
        return readable_on(self.redis, patience_s=CONNECT_TIMEOUT_S)

    def unknown(self, name: str) -> str:
        """Return the error message for an experiment that is missing or has not begun."""
        names = self.names()
        if name in names:
            return f"experiment {name!r} on {self.place} has not begun yet{self._way_to_script(name)}"
        return f"there is no experiment {name!r} on {self.place}; {there_are(names)}"

    def _way_to_script(self, name: str) -> str:
        """Return a hint about the script submitted under this name; empty without one."""
        return "" if self.submission(name) is None else f"; a script was submitted for it: mqtune why {name}"

    def submission(self, name: str) -> SubmissionState | None:
        """Return the script submitted under a name. Return None without one, or without read access."""
        # Import the service only when it is needed.
        from mqtune.services.submissions.board import Submissions  # noqa: PLC0415

        with contextlib.suppress(AccessDenied):
            return Submissions(self.redis, patience_s=CONNECT_TIMEOUT_S).state(name)
        return None

    def ask(self, call: Callable[[], T]) -> T:
        """Return the answer to a command. Retry for some seconds while the server is away."""
        return retrying(call, patience_s=CONNECT_TIMEOUT_S)


class ExperimentHandle:
    """Inspects and follows an experiment on a broker, and steers it by requests.

    A monitor's account may only read; requests need an operator's or a driver's account. They wait for answers as in
    ``TrialHandle``. To steer another owner's experiment takes an operator's account or *force*.
    """

    def __init__(self, broker: _Broker, name: str, *, force: bool = False) -> None:
        self.name = name
        self._broker = broker
        self._force = force
        self._keys = ExperimentKeys(name)
        self._journal = RedisJournal(broker.redis, name, patience_s=CONNECT_TIMEOUT_S)

    def __repr__(self) -> str:
        return f"<experiment {self.name} on {self._broker.place}>"

    # Inspection.

    def state(self) -> ExperimentState | None:
        """Return the experiment's state. Return None if it has not begun.

        Raises:
            MessageVersionError: a needed journal entry, named in the message, is not an event of this version.
        """
        if (created := self._created()) is None:
            return None
        last = self._journal.newest(_LAST_COUNT)
        is_driven = (self._driver_until() or 0.0) > self._broker.clock.time()
        waits = self._meta("waits") if is_driven else None
        metric, outcome = created.definition.get("metric", ""), _outcome(last)
        script = None if outcome or is_driven else self._broker.submission(self.name)
        return ExperimentState(
            name=self.name,
            metric=", ".join(map(str, metric)) if isinstance(metric, list) else str(metric),
            created_at=created.at,
            outcome=outcome,
            is_driven=is_driven,
            age_s=self._age_s(last[0].id),
            entries=self._journal.count(),
            waits=(waits or b"").decode(errors="replace"),
            owner=created.owner,
            script=None if script is None or script.has_ended else script,
        )

    def _created(self) -> ExperimentCreated | None:
        """Return the first event of the journal; None if the experiment has not begun."""
        first = self._journal.first()
        created = None if first is None else decode_event(first.data, first.id)
        return created if isinstance(created, ExperimentCreated) else None

    def results(self, folder: Path) -> Results:
        """Copy all events so far into a folder, created if missing, and return the results.

        Raises:
            ConfigurationError: the experiment does not exist, or the folder can't be created or written.
            ChapterUnavailable: its oldest events are in chapters that can't be read from here.
        """
        page = self._journal.read(START.entry, count=_PAGE_COUNT)
        if not page:
            raise ConfigurationError(self._broker.unknown(self.name))
        last: Entry = page[-1]
        make_folder(folder)
        with contextlib.closing(JournalFile(folder / JOURNAL_FILE)) as file:
            file.begin([])
            while page:
                file.append(page)
                last = page[-1]
                page = self._journal.read(last.id, count=_PAGE_COUNT)
        # Date the file by its newest event, like a driver's copy.
        at = time.time() - self._age_s(last.id)
        os.utime(file.path, (at, at))
        return Results.load(folder)

    def trials(self, *statuses: TrialStatus) -> list[TrialHandle]:
        """Return all trials so far, or those with these statuses, in staging order."""
        with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
            trials = self.results(Path(folder)).trials
        return [self.trial(trial.id) for trial in trials if not statuses or trial.status in statuses]

    def trial(self, id: str) -> TrialHandle:  # noqa: A002 - as trials call it
        """Return a handle on a trial. The driver refuses requests about a missing trial."""
        return TrialHandle(id, self)

    def follow(self, *, from_start: bool = True) -> Iterator[Event]:
        """Yield the experiment's events until its end, each once and in the journal's order.

        Args:
            from_start: whether to begin with the first event instead of the next one.

        Raises:
            BrokerUnavailable: the broker was away for too long.
            MessageVersionError: a later version of mqtune writes the journal.
        """
        return follow(self._broker.url, self.name, from_start=from_start)

    # Steering.

    def add(
        self,
        config: Config,
        source: str = "",
        checkpoint: str | None = None,
        *,
        timeout_s: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Try a config before the searcher's next one. The answer comes when a slot is free.

        The answer names the new trial.

        Args:
            config: the config; missing values are sampled.
            source: id of the trial from whose current checkpoint the new trial starts.
            checkpoint: "newest" (default), "best" (without *source*, the best trial's), or the id of a kept checkpoint.
            timeout_s: longest time that an attempt may run, in seconds.
            tags: names by which to find the trial.
            notes: remarks on the trial.
            key: your own name for the trial. If a trial with this key exists, the answer names it immediately.
        """
        given = given_of(
            config=config,
            source=source,
            checkpoint=checkpoint,
            timeout_s=timeout_s,
            key=key,
            tags=list(tags),
            notes=notes,
        )
        return self.steer("add", "", given, wait_s=wait_s, request_id=request_id)

    def ask(
        self,
        config: Config | None = None,
        *,
        timeout_s: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Begin a trial that you evaluate yourself; the answer has its id and config.

        It is RUNNING without a slot or a worker until ``tell`` has its result. The experiment waits for that, and says
        so.

        Args:
            config: your own config; missing values are sampled. By default the searcher's next, which counts for
                ``max_trials``.
            timeout_s: deadline for its last report, in seconds, after which it is FAILED; by default none.
            tags: names by which to find the trial.
            notes: remarks on the trial.
            key: your own name for the trial. If a trial with this key exists, the answer names it.

        Raises:
            RequestRefused: the searcher has no other config, ``max_trials`` have begun, or the experiment ends.
        """
        given = given_of(config=config, timeout_s=timeout_s, key=key, tags=list(tags), notes=notes)
        answer = self.steer("ask", "", given, wait_s=wait_s, request_id=request_id)
        if answer.is_done and answer.config is None:
            # A trial with this key existed already.
            with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
                return answer._replace(config=self.results(Path(folder))[answer.trial].config)
        return answer

    def tell(
        self,
        trial: str | Mapping[str, object],
        metrics: Mapping[str, object],
        *,
        ends: bool = True,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Report a result that you measured yourself, for a trial from ``ask`` or for any config.

        Scheduler, searcher and stop rule treat it like a worker's report. The last report makes the trial COMPLETED. If
        the trial is stopped or paused first, later reports are ignored and the answer's ``reason`` says so. Repeating
        the report of a step changes nothing.

        Args:
            trial: id of a trial from ``ask``; or the config of a new, complete trial, which does not count for
                ``max_trials``.
            metrics: the report: a number for each metric of the experiment and for each value the scheduler uses.
                ``training_iteration`` is by default one more than before.
            ends: whether this is the trial's last report.
            tags: names by which to find a new trial.
            notes: remarks on a new trial.
            key: your own name for a new trial. The report goes to an existing trial with this key, unless that has
                ended.

        Raises:
            RequestRefused: the trial is not from ``ask`` or has ended, the config is outside the space, or a metric is
                missing.
        """
        id_, config = (trial, None) if isinstance(trial, str) else ("", dict(trial))
        given = given_of(metrics=dict(metrics), ends=ends, config=config, key=key, tags=list(tags), notes=notes)
        return self.steer("tell", id_, given, wait_s=wait_s, request_id=request_id)

    def set(
        self,
        *,
        max_trials: int | None = None,
        max_concurrent: int | None = None,
        priority: Priority | None = None,
        share: float | None = None,
        preemptible: bool | None = None,
        journal_mb: float | None = None,
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Change the experiment's limits. Omitted ones stay the same.

        Args:
            max_trials: number of trials to ask the searcher for.
            max_concurrent: most trials to run at the same time.
            priority: "high", "normal" or "low"; see ``Run``.
            share: its number of slots relative to others of its priority.
            preemptible: whether its trials may be paused for others.
            journal_mb: largest size of its journal, in MB. After an increase, waiting trials continue within some
                seconds.
        """
        limits = {"max_trials": max_trials, "max_concurrent": max_concurrent}
        given = given_of(**limits, priority=priority, share=share, preemptible=preemptible, journal_mb=journal_mb)
        if not given:
            raise ConfigurationError(
                "set() changes nothing: give max_trials, max_concurrent, priority, share, preemptible or journal_mb"
            )
        return self.steer("set", "", given, wait_s=wait_s, request_id=request_id)

    def label(
        self,
        tags: Sequence[str] = (),
        *,
        untag: Sequence[str] = (),
        note: str = "",
        notes: str | None = None,
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Change the experiment's tags or notes, like ``TrialHandle.label`` for a trial."""
        return self.steer("label", "", _labels(tags, untag, note, notes), wait_s=wait_s, request_id=request_id)

    def end(self, *, now: bool = False, wait_s: float | None = None, request_id: str = "") -> Answer:
        """End the experiment: start no other trial. Running ones finish, or stop if *now*."""
        return self.steer("end", "", {"now": now}, wait_s=wait_s, request_id=request_id)

    def steer(
        self,
        action: str,
        trial: str,
        arguments: dict[str, object],
        *,
        wait_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Request an action and return the driver's answer.

        Without a driver, or after *wait_s*, the returned answer is pending.

        Raises:
            RequestRefused: the driver or a cap refuses it; the message says why.
            ConfigurationError: the experiment is missing or another's, or an argument can't be sent.
            AccessDenied: the account may not make requests.
            BrokerUnavailable: Redis is away. The message has the request's id for a repetition.
            JournalGone: Redis has lost the experiment, and no driver has restored it.
        """
        self._check_owner(action, trial)
        request = Requested(
            id=request_id or secrets.token_hex(16),
            action=action,
            trial=trial,
            arguments=arguments,
            by=str(person(self._broker.redis)),
            at=self._broker.clock.time(),
        )
        try:
            request.encode()
        except TypeError as error:
            raise ConfigurationError(f"an argument of {action} can't be sent: {error}") from None
        deadline = math.inf if wait_s is None else time.monotonic() + wait_s
        try:
            self._make(request)
            return self._answer(request, deadline)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(
                f"{error}; whether the request was made is not known: make it again with request_id={request.id!r}, which "
                "carries it out once"
            ) from None

    def _check_owner(self, action: str, trial: str) -> None:
        """Refuse a request for another owner's experiment.

        All requests from outside the driver's process pass this check.
        """
        # The driver imports this module, but no service.
        from mqtune.services.ownership.audit import check_owner  # noqa: PLC0415

        owner = NOBODY if (created := self._created()) is None else created.owner
        owned, doing = f"experiment {self.name!r}", f"{action} {trial}".rstrip()
        check_owner(self._broker.redis, owned, owner, doing=doing, force=self._force)

    def _make(self, request: Requested) -> None:
        try:
            self._journal.request(request)
        except JournalGone:
            raise ConfigurationError(self._broker.unknown(self.name)) from None

    def _answer(self, request: Requested, deadline: float) -> Answer:
        """Return the answer to a journaled request, or a pending one."""
        entry = last = ""
        config: Config | None = None
        wait_s, longest_s = _LOOK_S
        while True:
            if (has := self._again(request)) != entry:
                entry = last = has
            # Read the lock's expiry first, so that the read below has all answers of an expired driver.
            until_s = self._driver_until()
            now_s = self._broker.clock.time()
            while entries := self._journal.read(last, count=_PAGE_COUNT):
                for written in entries:
                    event = decode_event(written.data, written.id)
                    if isinstance(event, TrialStaged) and event.request == request.id:
                        config = event.config
                    if isinstance(event, RequestAnswered) and event.id == request.id:
                        return self._taken(event, config)
                last = entries[-1].id
                if len(entries) < _PAGE_COUNT:
                    break
            left_s = deadline - time.monotonic()
            # No expiry means that the server has just been emptied.
            if until_s is not None and until_s <= now_s:
                reason = f"no driver runs experiment {self.name!r} now; the next one will carry the request out"
                return Answer(request.id, is_done=False, reason=reason, trial=request.trial)
            if left_s <= 0:
                reason = f"the driver of experiment {self.name!r} has not answered yet; it will carry the request out"
                return Answer(request.id, is_done=False, reason=reason, trial=request.trial)
            # Poll less and less often.
            time.sleep(min(wait_s, left_s))
            wait_s = min(2 * wait_s, longest_s)

    def _again(self, request: Requested) -> str:
        """Return the entry of an earlier request. Send the request again if the server lost it."""
        # A live driver restores a lost experiment within its lock's lifetime.
        give_up_at = time.monotonic() + self._journal.timing.lock_s
        while True:
            try:
                return self._journal.request(request)
            except JournalGone:
                if time.monotonic() >= give_up_at:
                    raise
                time.sleep(_RETRY_S)

    def _taken(self, event: RequestAnswered, config: Config | None) -> Answer:
        if not event.done:
            raise RequestRefused(f"experiment {self.name!r}: {event.reason}")
        return Answer(event.id, is_done=True, reason=event.reason, trial=event.trial, config=config)

    def _driver_until(self) -> float | None:
        """Return when the driver's lock expires, in server time; None if there was no driver."""
        until_ms = self._meta("driver_until")
        return None if until_ms is None else number(until_ms) / 1000

    def _meta(self, field: str) -> bytes | None:
        with naming(self._keys.meta):
            return cast("bytes | None", self._broker.ask(lambda: self._broker.redis.hget(self._keys.meta, field)))

    def _age_s(self, entry: str) -> float:
        return max(0.0, self._broker.clock.time() - entry_time(entry))


class Client:
    """A connection to a broker's experiments, from any process. It is a context manager.

    Args:
        broker: the broker's URL; ``mqtune fleet acl operator`` creates an account.

    Raises:
        BrokerUnavailable: Redis is missing or too old, or refuses the password.
        ConfigurationError: the URL is malformed.
    """

    def __init__(self, broker: str) -> None:
        self._broker = _Broker(broker)

    @property
    def place(self) -> str:
        """The broker's URL, without its password."""
        return self._broker.place

    def close(self) -> None:
        """Close the connection."""
        self._broker.redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def experiments(self) -> list[ExperimentHandle]:
        """Return all readable experiments, newest first."""
        return [ExperimentHandle(self._broker, name) for name in self._broker.names()]

    def has_begun(self, name: str) -> bool:
        """Whether an experiment of this name exists and its driver has created it."""
        return is_name(name) and ExperimentHandle(self._broker, name).state() is not None

    def experiment(self, name: str, *, force: bool = False) -> ExperimentHandle:
        """Return the experiment of this name; *force* allows steering another owner's.

        Raises:
            ConfigurationError: the experiment is missing or has not begun.
        """
        handle = ExperimentHandle(self._broker, name, force=force)
        # Check the name first: an invalid one may not be a valid Redis key.
        if not is_name(name) or handle.state() is None:
            raise ConfigurationError(self._broker.unknown(name))
        return handle


def _outcome(newest_first: list[Entry]) -> str:
    """Return how the last driver ended; empty if the experiment has continued since."""
    for entry in newest_first:
        event = decode_event(entry.data, entry.id)
        if isinstance(event, ExperimentEnded):
            return event.outcome
        if isinstance(event, TrialStaged | DriverStarted):
            return ""
    return ""
