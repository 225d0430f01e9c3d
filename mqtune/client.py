"""Inspect, follow and steer a broker's experiments from any process on any machine.

A request is an event in the experiment's journal. The driver carries out each request once, in the journal's order, and
journals an answer. If a driver ends before that, the next driver carries out the request.
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

#: Number of newest entries in which to look for the experiment's end. Only a few events can follow that one.
_LAST_COUNT: Final = 50
#: Entries per read.
_PAGE_COUNT: Final = 1_000
#: First and longest wait between polls for an answer, in seconds.
_POLL_S: Final = (0.005, 0.1)
_RETRY_S: Final = 0.1


class Answer(NamedTuple):
    """The answer to a request, or a note that the request is still pending.

    If ``is_done`` is false, a driver will carry out the request, and ``reason`` says what delays it. ``trial`` is the
    id of the request's trial, or of the trial that it added. ``config`` is that trial's config if the request added
    one. To get a lost answer, repeat the request with its ``request_id``: it is not carried out twice.
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
        """Carry out an action, or request it, and return the answer.

        Args:
            action: "stop", "pause", "resume", "restart", "save", "complete", "abandon", "fail", "label", "add", "ask",
                "tell", "set" or "end".
            trial: the trial's id; empty for an action on the experiment.
            arguments: the action's arguments, by name.
            wait_s: longest wait for the driver's answer, in seconds.
            request_id: id of the request to repeat.

        Raises:
            MqtuneError: the action is refused. The message says why.
        """


