"""``mqtune why``: explains why a trial is waiting, or why nothing is starting."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Final

import click

from mqtune.backends.placement import EqualWorkers, SlotRoom
from mqtune.cli.causes import CAUSES, Reason
from mqtune.cli.fleet import Run, experiments_of, impairment_text, open_fleet, runs_on
from mqtune.cli.output import broker_option, json_option, print_json, say
from mqtune.cli.place import complete_trial, find_place, find_trial, live_broker, name_argument, opened
from mqtune.cli.servers import PATIENCE_S, client_of, redis_at
from mqtune.cli.submit import submission_of, why_no_driver_slot
from mqtune.core.errors import AccessDenied, ConfigurationError, MqtuneError
from mqtune.core.machine import SERVER_FOLDER
from mqtune.core.resources import BY_CONFIG, Resources, serves
from mqtune.core.text import counted
from mqtune.core.timing import Timing
from mqtune.core.trial import Trial, TrialStatus
from mqtune.core.version import __version__, meets
from mqtune.journal.server.room import FULL, JOURNAL_FULL, Room
from mqtune.results.experiments import duration, script_in_words
from mqtune.services.gangs.seating import Seating
from mqtune.services.gangs.waiting import HeldSeats
from mqtune.services.shares.advice import users_of_quota, way_to_more
from mqtune.services.shares.divider import Table, quota_in
from mqtune.services.shares.overview import demands_on, quotas_on

if TYPE_CHECKING:
    from mqtune.cli.place import Place
    from mqtune.client import ExperimentState
    from mqtune.core.codec import Body
    from mqtune.core.experiment import Experiment
    from mqtune.core.worker_info import WorkerInfo
    from mqtune.journal.base import Unclaimed
    from mqtune.services.shares.quotas import Quota
    from mqtune.services.submissions.board import SubmissionState

#: Causes that a free slot would not remove.
_NO_WORKER: Final = frozenset({"no worker", "no match"})
#: A part of the driver's text if it waits because of max_concurrent.
_LIMIT: Final = "max_concurrent="
#: The most attempts, workers or reasons that are named.
_SHOWN: Final = 4
#: Causes that more memory for Redis would not remove.
_UNLIKE_FULL: Final = frozenset(
    {"no driver", "script", "worker gone", "paused", "paused by hand", "ending", "redis takes no writes"}
)
_AUTHORS: Final = {
    "scheduler": " by the scheduler",
    "stop rule": " by the stop rule",
    "driver": " by the driver",
    "user": " by hand",
}


@click.command("why")
@name_argument
@click.argument("trial", required=False, shell_complete=complete_trial)
@broker_option("The Redis server that has the experiment. Not needed for one that runs on this machine alone.")
@json_option
def command(name: str, trial: str | None, broker: str | None, *, as_json: bool) -> None:
    """Explain why a trial is waiting, or why nothing new is starting.

    Each cause is printed with a way out, if you can do anything. The driver's own reason is some seconds old.
    """
    place = find_place(name, broker)
    chosen, reason = None, why_not_begun(place)
    reasons = [] if reason is None else [reason]
    if not reasons:
        with opened(place) as view:
            experiment = view.results.experiment
            chosen = None if trial is None else experiment.trials[find_trial(experiment, trial)]
            reasons = Inquiry(place, experiment, view.results.definition, chosen).reasons()
    if as_json:
        causes = [reason._asdict() for reason in reasons]
        print_json({"experiment": place.name, "trial": "" if chosen is None else chosen.id, "reasons": causes})
        return
    for reason in reasons:
        say(reason.text)
        if reason.way_out:
            say(f"  → {reason.way_out}")


def why_not_begun(place: Place) -> Reason | None:
    """Return why the experiment of a submitted script has not begun.

    Return None if it has begun, or no script was submitted.
    """
    if place.folder is not None or (state := submission_of(place)) is None:
        return None
    with client_of(place.broker or "") as client:
        if client.has_begun(place.name):
            return None
    text = f"{place.name} has not begun: {script_in_words(state)}"
    if not state.has_ended and not state.is_kept:
        return _why_script_waits(place, state, text)
    return Reason.of("script", text, name=place.name)


def _why_script_waits(place: Place, state: SubmissionState, text: str) -> Reason:
    """Return why no worker runs a submitted script. *text* begins the sentence."""
    name = place.name
    with open_fleet(place.broker or "") as fleet:
        workers = fleet.workers()
    since = state.submission.at if state.submission is not None and not state.run else None
    if problem := why_no_driver_slot(name, workers):
        return Reason.of("no driver slot", f"{text}, and {problem}", since, name=name)
    offering = [info for info in workers if info.drivers and serves(info.experiments, name)]
    able = [info for info in offering if info.name not in state.refused_by]
    if not able:
        return Reason.of("refused", f"{text}; no other worker offers it driver slots", since, name=name)
    if all(info.driving >= info.drivers for info in able):
        slots = sum(info.drivers for info in able)
        return Reason.of("busy", f"{text}; {_all_busy(slots, 'driver slot')}", since, name=name)
    if_allowed = " if it may run the script" if state.refused_by else ""
    start = f"a driver slot is free, and its worker takes the script within {Timing().lock_s:.0f} s{if_allowed}"
    return Reason.of("starting", f"{text}; {start}", since, name=name)


def _all_busy(slots: int, kind: str) -> str:
    """Return a sentence that says that all matching slots are busy."""
    if slots == 1:
        return f"the only matching {kind} is busy"
    return f"{'both' if slots == 2 else f'all {slots}'} matching {kind}s are busy"  # noqa: PLR2004 - "both" means two


class ServerView:
    """A server's answers about one experiment and its fleet. Most are asked for once and cached."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    def state(self) -> ExperimentState | None:
        """Return the experiment's state and its driver's. None if the experiment is unknown.

        Raises:
            BrokerUnavailable: the server does not answer.
        """
        with client_of(self._url) as client:
            return client.experiment(self._name).state()

    @cached_property
    def info(self) -> Mapping[str, object]:
        """The server's answer to INFO. It is empty if the account may not ask."""
        from mqtune.journal.server.retry import retrying  # noqa: PLC0415

        with contextlib.suppress(MqtuneError), redis_at(self._url) as client:
            info: Mapping[str, object] = retrying(client.info, patience_s=0)
            return info
        return {}

    @cached_property
    def workers(self) -> list[WorkerInfo]:
        with open_fleet(self._url) as fleet:
            return fleet.workers()

    @cached_property
    def quotas(self) -> list[Quota] | None:
        """The quotas, or None if the account may not read them."""
        return quotas_on(self._url)

    def unclaimed(self) -> list[Unclaimed]:
        """Return the attempts and seats that no worker has started. Empty if they may not be read."""
        from mqtune.journal.redis import RedisJournal  # noqa: PLC0415

        with contextlib.suppress(AccessDenied), redis_at(self._url) as client:
            return RedisJournal(client, self._name, patience_s=PATIENCE_S).unclaimed()
        return []


