"""A broker's experiments from any process on any machine: look at them, follow them, and steer them by requests.

A request is an event in the experiment's journal. The driver carries requests out in the order of the journal, each once, and
journals its answer; what no driver has answered, the next one does.
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
from mqtune.journal.clock import ServerClock
from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect, redact
from mqtune.journal.copy import JOURNAL_FILE, JournalFile
from mqtune.journal.follow import follow
from mqtune.journal.owner import person
from mqtune.journal.redis import RedisJournal, number
from mqtune.journal.retry import retrying
from mqtune.journal.states import readable_on
from mqtune.journal.stream import naming
from mqtune.results.checkpoints import Origin
from mqtune.results.results import Results

if TYPE_CHECKING:
    from mqtune.services.submissions.board import SubmissionState

T = TypeVar("T")

#: How many of the newest entries tell whether an experiment has ended: what still comes after the end is a few events.
_LAST_COUNT: Final = 50
#: Entries that one read takes.
_PAGE_COUNT: Final = 1_000
#: How often who waits for an answer looks for it, at first and later.
_LOOK_S: Final = (0.005, 0.1)
_RETRY_S: Final = 0.1


class Answer(NamedTuple):
    """The driver's answer to a request, or that there is none yet.

    With ``is_done`` the request was carried out. Without it the request is in the journal and will be carried out; ``reason``
    says what that waits for. ``trial`` is the trial that it was about, or that it made. ``request_id`` names the request:
    making it again with this id returns its answer, and carries nothing out twice. ``config`` is that of the trial, where the
    request has made one, or has asked for one.
    """

    request_id: str
    is_done: bool
    reason: str = ""
    trial: str = ""
    config: Config | None = None


class Steering(Protocol):
    """Carries out an action on an experiment, or requests it of the driver."""

    def steer(
        self,
        action: str,
        trial: str,
        arguments: dict[str, object],
        *,
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Return the answer; raise an ``MqtuneError`` when the action is refused.

        Args:
            action: "stop", "pause", "resume", "restart", "save", "complete", "abandon", "fail", "label", "add", "ask", "tell", "set" or "end".
            trial: the trial's id; empty for an action on the experiment.
            arguments: of the action, by name.
            timeout_s: how long to wait for the driver's answer.
            request_id: of an earlier request that is repeated.
        """