class TrialHandle:
    """Steers one trial of an experiment from any process.

    In the driver's process, methods act immediately. Elsewhere they send a request and wait for the driver's answer,
    for at most *wait_s* seconds; None waits without a limit. If no driver runs, they return immediately, and the next
    driver carries out the request. Pass ``request_id`` to repeat a request whose answer was lost. An impossible action
    raises an error that says why.

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
        """Resume the paused trial from its newest checkpoint.

        Args:
            config: the config's values to change. By default the config stays the same.
            reason: why, in a few words.
            checkpoint: start from this checkpoint instead: "best", the id of a kept checkpoint or, in the driver's
                process, the path of a folder. "decided" is the checkpoint that the trial had at the report on which it
                was paused, if ``Tuner.next_report`` returned that report. Without a checkpoint there, it starts from
                scratch.
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
        """Run the trial again under its id, from scratch or from a checkpoint.

        If the trial runs, it is stopped first.

        Args:
            config: the config's values to change. By default the config stays the same.
            reason: why, in a few words.
            source: id of another trial from whose checkpoint to start.
            checkpoint: "newest" or "best" of *source* or, without *source*, of this trial; or the id of a checkpoint;
                or, in the driver's process, the path of a folder. Without *source* and *checkpoint* the trial starts
                from scratch.
        """
        return self._do(
            "restart", wait_s, request_id, config=config, source=source, checkpoint=checkpoint, reason=reason
        )

    def save(self, *, wait_s: float | None = None, request_id: str = "") -> Answer:
        """Tell the running trial to save a checkpoint soon.

        The answer doesn't wait for the checkpoint.
        """
        return self._do("save", wait_s, request_id)

    def complete(self, reason: str = "", *, wait_s: float | None = None, request_id: str = "") -> Answer:
        """End the trial as COMPLETED."""
        return self._do("complete", wait_s, request_id, reason=reason)

    def abandon(self, reason: str = "", *, wait_s: float | None = None, request_id: str = "") -> Answer:
        """End the trial as ABANDONED: searchers ignore it, and never propose its config again."""
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
        """Change the tags or notes of the trial, in any status.

        The change takes effect immediately, even if no driver runs.

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
    """A summary of an experiment, as its broker has it."""

    name: str
    metric: str
    created_at: float
    #: "finished", "interrupted" or "failed". Empty before the experiment's end.
    outcome: str
    #: Whether a driver runs.
    is_driven: bool
    #: Age of the newest event, in seconds.
    age_s: float
    #: Number of journal entries.
    entries: int = 0
    #: Why the driver starts no trial, as of some seconds ago. Empty if it can, or if no driver runs.
    waits: str = ""
    #: The user who created it.
    owner: Owner = NOBODY
    #: The submitted script that is to drive it. None without one, while a driver runs, and after the experiment's or
    #: the script's end.
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
        """Return the names of all experiments that this account may read, newest first."""
        return readable_on(self.redis, patience_s=CONNECT_TIMEOUT_S)

    def unknown(self, name: str) -> str:
        """Return the error message for an experiment that is missing or has not begun."""
        names = self.names()
        if name in names:
            return f"experiment {name!r} on {self.place} has not begun yet{self._script_hint(name)}"
        return f"there is no experiment {name!r} on {self.place}; {there_are(names)}"

    def _script_hint(self, name: str) -> str:
        """Return the command that shows the script submitted for an experiment.

        Empty without a script.
        """
        return "" if self.submission(name) is None else f"; a script was submitted for it: mqtune why {name}"

    def submission(self, name: str) -> SubmissionState | None:
        """Return the script submitted for an experiment.

        None without such a script, or without read access.
        """
        # The driver imports this module, but no service.
        from mqtune.services.submissions.board import Submissions  # noqa: PLC0415

        with contextlib.suppress(AccessDenied):
            return Submissions(self.redis, patience_s=CONNECT_TIMEOUT_S).state(name)
        return None

    def retrying(self, call: Callable[[], T]) -> T:
        """Call *call* and return its result. Repeat it for some seconds while the server is away."""
        return retrying(call, patience_s=CONNECT_TIMEOUT_S)


class ExperimentHandle:
    """Inspects, follows and steers one experiment on a broker.

    Steering sends requests, and waits for the driver's answers as ``TrialHandle`` does. It needs an operator's or a
    driver's account; a monitor's account may only read. To steer another owner's experiment, use an operator's account
    or pass *force*.
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
            MessageVersionError: this version of mqtune can't decode a journal entry. The message names the entry.
        """
        if (created := self._created()) is None:
            return None
        last = self._journal.newest(_LAST_COUNT)
        is_driven = (self._lock_expires_at() or 0.0) > self._broker.clock.time()
        waits = self._meta("waits") if is_driven else None
        metric, outcome = created.definition.get("metric", ""), _last_outcome(last)
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
        """Return the journal's first event. Return None if the experiment has not begun."""
        first = self._journal.first()
        created = None if first is None else decode_event(first.data, first.id)
        return created if isinstance(created, ExperimentCreated) else None

    def results(self, folder: Path) -> Results:
        """Copy the journal so far into a folder, and return the results.

        A missing folder is created.

        Raises:
            ConfigurationError: the experiment does not exist, or the folder can't be created or written.
            ChapterUnavailable: the checkpoint store has the oldest events, and can't be read from here.
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
        """Return handles on the trials so far, in the order of their ids.

        With *statuses*, return only trials with one of these.
        """
        with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
            trials = self.results(Path(folder)).trials
        return [self.trial(trial.id) for trial in trials if not statuses or trial.status in statuses]

    def trial(self, id: str) -> TrialHandle:  # noqa: A002 - as trials call it
        """Return a handle on a trial. The trial's existence is not checked until a request."""
        return TrialHandle(id, self)

    def follow(self, *, from_start: bool = True) -> Iterator[Event]:
        """Yield the experiment's events until its end, each once and in the journal's order.

        Args:
            from_start: whether to begin with the journal's first event. Otherwise only new events are yielded.

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
        """Add a trial with this config, to be started before the searcher's next one.

        The answer comes when a slot is free, and names the new trial.

        Args:
            config: the config; missing values are sampled.
            source: id of the trial from whose current checkpoint the new trial starts.
            checkpoint: the checkpoint to start from: "newest" of *source* (the default), "best" of *source* or, without
                *source*, of the best trial, or the id of a kept checkpoint. Without both arguments the trial starts
                from scratch.
            timeout_s: longest time that an attempt may run, in seconds.
            tags: names by which to find the trial.
            notes: remarks on the trial.
            key: your own name for the trial. If a trial with this key exists, no trial is added, and the answer names
                the existing one immediately.
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
        """Begin a trial that you evaluate yourself. The answer has its id and config.

        The trial is RUNNING without a slot or a worker until you report its result with ``tell``. The experiment does
        not finish before that.

        Args:
            config: your own config; missing values are sampled. By default the searcher's next config, which counts for
                ``max_trials``.
            timeout_s: time limit for the trial's last report, in seconds. After it the trial is FAILED. By default
                there is no limit.
            tags: names by which to find the trial.
            notes: remarks on the trial.
            key: your own name for the trial. If a trial with this key exists, no trial begins, and the answer has the
                existing one.

        Raises:
            RequestRefused: the searcher has no other config, ``max_trials`` trials have begun, or the experiment ends.
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
        the trial is stopped or paused first, later reports are ignored, and the answer's ``reason`` says so. A repeated
        report of the same step changes nothing.

        Args:
            trial: id of a trial from ``ask``; or a config, for a new trial with this one report. The new trial does not
                count for ``max_trials``.
            metrics: the report's values, by key. Each metric of the experiment and the scheduler's ``time_attr`` must
                have a number. A missing ``training_iteration`` becomes that of the trial's last report plus 1.
            ends: whether this is the trial's last report.
            tags: names by which to find a new trial.
            notes: remarks on a new trial.
            key: your own name for a new trial. If a trial with this key exists, the report goes to that one. If that
                trial has ended, the report is ignored.

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
        """Change the experiment's limits. Omitted limits stay the same.

        ``RunOptions`` explains the limits.

        Args:
            max_trials: total number of trials that the searcher proposes.
            max_concurrent: largest number of trials that run at the same time.
            priority: "high", "normal" or "low".
            share: weight by which experiments of the same priority divide the slots.
            preemptible: whether its trials may be paused to free slots for other experiments.
            journal_mb: largest size of its journal, in MB. After an increase, trials that waited for space continue
                within some seconds.
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
        """Start no further trial, and end the experiment after the running ones.

        With *now*, running trials are stopped.
        """
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

        The answer is pending if no driver runs, or if the driver has not answered within *wait_s*.

        Raises:
            RequestRefused: the driver or an operator's cap refuses it. The message says why.
            ConfigurationError: the experiment is missing or belongs to another owner, or an argument can't be sent.
            AccessDenied: the account may not make requests.
            BrokerUnavailable: Redis is away. The message has the request's id, to repeat the request.
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
            self._send(request)
            return self._wait_for_answer(request, deadline)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(
                f"{error}; whether the request was made is not known: make it again with request_id={request.id!r}, "
                "which carries it out once"
            ) from None

    def _check_owner(self, action: str, trial: str) -> None:
        """Raise if the experiment belongs to another owner.

        *force* or an operator's account skips this. All requests from outside the driver's process pass this check.
        """
        # The driver imports this module, but no service.
        from mqtune.services.ownership.audit import check_owner  # noqa: PLC0415

        owner = NOBODY if (created := self._created()) is None else created.owner
        owned, doing = f"experiment {self.name!r}", f"{action} {trial}".rstrip()
        check_owner(self._broker.redis, owned, owner, doing=doing, force=self._force)

    def _send(self, request: Requested) -> None:
        try:
            self._journal.request(request)
        except JournalGone:
            raise ConfigurationError(self._broker.unknown(self.name)) from None

    def _wait_for_answer(self, request: Requested, deadline: float) -> Answer:
        """Wait for the answer to a journaled request.

        After *deadline*, or without a driver, it is pending.
        """
        entry = last = ""
        config: Config | None = None
        wait_s, longest_s = _POLL_S
        while True:
            if (sent_as := self._ensure_sent(request)) != entry:
                entry = last = sent_as
            # Read the lock's expiry first, so that the read below has all answers of a driver whose lock has expired.
            until_s = self._lock_expires_at()
            now_s = self._broker.clock.time()
            while entries := self._journal.read(last, count=_PAGE_COUNT):
                for written in entries:
                    event = decode_event(written.data, written.id)
                    if isinstance(event, TrialStaged) and event.request == request.id:
                        config = event.config
                    if isinstance(event, RequestAnswered) and event.id == request.id:
                        return self._answer_of(event, config)
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

    def _ensure_sent(self, request: Requested) -> str:
        """Return the id of the request's journal entry.

        Send the request again if the server has lost it.
        """
        # If the server has lost the experiment, a live driver restores it before its lock expires.
        give_up_at = time.monotonic() + self._journal.timing.lock_s
        while True:
            try:
                return self._journal.request(request)
            except JournalGone:
                if time.monotonic() >= give_up_at:
                    raise
                time.sleep(_RETRY_S)

    def _answer_of(self, event: RequestAnswered, config: Config | None) -> Answer:
        if not event.done:
            raise RequestRefused(f"experiment {self.name!r}: {event.reason}")
        return Answer(event.id, is_done=True, reason=event.reason, trial=event.trial, config=config)

    def _lock_expires_at(self) -> float | None:
        """Return when the driver's lock expires, in server time.

        Return None if there was no driver yet.
        """
        until_ms = self._meta("driver_until")
        return None if until_ms is None else number(until_ms) / 1000

    def _meta(self, field: str) -> bytes | None:
        with naming(self._keys.meta):
            return cast("bytes | None", self._broker.retrying(lambda: self._broker.redis.hget(self._keys.meta, field)))

    def _age_s(self, entry: str) -> float:
        return max(0.0, self._broker.clock.time() - entry_time(entry))