class Inquiry:
    """Finds out why a trial waits, or why an experiment starts nothing.

    The needed parts of *experiment* are copied on creation, so another thread may change it afterwards.

    Args:
        trial: the trial, or None to ask about the experiment.
        runs: returns the running attempts on a broker, given its URL.
        view: makes a ``ServerView`` of a URL and the experiment's name.
    """

    def __init__(
        self,
        place: Place,
        experiment: Experiment,
        definition: Body,
        trial: Trial | None = None,
        runs: Callable[[str], Iterable[Run]] = runs_on,
        view: Callable[[str, str], ServerView] = ServerView,
    ) -> None:
        self._place = place
        self._definition = definition
        self._outcome, self._counts = experiment.outcome, dict(experiment.counts)
        self._reason_of_end = experiment.reason
        self._on_workers = experiment.running
        self._trial = deepcopy(trial)
        queued = [other for other in experiment.trials.values() if other.status is TrialStatus.QUEUED]
        self._first_queued = deepcopy(next(iter(queued), None))
        self._needs = self._needs_of(queued)
        self._runs = runs
        self._make_view = view
        self._state: ExperimentState | None = None
        self._url: str | None = None
        #: None if the experiment's server does not run.
        self._view: ServerView | None = None

    def _needs_of(self, trials: Iterable[Trial]) -> list[Resources]:
        """Return the resources that these trials need, each different set once."""
        described = self._definition.get("resources", {})
        if BY_CONFIG not in described:
            return [Resources.decode(described)]
        needs = (trial.attempt.resources for trial in trials if trial.attempts)
        return list(dict.fromkeys(resources for resources in needs if resources is not None))

    def reason(self) -> Reason:
        """Return the most important one of ``reasons()``."""
        return self.reasons()[0]

    def reasons(self) -> list[Reason]:
        """Return why the trial waits or, without one, why the experiment starts nothing.

        There is at least one reason. The most important reason comes first.

        Raises:
            ConfigurationError: the experiment's broker is needed but not known.
            BrokerUnavailable: the broker does not answer.
        """
        trial = self._trial
        if trial is not None and trial.status.is_terminal:
            step = trial.history[-1]
            text = f"{_named(trial)} is {trial.status.name}{_because(trial.reason, step.by)}"
            return [self._reason("ended", text, step.at)]
        if trial is None and self._outcome:
            return [self._ended(self._outcome)]
        self._connect()
        self._state = self._ask_state()
        if trial is None and self._state is not None and self._state.outcome:
            # The copy on this machine may not yet have the end.
            return [self._ended(self._state.outcome)]
        return self._with_memory(self._of_experiment() if trial is None else self._of_trial(trial))

    def no_slot(self) -> list[Reason]:
        """Return why no slot takes another trial now. It is empty if a slot is free."""
        self._connect()
        return self._no_slot(self._needs)

    def _reason(self, cause: str, text: str, since: float | None = None, *, trial: str = "", more: str = "") -> Reason:
        return Reason.of(cause, text, since, name=self._place.name, trial=trial, more=more)

    def _connect(self) -> None:
        self._url = live_broker(self._place)
        self._view = None if self._url is None else self._make_view(self._url, self._place.name)

    def _ask_state(self) -> ExperimentState | None:
        if self._view is not None:
            return self._view.state()
        if self._place.folder is not None and not (self._place.folder / SERVER_FOLDER).is_dir():
            raise ConfigurationError(
                f"only the broker of experiment {self._place.name!r} knows whether it has a driver: give --broker URL "
                "or $MQTUNE_BROKER"
            )
        return None

    def _with_memory(self, reasons: list[Reason]) -> list[Reason]:
        """Add a shortage of the server's memory to reasons. If it may explain them, it comes first."""
        room = Room.of(self._server)
        if not room.shortage:
            return reasons
        if not room.is_full:
            return [*reasons, self._reason("redis nearly full", room.shortage)]
        # A living driver may have reported the shortage, too. It is listed once.
        reported = [reason for reason in reasons if FULL in reason.text]
        shortage = self._reason("redis full", reported[0].text if reported else room.shortage)
        others = [reason for reason in reasons if reason not in reported]
        return [*others, shortage] if reasons[0].cause in _UNLIKE_FULL else [shortage, *others]

    @property
    def _server(self) -> Mapping[str, object]:
        return {} if self._view is None else self._view.info

    def _ended(self, outcome: str) -> Reason:
        text = f"{self._place.name} has ended: {outcome}{_because(self._reason_of_end)}"
        return self._reason("ended" if outcome == "finished" else "interrupted", text)

    def _of_experiment(self) -> list[Reason]:
        if reasons := self._no_driver():
            return reasons
        running, waits = self._on_workers, self._waits
        state = _running(running) if running else "nothing is running"
        no_other = f"{state}; no other trial starts" if running else state
        if waits.startswith(JOURNAL_FULL):
            return [self._journal_full(state)]
        for name, cause in CAUSES.items():
            if cause.begins and waits.startswith(cause.begins):
                return [self._of_driver(name, f"{no_other}: {waits}")]
        if not running and self._first_queued is not None:
            return self._of_trial(self._first_queued)
        if (not running or self._counts[TrialStatus.QUEUED]) and (reasons := self._no_slot(self._needs)):
            return _joined(f"{state}: " if not running else f"{state}; ", reasons)
        if _LIMIT in waits:
            return [self._reason("limit", f"{no_other}: {waits}")]
        if not running:
            return [self._reason("driver", f"{state}: {waits or 'the driver is about to start a trial'}")]
        return [self._reason("running", f"{no_other}: {waits}" if waits else state)]

    @property
    def _waits(self) -> str:
        """The driver's own reason for starting nothing, some seconds old. It may be empty."""
        return self._state.waits if self._state is not None else ""

    def _journal_full(self, text: str, since: float | None = None) -> Reason:
        return self._reason("journal full", f"{text}; {self._waits}", since)

    def _of_driver(self, cause: str, text: str) -> Reason:
        """Return the driver's own reason, with a way out and the experiments that use up the quota."""
        asks_for_more = "{MORE}" in CAUSES[cause].way_out
        more = way_to_more(self._place.name, self._demands(), self._workers) if asks_for_more else ""
        return self._reason(cause, f"{text}{self._users_of_quota()}", more=more)

    def _users_of_quota(self) -> str:
        """Return which experiments have the slots of a used up quota, as the rest of a sentence.

        It is empty if the driver does not wait for a quota.
        """
        pattern = quota_in(self._waits)
        if not pattern:
            return ""
        names = experiments_of(self._url) if self._url is not None else ()
        users = users_of_quota(pattern, self._demands(), names)
        return f"; the quota's slots are used by {users}" if users else ""

    def _demands(self) -> Table | None:
        return None if self._url is None else demands_on(self._url)

    def _no_driver(self) -> list[Reason]:
        """Return why no driver is running. It is empty if one is."""
        state, name = self._state, self._place.name
        if state is not None and state.is_driven:
            return []
        if state is not None and self._server.get("aof_last_write_status", "ok") != "ok":
            # A driver's lock has expired, as it can't be renewed by a write.
            text = f"Redis can't write its file and refuses writes, so it is unknown whether {name} has a driver"
            return [self._reason("redis takes no writes", text)]
        if state is None:
            return [self._reason("no driver", f"{name} has no driver, so nothing starts")]
        if (submitted := submission_of(self._place)) is not None:
            text = f"{name} has no driver, so nothing new starts: {script_in_words(submitted)}"
            if not submitted.has_ended and not submitted.is_kept:
                return [_why_script_waits(self._place, submitted, text)]
            if not submitted.has_ended or submitted.how == "failed":
                return [self._reason("script", text)]
        rest = f"; {_running(running)} without a driver" if (running := self._on_workers) else ""
        text = f"{name} has no driver, so nothing new starts: its last event was {duration(state.age_s)} ago{rest}"
        return [self._reason("no driver", text)]

    def _of_trial(self, trial: Trial) -> list[Reason]:
        step = trial.history[-1]
        if trial.status is TrialStatus.RUNNING:
            return self._running(trial)
        no_driver = self._no_driver()
        if trial.status is TrialStatus.PAUSED:
            text = f"{_named(trial)} is paused{_because(trial.reason, step.by)}"
            if trial.restart is not None:
                return [self._reason("retry", f"{text}; it resumes as soon as a slot is free", step.at), *no_driver]
            cause = "paused by hand" if step.by == "user" else "paused"
            return [self._reason(cause, text, step.at, trial=trial.id), *no_driver]
        if trial.attempts and trial.attempt.end is None:
            return self._staged(trial)
        waits = self._waits
        if trial.retry_pause_s > time.time() - step.at:
            waits = trial.why_it_pauses
        text = f"{_named(trial)} will run again{_because(trial.reason)}"
        if no_driver:
            return [self._reason("retry", text, step.at), *no_driver]
        return [self._reason("retry", f"{text}; {waits or 'it waits for a free slot'}", step.at)]

    def _running(self, trial: Trial) -> list[Reason]:
        attempt = trial.attempt
        since = attempt.started_at or attempt.queued_at
        last = f"; its last report came {_ago(trial.last_timestamp)} ago" if trial.reports else ""
        if trial.outside:
            text = f"{_named(trial)} has been evaluated outside mqtune for {_ago(since)}{last}"
            return [self._reason("outside", text, since, trial=trial.id)]
        text = f"{_named(trial)} has been running on {attempt.worker} for {_ago(since)}"
        if trial.decision is not None:
            order = f"it was told to {trial.decision.action.value}{_because(trial.reason)}"
            return [self._reason("ending", f"{text}; {order}", since)]
        worker = next((info for info in self._workers if info.name == attempt.worker), None)
        if worker is None:
            return self._without_worker(text, since)
        impairments = [impairment for impairment in worker.impairments if not impairment.stops_trials]
        notes = [
            self._reason("impaired", f"{worker.name}: {impairment_text(impairment)}") for impairment in impairments
        ]
        if self._waits.startswith(JOURNAL_FULL) and not self._no_driver():
            return [self._journal_full(f"{text}{last}", since), *notes]
        return [self._reason("running", f"{text}{last}", since), *notes]

    def _without_worker(self, text: str, since: float) -> list[Reason]:
        if self._url is None:
            gone = self._reason("worker gone", f"{text}, which has ended with its server", since)
            return [gone, self._reason("no driver", f"{self._place.name} has no driver")]
        if no_driver := self._no_driver():
            return [self._reason("worker gone", f"{text}, which is not connected", since), *no_driver]
        again = "which is not connected: within seconds the trial is queued again"
        return [self._reason("worker gone", f"{text}, {again}", since)]

    def _staged(self, trial: Trial) -> list[Reason]:
        """Return why no worker has started the trial's attempt yet."""
        since = trial.attempt.queued_at
        text = f"{_named(trial)} has been waiting for {_ago(since)}"
        needs = self._needs_of([trial])
        held = HeldSeats(trial.id, self._claimed(), needs)
        if held.lacks_some:
            return self._lacks_seats(f"{text}, {held.in_words}", since, needs, held)
        if held.holders:
            return [self._about_to_start(text, since, held.holders, needs)]
        if reasons := self._no_slot(needs):
            return _joined(f"{text}: ", reasons, since)
        free = self._reason("starting", f"{text}: a slot is free and about to take it", since)
        if self._quotas is None:
            unknown = "this account may not read the quotas, and one of them may be used up"
            return [free, self._reason("account", unknown)]
        return [free]

    def _about_to_start(self, text: str, since: float, claimed: list[Unclaimed], needs: list[Resources]) -> Reason:
        """Return why an attempt does not run yet although workers have claimed all its seats."""
        importing = [attempt for attempt in claimed if attempt.importing_s is not None]
        if importing:
            slowest = max(importing, key=lambda attempt: attempt.importing_s or 0.0)
            progress = f"{slowest.worker} has claimed it and is importing your code ({slowest.importing_s:.0f} s)"
            return self._reason("starting", f"{text}: {progress}", since)
        names = {attempt.worker for attempt in claimed}
        holders = [info for info in self._workers if info.name in names]
        for resources in needs:
            if short := self._short_of_memory(resources, holders):
                return self._reason("busy", f"{text}: {claimed[0].worker} has claimed it, but {short}", since)
        if claimed[1:]:
            progress = f"workers have claimed all of its {len(claimed)} seats and are starting them"
            return self._reason("starting", f"{text}: {progress}", since)
        return self._reason("starting", f"{text}: a worker has claimed it and is starting it", since)

    def _lacks_seats(self, text: str, since: float, needs: list[Resources], held: HeldSeats) -> list[Reason]:
        """Return why workers have claimed only some seats of an attempt. *text* begins the sentence."""
        reasons = self._no_slot(needs)
        if not reasons or reasons[0].cause not in _NO_WORKER:
            # Only the missing seats still need slots.
            reasons = self._no_slot(held.missing, held.others(self._workers))
        if not reasons:
            free = f"{text}; slots for the other seats are free and about to take them"
            return [self._reason("seats", free, since)]
        return _joined(f"{text}; ", reasons, since)

    def _claimed(self) -> list[Unclaimed]:
        """Return the attempts and seats that workers have claimed but not started."""
        return (
            [attempt for attempt in self._view.unclaimed() if attempt.worker]
            if self._view is not None and self._workers
            else []
        )

    @property
    def _workers(self) -> list[WorkerInfo]:
        return [] if self._view is None else self._view.workers

    def _no_slot(self, needs: list[Resources], workers: list[WorkerInfo] | None = None) -> list[Reason]:
        """Return why no slot takes a trial with these resources. It is empty if a slot is free.

        If *needs* has several sets of resources, one for which no worker has a matching slot is explained first.
        """
        if self._url is None:
            return [self._reason("no driver", "its own server and worker are not running")]
        candidates = self._workers if workers is None else workers
        by_resources = [reasons for resources in needs if (reasons := self._no_slot_with(resources, candidates))]
        return min(by_resources, key=lambda reasons: reasons[0].cause not in _NO_WORKER, default=[])

    def _no_slot_with(self, asked: Resources, workers: list[WorkerInfo]) -> list[Reason]:
        able = [info for info in workers if meets(info.version) and self._would_fit(asked, info)]
        fitting = [info for info in able if info.slots > 0]
        rooms = [_room_of(asked, info, info.slots) for info in fitting]
        notes = [*self._of_other_versions(asked, workers), *self._impaired(able)]
        seating = Seating()
        if not seating.count(asked, rooms):
            text = seating.not_offered(asked, rooms)
            if not workers:
                return [self._reason("no worker", f"{text}; no worker is connected")]
            first = self._reason("no match", f"{text}; connected: {_offers(workers)}")
            # If workers only have the wrong version, the way out is their upgrade.
            is_old = any(note.cause == "version" for note in notes)
            return [first._replace(way_out="") if is_old else first, *notes]
        if busy := self._all_used(asked, fitting):
            return [self._reason("busy", busy), *notes]
        return self._quota_used()

    def _all_used(self, asked: Resources, fitting: list[WorkerInfo]) -> str:
        """Return a sentence if these workers' slots or GPU memory are used up, else an empty text."""
        slots, busy = sum(info.slots for info in fitting), sum(info.busy_slots for info in fitting)
        free = [_room_of(asked, info, max(0, info.slots - info.busy_slots)) for info in fitting]
        if asked.seats > 1 and not Seating().count(asked, free):
            apart = " on different workers" if asked.machines > 1 else ""
            left = f"{max(0, slots - busy)} of the {slots} matching slots are free, but it needs {asked.seats}{apart}"
            return f"{left}{self._by_whom(fitting)}"
        if busy < slots:
            return self._short_of_memory(asked, fitting)
        return f"{_all_busy(slots, 'slot')}{self._by_whom(fitting)}"

    def _impaired(self, workers: list[WorkerInfo]) -> list[Reason]:
        """Return the impairments that keep workers from taking trials."""
        stopped = [
            (info.name, impairment) for info in workers for impairment in info.impairments if impairment.stops_trials
        ]
        return [
            self._reason("impaired", f"{name}: {impairment_text(impairment)}") for name, impairment in stopped[:_SHOWN]
        ]

    @property
    def _quotas(self) -> list[Quota] | None:
        return None if self._view is None else self._view.quotas

    def _quota_used(self) -> list[Reason]:
        """Return a reason if a quota of the experiment is used up and may be read, else []."""
        for pattern, slots, running in self._quotas or ():
            if running >= slots and fnmatchcase(self._place.name, pattern):
                text = f"a slot is free, but a quota is used up: {running} of {slots} for {pattern}"
                return [self._reason("quota", text)]
        return []

    def _would_fit(self, asked: Resources, info: WorkerInfo) -> bool:
        """Return whether a worker could take trials with these resources. Ignore its version."""
        return serves(info.experiments, self._place.name) and asked.fits(_offer_of(info))

    def _of_other_versions(self, asked: Resources, workers: list[WorkerInfo]) -> list[Reason]:
        """Return the slots that would match if their workers had another version."""
        slots: Counter[str] = Counter()
        for info in workers:
            if not meets(info.version) and self._would_fit(asked, info):
                slots[info.version] += info.slots
        return [
            self._reason(
                "version",
                f"{counted(count, 'slot')} of mqtune {version} would match, but {version} is incompatible with "
                f"{__version__}",
            )
            for version, count in sorted(slots.items())
        ]

    def _short_of_memory(self, asked: Resources, workers: list[WorkerInfo]) -> str:
        """Return a sentence if these workers' shared GPUs lack free memory, else an empty text."""
        free = max((info.free_gpu_memory_gb for info in workers), default=math.inf)
        if not asked.is_shared_by_memory or free >= asked.gpu_memory_gb:
            return ""
        most = f"at most {free:g} GB is free" if free else "all of it is in use"
        return f"no GPU has {asked.gpu_memory_gb:g} GB of memory for it: {most}{self._by_whom(workers)}"

    def _by_whom(self, fitting: list[WorkerInfo]) -> str:
        """Return the attempts that use these workers' slots, as the rest of a sentence.

        It is empty if they are not known.
        """
        names = {info.name for info in fitting}
        runs = []
        with contextlib.suppress(MqtuneError):
            runs = sorted(
                (run for run in self._runs(self._url or "") if run.worker in names), key=lambda run: run.since
            )
        shown = [f"{run.experiment} {run.trial} for {_ago(run.since)}" for run in runs[:_SHOWN]]
        more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
        return f": {', '.join(shown)}{more}" if shown else ""