class TrialHandle:
    """Steers one trial of an experiment; the same in the driver's process, where it acts at once, and in any other.

    Each method returns when the driver has answered, at the latest after *timeout_s* seconds; without a driver at once, and
    the next driver carries the request out. ``request_id`` repeats a request whose answer was lost. Actions that can't be
    carried out, because of the trial's status for example, raise an error that says why.

    Args:
        id: the trial's id.
        steering: what carries the actions out.
    """

    def __init__(self, id: str, steering: Steering) -> None:  # noqa: A002 - as trials call it
        self.id = id
        self._steering = steering

    def __repr__(self) -> str:
        return f"<trial {self.id}>"

    def stop(self, reason: str = "", *, timeout_s: float | None = None, request_id: str = "") -> Answer:
        """Stop the trial early."""
        return self._do("stop", timeout_s, request_id, reason=reason)

    def pause(self, reason: str = "", *, timeout_s: float | None = None, request_id: str = "") -> Answer:
        """Pause the trial: it saves a checkpoint if it can, its process ends and its slot becomes free."""
        return self._do("pause", timeout_s, request_id, reason=reason)

    def resume(
        self,
        config: Config | None = None,
        reason: str = "",
        *,
        checkpoint: Origin | None = None,
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Stage the paused trial again, from its newest checkpoint, with the values of *config* in place of those it has.

        Args:
            config: what is to be different from now on.
            reason: why, in a few words.
            checkpoint: where it goes on from instead: its "best", or the id of any checkpoint that is kept; "decided", the one
                that it had at the report of ``Tuner.next_report`` on which it was paused, from scratch if it had none; in the
                driver's process also the path of a folder.
        """
        return self._do("resume", timeout_s, request_id, config=config, checkpoint=checkpoint, reason=reason)

    def restart(
        self,
        config: Config | None = None,
        reason: str = "",
        *,
        source: str = "",
        checkpoint: Origin | None = None,
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Restart the trial in place, from scratch or from a checkpoint, with the values of *config*.

        A running attempt ends first.

        Args:
            config: what is to be different from now on.
            reason: why, in a few words.
            source: the id of a trial from whose checkpoint it begins.
            checkpoint: which, of *source* or its own: "newest", "best" or an id; in the driver's process also a folder.
        """
        return self._do(
            "restart", timeout_s, request_id, config=config, source=source, checkpoint=checkpoint, reason=reason
        )

    def save(self, *, timeout_s: float | None = None, request_id: str = "") -> Answer:
        """Save a checkpoint of the running trial as soon as it can; the answer doesn't wait for the checkpoint."""
        return self._do("save", timeout_s, request_id)

    def complete(self, reason: str = "", *, timeout_s: float | None = None, request_id: str = "") -> Answer:
        """End the trial as COMPLETED: it has done all it was meant to do."""
        return self._do("complete", timeout_s, request_id, reason=reason)

    def abandon(self, reason: str = "", *, timeout_s: float | None = None, request_id: str = "") -> Answer:
        """Give the trial up: its config is never proposed again, and searchers leave it out."""
        return self._do("abandon", timeout_s, request_id, reason=reason)

    def fail(self, reason: str = "", *, timeout_s: float | None = None, request_id: str = "") -> Answer:
        """End the trial as FAILED; it is not tried again."""
        return self._do("fail", timeout_s, request_id, reason=reason)

    def label(
        self,
        tags: Sequence[str] = (),
        *,
        untag: Sequence[str] = (),
        note: str = "",
        notes: str | None = None,
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Give the trial, whatever its status, more tags or another note; in force at once, without a driver too.

        Args:
            tags: what it has from now on too.
            untag: what it has no longer.
            note: a line below its notes.
            notes: what it has in place of its notes.
        """
        given = _labels(tags, untag, note, notes)
        return self._steering.steer("label", self.id, given, timeout_s=timeout_s, request_id=request_id)

    def _do(self, action: str, timeout_s: float | None, request_id: str, **arguments: object) -> Answer:
        return self._steering.steer(action, self.id, given_of(**arguments), timeout_s=timeout_s, request_id=request_id)


def _labels(tags: Sequence[str], untag: Sequence[str], note: str, notes: str | None) -> dict[str, object]:
    given = {"tags": list(tags) or None, "untag": list(untag) or None, "note": note or None, "notes": notes}
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ExperimentState:
    """How an experiment stands on its broker."""

    name: str
    metric: str
    created_at: float
    #: finished, interrupted or failed; empty when it has not ended.
    outcome: str
    #: Whether a driver has it.
    is_driven: bool
    #: How long ago the newest event was, in seconds.
    age_s: float
    #: How many entries its journal has: what it takes to read it.
    entries: int = 0
    #: Why its driver starts nothing, in its own words of some seconds ago; empty without a driver.
    waits: str = ""
    #: Its creator.
    owner: Owner = NOBODY
    #: Its submitted script, if that has not ended; None once the experiment has ended, and while it has a driver.
    script: SubmissionState | None = None


class _Broker:
    """A connection to a broker, and its clock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.place = redact(url)
        # redis-py types answers as what any setting might give; with ours they are bytes.
        self.redis: Any = connect(url, role="reader")
        self.clock = ServerClock(self.redis)

    def names(self) -> list[str]:
        """Return the names of all experiments that the account may read, newest first."""
        return readable_on(self.redis, patience_s=CONNECT_TIMEOUT_S)

    def unknown(self, name: str) -> str:
        """Say that there is no experiment of this name, or that it has not begun, and which there are."""
        names = self.names()
        if name in names:
            return f"experiment {name!r} on {self.place} has not begun yet{self._way_to_script(name)}"
        return f"there is no experiment {name!r} on {self.place}; {there_are(names)}"

    def _way_to_script(self, name: str) -> str:
        """Return how to learn what has become of the script that was submitted under this name; empty where none was."""
        return "" if self.submission(name) is None else f"; a script was submitted for it: mqtune why {name}"

    def submission(self, name: str) -> SubmissionState | None:
        """Return the script that was submitted under a name; None if nothing was, or the account may not read it."""
        # A program without submissions does without the service, too.
        from mqtune.services.submissions.board import Submissions  # noqa: PLC0415

        with contextlib.suppress(AccessDenied):
            return Submissions(self.redis, patience_s=CONNECT_TIMEOUT_S).state(name)
        return None

    def ask(self, call: Callable[[], T]) -> T:
        """Return the answer to a command, trying again for some seconds while the server is away."""
        return retrying(call, patience_s=CONNECT_TIMEOUT_S)


class ExperimentHandle:
    """Looks at an experiment on a broker, follows it, and steers it by requests.

    A monitor's account may look and follow; requests need an operator's or a driver's. Requests wait for the driver's answer
    as those of ``TrialHandle`` do. Requests of another's experiment are refused, without an operator's account or *force*.
    """

    def __init__(self, broker: _Broker, name: str, *, force: bool = False) -> None:
        self.name = name
        self._broker = broker
        self._force = force
        self._keys = ExperimentKeys(name)
        self._journal = RedisJournal(broker.redis, name, patience_s=CONNECT_TIMEOUT_S)

    def __repr__(self) -> str:
        return f"<experiment {self.name} on {self._broker.place}>"

    # Looking.

    def state(self) -> ExperimentState | None:
        """Return how the experiment stands; None when it has not begun.

        Raises:
            MessageVersionError: an entry of its journal that this needs is not an event of this version; the message names the entry.
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
        """Return the first event of the journal; None when the experiment has not begun."""
        first = self._journal.first()
        created = None if first is None else decode_event(first.data, first.id)
        return created if isinstance(created, ExperimentCreated) else None

    def results(self, folder: Path) -> Results:
        """Copy all events so far into a folder, and return the results. The folder is made if it does not exist.

        Raises:
            ConfigurationError: there is no such experiment, or the folder can't be made or written.
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
        # As old as its newest event, as a driver's own copy is.
        at = time.time() - self._age_s(last.id)
        os.utime(file.path, (at, at))
        return Results.load(folder)

    def trials(self, *statuses: TrialStatus) -> list[TrialHandle]:
        """Return all trials so far, or those with these statuses, in the order in which they were staged."""
        with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
            found = self.results(Path(folder)).trials
        return [self.trial(trial.id) for trial in found if not statuses or trial.status in statuses]

    def trial(self, id: str) -> TrialHandle:  # noqa: A002 - as trials call it
        """Return a handle on a trial; a request for one that there is none of is refused by the driver."""
        return TrialHandle(id, self)

    def follow(self, *, from_start: bool = True) -> Iterator[Event]:
        """Yield the experiment's events as they happen, each once and in the journal's order, until it has ended.

        Args:
            from_start: whether to begin with its first event, or with the next one.

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
        ttl_s: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Try a config next, before the searcher's; the answer comes when a slot is free, and names the new trial.

        Args:
            config: what to try; what it leaves out is sampled.
            source: the id of a trial from whose checkpoint, as of now, the new one starts.
            checkpoint: which: "newest", the default; "best", without *source* the best trial's; or the id of any that is kept.
            ttl_s: how long an attempt of it may run, in seconds.
            tags: names by which it is found again.
            notes: what there is to say about it.
            key: a name of your own for it; where the experiment has a trial with this key, that is the answer, at once.
        """
        given = given_of(
            config=config, source=source, checkpoint=checkpoint, ttl_s=ttl_s, key=key, tags=list(tags), notes=notes
        )
        return self.steer("add", "", given, timeout_s=timeout_s, request_id=request_id)

    def ask(
        self,
        config: Config | None = None,
        *,
        ttl_s: float | None = None,
        tags: Sequence[str] = (),
        notes: str = "",
        key: str = "",
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Begin a trial that you evaluate outside, without a worker; the answer names it, and has its config.

        It is RUNNING, and takes no slot, until ``tell`` has its result. The experiment waits for that, and says so.

        Args:
            config: your own, of which what it lacks is sampled; by default the searcher's next one, which counts for ``max_trials``.
            ttl_s: within how many seconds it is to be told to its end: then it is FAILED; by default there is no such time.
            tags: names by which it is found again.
            notes: what there is to say about it.
            key: a name of your own for it; where the experiment has a trial with this key, that is the answer.

        Raises:
            RequestRefused: the searcher has no other config, ``max_trials`` have begun, or the experiment ends.
        """
        given = given_of(config=config, ttl_s=ttl_s, key=key, tags=list(tags), notes=notes)
        answer = self.steer("ask", "", given, timeout_s=timeout_s, request_id=request_id)
        if answer.is_done and answer.config is None:
            # One with this key was there before.
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
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Tell a result that was found outside, of a trial that was asked for, or of any config.

        Scheduler, searcher and stop rule learn of it as of a worker's report. With the last report the trial is COMPLETED. A trial
        that is stopped, or paused, before that is not told any more: the ``reason`` of the answer says so. A report of a step that
        was told before changes nothing.

        Args:
            trial: the id of a trial that was asked for; or a config, for a new trial that is complete, which does not count for
                ``max_trials``.
            metrics: the report, with a number for each metric of the experiment, and for what the scheduler goes by.
                ``training_iteration`` is by default one more than before.
            ends: whether it is the last one; False for a report on the way.
            tags: names by which a new trial is found again.
            notes: what there is to say about a new trial.
            key: a name of your own for a new trial; where the experiment has one with this key, that is told, unless it has ended.

        Raises:
            RequestRefused: the trial is none that was asked for, or has ended; the config is not of the space; or a metric is missing.
        """
        id_, config = (trial, None) if isinstance(trial, str) else ("", dict(trial))
        given = given_of(metrics=dict(metrics), ends=ends, config=config, key=key, tags=list(tags), notes=notes)
        return self.steer("tell", id_, given, timeout_s=timeout_s, request_id=request_id)

    def set(
        self,
        *,
        max_trials: int | None = None,
        max_concurrent: int | None = None,
        priority: Priority | None = None,
        share: float | None = None,
        preemptible: bool | None = None,
        journal_mb: float | None = None,
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Change how many trials there may be, how many at once, what it gets of a shared fleet, or how large its journal may be; the rest stays.

        Args:
            max_trials: how many trials the searcher is asked for.
            max_concurrent: how many may run at once.
            priority: "high", "normal" or "low"; see ``Run``.
            share: how many slots it gets against others of its priority.
            preemptible: whether its trials may be paused for others.
            journal_mb: how large its journal may be; where it is raised, trials that wait go on within some seconds.
        """
        limits = {"max_trials": max_trials, "max_concurrent": max_concurrent}
        given = given_of(**limits, priority=priority, share=share, preemptible=preemptible, journal_mb=journal_mb)
        if not given:
            raise ConfigurationError(
                "set() changes nothing: give max_trials, max_concurrent, priority, share, preemptible or journal_mb"
            )
        return self.steer("set", "", given, timeout_s=timeout_s, request_id=request_id)

    def label(
        self,
        tags: Sequence[str] = (),
        *,
        untag: Sequence[str] = (),
        note: str = "",
        notes: str | None = None,
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Give the experiment more tags or another note, as ``TrialHandle.label`` does a trial."""
        return self.steer("label", "", _labels(tags, untag, note, notes), timeout_s=timeout_s, request_id=request_id)

    def end(self, *, now: bool = False, timeout_s: float | None = None, request_id: str = "") -> Answer:
        """End the experiment: start no other trial and let those that run end by themselves; with *now* stop them."""
        return self.steer("end", "", {"now": now}, timeout_s=timeout_s, request_id=request_id)

    def steer(
        self,
        action: str,
        trial: str,
        arguments: dict[str, object],
        *,
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> Answer:
        """Request an action of the driver and return its answer; without a driver, or after *timeout_s*, that there is none yet.

        Raises:
            RequestRefused: the driver refuses it, or a cap lets no more come for now; the message says why.
            ConfigurationError: there is no such experiment, it is another's, or an argument can't be sent.
            AccessDenied: the account may not make requests.
            BrokerUnavailable: Redis is away. The message carries the request's id, with which it may be made again.
            JournalGone: Redis has lost the experiment, and no driver has put it back.
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
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        try:
            self._make(request)
            return self._answer(request, deadline)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(
                f"{error}; whether the request was made is not known: make it again with request_id={request.id!r}, which "
                "carries it out once"
            ) from None

    def _check_owner(self, action: str, trial: str) -> None:
        """Refuse a request of another's experiment: all requests from outside the driver's process pass here."""
        # The driver imports this module, and no service.
        from mqtune.services.ownership.audit import check_owner  # noqa: PLC0415

        owner = NOBODY if (created := self._created()) is None else created.owner
        what, doing = f"experiment {self.name!r}", f"{action} {trial}".rstrip()
        check_owner(self._broker.redis, what, owner, doing=doing, force=self._force)

    def _make(self, request: Requested) -> None:
        try:
            self._journal.request(request)
        except JournalGone:
            raise ConfigurationError(self._broker.unknown(self.name)) from None

    def _answer(self, request: Requested, deadline: float) -> Answer:
        """Return the answer to a request that was made, or that there is none yet."""
        entry = last = ""
        config: Config | None = None
        wait_s, longest_s = _LOOK_S
        while True:
            if (has := self._again(request)) != entry:
                entry = last = has
            # What the last driver has answered can be read once it drives no more.
            until_s = self._driver_until()
            now_s = self._broker.clock.time()
            while entries := self._journal.read(last, count=_PAGE_COUNT):
                for each in entries:
                    event = decode_event(each.data, each.id)
                    if isinstance(event, TrialStaged) and event.request == request.id:
                        config = event.config
                    if isinstance(event, RequestAnswered) and event.id == request.id:
                        return self._taken(event, config)
                last = entries[-1].id
                if len(entries) < _PAGE_COUNT:
                    break
            left_s = deadline - time.monotonic()
            # Without any, the server has just been emptied.
            if until_s is not None and until_s <= now_s:
                reason = f"no driver runs experiment {self.name!r} now; the next one will carry the request out"
                return Answer(request.id, is_done=False, reason=reason, trial=request.trial)
            if left_s <= 0:
                reason = f"the driver of experiment {self.name!r} has not answered yet; it will carry the request out"
                return Answer(request.id, is_done=False, reason=reason, trial=request.trial)
            # The answer is an entry of the journal, which is looked at less and less often.
            time.sleep(min(wait_s, left_s))
            wait_s = min(2 * wait_s, longest_s)

    def _again(self, request: Requested) -> str:
        """Return the entry of a request that was made before, and make it again if the server has lost it."""
        # A living driver restores an experiment that its server has lost within the time of its lock.
        give_up_at = time.monotonic() + self._journal.timing.lock_s
        while True:
            try:
                return self._journal.request(request)
            except JournalGone:
                if time.monotonic() >= give_up_at:
                    raise
                # A driver that lives restores the experiment in a moment.
                time.sleep(_RETRY_S)

    def _taken(self, event: RequestAnswered, config: Config | None) -> Answer:
        if not event.done:
            raise RequestRefused(f"experiment {self.name!r}: {event.reason}")
        return Answer(event.id, is_done=True, reason=event.reason, trial=event.trial, config=config)

    def _driver_until(self) -> float | None:
        """Return the server's time at which the driver's lock expires, or expired; None when there was no driver."""
        until_ms = self._meta("driver_until")
        return None if until_ms is None else number(until_ms) / 1000

    def _meta(self, field: str) -> bytes | None:
        with naming(self._keys.meta):
            return cast("bytes | None", self._broker.ask(lambda: self._broker.redis.hget(self._keys.meta, field)))

    def _age_s(self, entry: str) -> float:
        return max(0.0, self._broker.clock.time() - entry_time(entry))


class Client:
    """A broker's experiments, from any process; it is a context manager that closes its connection.

    Args:
        broker: the broker's URL; ``mqtune acl operator`` makes an account for one.

    Raises:
        BrokerUnavailable: there is no Redis, it refuses the password, or is too old.
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
        """Return all experiments that the account may read, newest first."""
        return [ExperimentHandle(self._broker, name) for name in self._broker.names()]

    def has_begun(self, name: str) -> bool:
        """Whether there is an experiment of this name, and its driver has created it."""
        return is_name(name) and ExperimentHandle(self._broker, name).state() is not None

    def experiment(self, name: str, *, force: bool = False) -> ExperimentHandle:
        """Return the experiment of this name, with *force* also to steer another's.

        Raises:
            ConfigurationError: there is none, or it has not begun.
        """
        found = ExperimentHandle(self._broker, name, force=force)
        # A text that names no experiment may not even be one that Redis takes for a key.
        if not is_name(name) or found.state() is None:
            raise ConfigurationError(self._broker.unknown(name))
        return found


def _outcome(newest_first: list[Entry]) -> str:
    """Return how the last driver ended, or nothing when the experiment has gone on since."""
    for entry in newest_first:
        event = decode_event(entry.data, entry.id)
        if isinstance(event, ExperimentEnded):
            return event.outcome
        if isinstance(event, TrialStaged | DriverStarted):
            return ""
    return ""