class Client:
    """Connects to a broker and returns handles on its experiments. It is a context manager.

    Args:
        broker: the broker's URL, with an account's name and password if the broker has accounts
            (``mqtune fleet acl operator`` creates one).

    Raises:
        BrokerUnavailable: Redis can't be reached, is too old, or refuses the password.
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
        """Return handles on all experiments that this account may read, newest first."""
        return [ExperimentHandle(self._broker, name) for name in self._broker.names()]

    def has_begun(self, name: str) -> bool:
        """Whether an experiment of this name exists and its driver has created it."""
        return is_name(name) and ExperimentHandle(self._broker, name).state() is not None

    def experiment(self, name: str, *, force: bool = False) -> ExperimentHandle:
        """Return a handle on the experiment of this name.

        Args:
            name: the experiment's name.
            force: whether the handle may steer an experiment of another owner.

        Raises:
            ConfigurationError: the experiment is missing or has not begun.
        """
        handle = ExperimentHandle(self._broker, name, force=force)
        # Check the name first: an invalid one may not be a valid Redis key.
        if not is_name(name) or handle.state() is None:
            raise ConfigurationError(self._broker.unknown(name))
        return handle


def _last_outcome(newest_first: list[Entry]) -> str:
    """Return the outcome of the last driver. It is empty if the experiment has continued since."""
    for entry in newest_first:
        event = decode_event(entry.data, entry.id)
        if isinstance(event, ExperimentEnded):
            return event.outcome
        if isinstance(event, TrialStaged | DriverStarted):
            return ""
    return ""