def _room_of(asked: Resources, info: WorkerInfo, slots: int) -> SlotRoom:
    """Return how many trials fit on a worker, given this number of its slots."""
    shared = asked.shared_bytes
    most = min(slots, info.shared_gpus * (_offer_of(info).shared_bytes // shared)) if shared else slots
    return SlotRoom([EqualWorkers(most, 1)], most)


def _named(trial: Trial) -> str:
    return f"trial {trial.id}"


def _because(reason: str, by: str = "") -> str:
    """Return the author of a decision and its reason as the rest of a sentence."""
    author = _AUTHORS.get(by, "")
    return f"{author}: {reason}" if reason else author


def _running(count: int) -> str:
    return f"{count} trials are running" if count > 1 else "1 trial is running"


def _joined(begin: str, reasons: list[Reason], since: float | None = None) -> list[Reason]:
    """Return the reasons, with *begin* put in front of the first one's text."""
    first = reasons[0]
    return [first._replace(text=f"{begin}{first.text}", since=first.since if since is None else since), *reasons[1:]]


def _ago(at: float) -> str:
    return duration(max(0.0, time.time() - at))


def _offer_of(info: WorkerInfo) -> Resources:
    return Resources(gpus=info.gpus, cpus=info.cpus, gpu_memory_gb=info.gpu_memory_gb, tags=info.tags)


def _offers(workers: list[WorkerInfo]) -> str:
    shown = [
        f"{info.name} ({info.slots} × {_offer_of(info)}{'' if meets(info.version) else f', mqtune {info.version}'})"
        for info in workers[:_SHOWN]
    ]
    return ", ".join(shown) + (f" and {len(workers) - _SHOWN} more" if len(workers) > _SHOWN else "")
