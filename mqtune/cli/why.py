"""``mqtune why``: why a trial waits, or an experiment starts nothing."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from mqtune.backends.placement import EqualWorkers, SlotRoom
from mqtune.cli.fleet import (
    Run,
    demands_on,
    experiments_of,
    impairment_text,
    open_fleet,
    runs_on,
    users_of_quota,
    way_to_more,
)
from mqtune.cli.output import broker_option, json_option, print_json, say
from mqtune.cli.place import complete_trial, find_place, find_trial, live_broker, name_argument, opened
from mqtune.cli.submit import submission_of, way_to_end, why_no_driver_slot
from mqtune.core.errors import AccessDenied, ConfigurationError, MqtuneError
from mqtune.core.machine import SERVER_FOLDER
from mqtune.core.resources import BY_CONFIG, Resources, serves
from mqtune.core.submission import DRIVER
from mqtune.core.text import counted
from mqtune.core.timing import Timing
from mqtune.core.trial import Trial, TrialStatus
from mqtune.core.version import UPGRADE, __version__, meets
from mqtune.journal.room import FULL, JOURNAL_FULL, MAKE_ROOM, Room, way_to_grow
from mqtune.results.experiments import duration, script_in_words
from mqtune.services.gangs.seating import Seating
from mqtune.services.gangs.waiting import HeldSeats
from mqtune.services.shares.divider import QUOTA_USED, SHARE_USED, Table, quota_in
from mqtune.services.shares.overview import busy_slots
from mqtune.trainable.bundle import KEY_VARIABLE

if TYPE_CHECKING:
    from mqtune.cli.place import Place
    from mqtune.client import ExperimentState
    from mqtune.core.codec import Body
    from mqtune.core.events import WorkerInfo
    from mqtune.core.experiment import Experiment
    from mqtune.journal.base import Unclaimed
    from mqtune.services.shares.quotas import Quota
    from mqtune.services.submissions.board import SubmissionState

_NO_WORKER: Final = "no worker"
#: The most attempts, workers and reasons that are named.
_SHOWN: Final = 4
#: Causes that more memory would not remove.
_UNLIKE_FULL: Final = frozenset({"no driver", "worker gone", "paused", "ending", "redis takes no writes"})
_WHO: Final = {
    "scheduler": " by the scheduler",
    "stop rule": " by the stop rule",
    "driver": " by the driver",
    "user": " by hand",
}


class Reason(NamedTuple):
    """Why something waits: a cause for programs, a sentence, a start time, and a remedy."""

    cause: str
    text: str
    since: float | None = None
    way_out: str = ""


@click.command("why")
@name_argument
@click.argument("trial", required=False, shell_complete=complete_trial)
@broker_option("The Redis server that has the experiment. Not needed for one that runs on this machine alone.")
@json_option
def command(name: str, trial: str | None, broker: str | None, *, as_json: bool) -> None:
    """Say why a trial waits, or why an experiment starts nothing, and name a remedy.

    The driver's own words are some seconds old.
    """
    place = find_place(name, broker)
    found, reason = None, why_not_begun(place)
    if reason is None:
        with opened(place) as view:
            experiment = view.results.experiment
            found = None if trial is None else experiment.trials[find_trial(experiment, trial)]
            reason = Inquiry(place, experiment, view.results.definition, found).reason()
    if as_json:
        print_json({"experiment": place.name, "trial": "" if found is None else found.id, **reason._asdict()})
        return
    say(reason.text)
    if reason.way_out:
        say(reason.way_out)


def why_not_begun(place: Place) -> Reason | None:
    """Return why a submitted script's experiment has not begun, or None."""
    from mqtune.client import Client  # noqa: PLC0415 - only this needs redis

    if place.folder is not None or (state := submission_of(place)) is None:
        return None
    with Client(place.broker or "") as there:
        if there.has_begun(place.name):
            return None
    if not state.has_ended and not state.is_kept:
        return _of_waiting(place, state, f"{place.name} has not begun: {script_in_words(state)}")
    cause = "ended" if state.has_ended else "starting"
    return Reason(cause, f"{place.name} has not begun: {script_in_words(state)}", way_out=_way_to_output(place.name))


def _of_waiting(place: Place, state: SubmissionState, text: str) -> Reason:
    """Return why a submitted script waits."""
    with open_fleet(place.broker or "") as fleet:
        workers = fleet.workers()
    since = state.submission.at if state.submission is not None and not state.run else None
    if problem := why_no_driver_slot(place.name, workers):
        return Reason("no worker", f"{text}, and {problem}", since, "start one: mqtune worker --drivers 4")
    offering = [info for info in workers if info.drivers and serves(info.experiments, place.name)]
    able = [info for info in offering if info.name not in state.refused_by]
    if not able:
        way_out = (
            f"end it: {way_to_end(place.name)}; then submit it with the {KEY_VARIABLE} of a worker with driver slots"
        )
        return Reason("refused", f"{text}; no other worker offers driver slots to it", since, way_out)
    if all(info.driving >= info.drivers for info in able):
        slots = sum(info.drivers for info in able)
        return Reason("busy", f"{text}; all {slots} for it are busy", since, "see them all: mqtune fleet")
    if_it_may = " if it may run it" if state.refused_by else ""
    return Reason("starting", f"{text}; one is free, and takes it within {Timing().lock_s:.0f} s{if_it_may}", since)


def _way_to_output(name: str) -> str:
    return f"see what it prints: mqtune logs {name} {DRIVER}"


class ServerView:
    """A server's answers about one experiment and its fleet, mostly cached.

    Args:
        url: the server's URL.
        name: the experiment's name.
    """

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    def state(self) -> ExperimentState | None:
        """Return the state of the experiment's driver; None if the experiment is unknown.

        Raises:
            BrokerUnavailable: the server does not answer.
        """
        from mqtune.client import Client  # noqa: PLC0415 - only this needs redis

        with Client(self._url) as there:
            return there.experiment(self._name).state()

    @cached_property
    def info(self) -> Mapping[str, object]:
        """The server's own figures; empty if the account may not ask."""
        from mqtune.journal.connection import connect  # noqa: PLC0415 - as above
        from mqtune.journal.retry import retrying  # noqa: PLC0415

        with contextlib.suppress(MqtuneError), contextlib.closing(connect(self._url, role="reader")) as client:
            found: Mapping[str, object] = retrying(client.info, patience_s=0)
            return found
        return {}

    @cached_property
    def workers(self) -> list[WorkerInfo]:
        with open_fleet(self._url) as fleet:
            return fleet.workers()

    @cached_property
    def quotas(self) -> list[Quota] | None:
        """The quotas; None if the account may not read them."""
        from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect  # noqa: PLC0415 - as above
        from mqtune.services.shares.quotas import Quotas  # noqa: PLC0415

        with contextlib.suppress(AccessDenied), contextlib.closing(connect(self._url, role="reader")) as client:
            return Quotas(client, patience_s=CONNECT_TIMEOUT_S).all()
        return None

    def unclaimed(self) -> list[Unclaimed]:
        """Return attempts and seats that no worker has started; empty if inaccessible."""
        from mqtune.journal.connection import CONNECT_TIMEOUT_S, connect  # noqa: PLC0415 - as above
        from mqtune.journal.redis import RedisJournal  # noqa: PLC0415

        with contextlib.suppress(AccessDenied), contextlib.closing(connect(self._url, role="reader")) as client:
            return RedisJournal(client, self._name, patience_s=CONNECT_TIMEOUT_S).unclaimed()
        return []


class Inquiry:
    """Finds out why a trial waits, or why an experiment starts nothing.

    It copies the experiment's state on creation, so that may change while ``reason`` asks the server.

    Args:
        place: the experiment's place.
        experiment: its current state.
        definition: its definition.
        trial: the trial in question.
        runs: returns the running attempts on a broker.
        view: creates the server's view.
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
        self._outcome, self._reason, self._counts = experiment.outcome, experiment.reason, dict(experiment.counts)
        self._on_workers = experiment.running
        self._trial = deepcopy(trial)
        queued = [each for each in experiment.trials.values() if each.status is TrialStatus.QUEUED]
        self._first_queued = deepcopy(next(iter(queued), None))
        self._asked = self._all_asked(queued)
        self._runs = runs
        self._make_view = view
        self._state: ExperimentState | None = None
        self._url: str | None = None
        #: None without a running server.
        self._view: ServerView | None = None

    def _all_asked(self, trials: Iterable[Trial]) -> list[Resources]:
        """Return the distinct resources of trials, or the experiment's."""
        described = self._definition.get("resources", {})
        if BY_CONFIG not in described:
            return [Resources.decode(described)]
        asked = (trial.attempt.resources for trial in trials if trial.attempts)
        return list(dict.fromkeys(each for each in asked if each is not None))

    def reason(self) -> Reason:
        """Return why the trial waits or, without one, why the experiment starts nothing.

        Raises:
            ConfigurationError: the experiment's broker is needed but unknown.
            BrokerUnavailable: it does not answer.
        """
        trial = self._trial
        if trial is not None and trial.status.is_terminal:
            step = trial.history[-1]
            return Reason("ended", f"{_named(trial)} is {trial.status.name}{_because(trial.reason, step.by)}", step.at)
        if trial is None and self._outcome:
            return self._ended(self._outcome)
        self._connect()
        self._state = self._ask_state()
        if trial is None and self._state is not None and self._state.outcome:
            # The copy on this machine lags briefly.
            return self._ended(self._state.outcome)
        return self._with_memory(self._of_experiment() if trial is None else self._of_trial(trial))

    def no_slot(self) -> Reason | None:
        """Return why no slot takes another trial now; None if one is free."""
        self._connect()
        return self._no_slot(self._asked)

    def _connect(self) -> None:
        self._url = live_broker(self._place)
        self._view = None if self._url is None else self._make_view(self._url, self._place.name)

    def _ask_state(self) -> ExperimentState | None:
        if self._view is not None:
            return self._view.state()
        if self._place.folder is not None and not (self._place.folder / SERVER_FOLDER).is_dir():
            raise ConfigurationError(
                f"whether a driver has experiment {self._place.name!r} is known to its broker alone: give --broker URL "
                "or $MQTUNE_BROKER"
            )
        return None

    def _with_memory(self, reason: Reason) -> Reason:
        """Add a shortage of the server's memory to a reason."""
        room = Room.of(self._server)
        if reason.cause == "ended" or not room.shortage:
            return reason
        # A living driver reports it too.
        text = reason.text if FULL in reason.text else f"{reason.text}; {room.shortage}"
        if not room.is_full or reason.cause in _UNLIKE_FULL:
            return reason._replace(text=text)
        return reason._replace(cause="redis full", text=text, way_out=MAKE_ROOM)

    @property
    def _server(self) -> Mapping[str, object]:
        return {} if self._view is None else self._view.info

    def _ended(self, outcome: str) -> Reason:
        text = f"{self._place.name} has ended: {outcome}{_because(self._reason)}"
        return Reason("ended", text, way_out="" if outcome == "finished" else self._go_on)

    @property
    def _go_on(self) -> str:
        return f"go on with it: mqtune drive {self._place.name}"

    def _of_experiment(self) -> Reason:
        if (reason := self._no_driver()) is not None:
            return reason
        running, queued = self._on_workers, self._counts[TrialStatus.QUEUED]
        waits = self._waits
        if waits.startswith(JOURNAL_FULL):
            return self._journal_full(_runs(running) if running else "nothing runs")
        if waits.startswith(SHARE_USED):
            what = f"{_runs(running)}; no other starts" if running else "nothing runs"
            return Reason(
                "share", f"{what}: {waits}", way_out=way_to_more(self._place.name, self._demands, self._workers)
            )
        if waits.startswith(QUOTA_USED):
            what = f"{_runs(running)}; no other starts" if running else "nothing runs"
            return Reason("quota", f"{what}: {waits}", way_out=self._way_out_of_quota(waits))
        if not running:
            if self._first_queued is not None:
                return self._of_trial(self._first_queued)
            if (reason := self._no_slot(self._asked)) is not None:
                return reason._replace(text=f"nothing runs: {reason.text}")
            return Reason("driver", f"nothing runs: {waits or 'the driver is about to start something'}")
        if queued and (reason := self._no_slot(self._asked)) is not None:
            return reason._replace(text=f"{_runs(running)}; {reason.text}")
        return Reason("running", f"{_runs(running)}{f'; no other starts: {waits}' if waits else ''}")

    @property
    def _waits(self) -> str:
        """Why the driver starts nothing, as it said some seconds ago."""
        return self._state.waits if self._state is not None else ""

    def _journal_full(self, text: str, since: float | None = None) -> Reason:
        return Reason("journal full", f"{text}; {self._waits}", since, way_to_grow(self._place.name))

    def _way_out_of_quota(self, waits: str) -> str:
        pattern = quota_in(waits)
        users = users_of_quota(pattern, self._demands, experiments_of(self._url) if self._url is not None else ())
        return f"{f'{users} have its slots; ' if users else ''}see all quotas, or set one: mqtune quota"

    @property
    def _demands(self) -> Table | None:
        return None if self._url is None else demands_on(self._url)

    def _no_driver(self) -> Reason | None:
        state = self._state
        if state is not None and state.is_driven:
            return None
        name = self._place.name
        if state is not None and self._server.get("aof_last_write_status", "ok") != "ok":
            # Only a write could tell.
            text = f"whether a driver lives is not known: Redis can't write its file, and so takes no writes for {name}"
            return Reason("redis takes no writes", text, way_out="make room on its disk; its log says more")
        if state is None:
            return Reason("no driver", f"nobody drives {name}, so nothing starts", way_out=self._go_on)
        if (submitted := submission_of(self._place)) is not None:
            text = f"nobody drives {name}, so nothing new starts: {script_in_words(submitted)}"
            if not submitted.has_ended and not submitted.is_kept:
                return _of_waiting(self._place, submitted, text)
            if not submitted.has_ended or submitted.how == "failed":
                return Reason("no driver", text, way_out=_way_to_output(name))
        rest = f"; {_runs(running)} on without one" if (running := self._on_workers) else ""
        text = f"nobody drives {name}, so nothing new starts: its last event was {duration(state.age_s)} ago{rest}"
        return Reason("no driver", text, way_out=self._go_on)

    def _of_trial(self, trial: Trial) -> Reason:
        step = trial.history[-1]
        if trial.status is TrialStatus.RUNNING:
            return self._running(trial)
        nobody = self._no_driver()
        if trial.status is TrialStatus.PAUSED:
            again = "it goes on as soon as a slot is free" if trial.restart is not None else ""
            text = f"{_named(trial)} is paused{_because(trial.reason, step.by)}"
            if nobody is not None:
                return Reason("paused", f"{text}; {nobody.text}", step.at, nobody.way_out)
            way_out = f"resume it: mqtune resume {self._place.name} {trial.id}" if step.by == "user" else ""
            return Reason("paused", f"{text}{again and '; ' + again}", step.at, "" if again else way_out)
        if trial.attempts and trial.attempt.end is None:
            return self._staged(trial)
        why = f"{_named(trial)} is to run again{_because(trial.reason)}"
        if nobody is not None:
            return Reason("no driver", f"{why}; {nobody.text}", step.at, nobody.way_out)
        waits = self._waits
        if trial.retry_pause_s > time.time() - step.at:
            waits = trial.why_it_pauses
        return Reason("retry", f"{why}; {waits or 'it waits for a free slot'}", step.at)

    def _running(self, trial: Trial) -> Reason:
        attempt = trial.attempt
        since = attempt.started_at or attempt.queued_at
        if trial.outside:
            text = f"{_named(trial)} has been evaluated outside for {_ago(since)}"
            last = f"; its last report came {_ago(trial.last_timestamp)} ago" if trial.reports else ""
            name = self._place.name
            way_out = (
                f"tell its result: mqtune tell {name} {trial.id} METRIC=VALUE; or end it: mqtune stop {name} {trial.id}"
            )
            return Reason("outside", f"{text}{last}", since, way_out)
        text = f"{_named(trial)} has run on {attempt.worker} for {_ago(since)}"
        if trial.decision is not None:
            return Reason(
                "ending", f"{text}; it is told to {trial.decision.action.value}{_because(trial.reason)}", since
            )
        worker = next((info for info in self._workers if info.name == attempt.worker), None)
        if worker is None:
            return self._without_worker(text, since)
        if trial.reports:
            text += f"; its last report came {_ago(trial.last_timestamp)} ago"
        text += "".join(f"; {impairment_text(each)}" for each in worker.impairments if not each.stops_trials)
        if self._waits.startswith(JOURNAL_FULL) and self._no_driver() is None:
            return self._journal_full(text, since)
        return Reason("running", text, since)

    def _without_worker(self, text: str, since: float) -> Reason:
        if self._url is None:
            return Reason("worker gone", f"{text}, which has ended with its server", since, self._go_on)
        if (nobody := self._no_driver()) is not None:
            return Reason("worker gone", f"{text}, which is not connected, and {nobody.text}", since, nobody.way_out)
        return Reason("worker gone", f"{text}, which is not connected: it runs again elsewhere in some seconds", since)

    def _staged(self, trial: Trial) -> Reason:
        """Return why no worker has started an attempt yet."""
        since = trial.attempt.queued_at
        text = f"{_named(trial)} has waited for {_ago(since)}"
        asked_by_it = self._all_asked([trial])
        held = HeldSeats(trial.id, self._held(), asked_by_it)
        if held.lacks_some:
            return self._lacks_seats(f"{text}, {held.in_words}", since, asked_by_it, held)
        if held.holders:
            return self._about_to_start(text, since, held.holders, asked_by_it)
        if (reason := self._no_slot(asked_by_it)) is not None:
            return reason._replace(text=f"{text}: {reason.text}", since=since)
        if self._quotas is None:
            unseen = "a slot is free, and takes it unless a quota is used up, which this account may not read"
            return Reason("starting", f"{text}: {unseen}", since, "make the account again: mqtune acl")
        return Reason("starting", f"{text}: a slot is free, and is about to take it", since)

    def _about_to_start(self, text: str, since: float, held: list[Unclaimed], asked: list[Resources]) -> Reason:
        """Return why an attempt with all seats claimed does not run."""
        importing = [each for each in held if each.importing_s is not None]
        if importing:
            slowest = max(importing, key=lambda each: each.importing_s or 0.0)
            what = f"{slowest.worker} has it and imports your code ({slowest.importing_s:.0f} s)"
            return Reason("starting", f"{text}: {what}", since)
        names = {each.worker for each in held}
        holders = [info for info in self._workers if info.name in names]
        for each in asked:
            if short := self._short_of_memory(each, holders):
                what = f"{held[0].worker} has it, and {short}"
                return Reason("busy", f"{text}: {what}", since, "see them all: mqtune fleet")
        if held[1:]:
            return Reason("starting", f"{text}: workers have all of its {len(held)} seats and start them", since)
        return Reason("starting", f"{text}: a worker has it and starts it", since)

    def _lacks_seats(self, text: str, since: float, asked: list[Resources], held: HeldSeats) -> Reason:
        """Return why workers hold some seats of an attempt and not all; *text* says which."""
        reason = self._no_slot(asked)
        if reason is None or reason.cause != _NO_WORKER:
            # The held seats need no other slots.
            reason = self._no_slot(held.missing, held.others(self._workers))
        if reason is None:
            return Reason("seats", f"{text}; slots for the others are free, and are about to take them", since)
        return reason._replace(text=f"{text}; {reason.text}", since=since)

    def _held(self) -> list[Unclaimed]:
        """Return the attempts and seats that workers have claimed but not started."""
        # Some accounts may not ask.
        return (
            [each for each in self._view.unclaimed() if each.worker] if self._view is not None and self._workers else []
        )

    @property
    def _workers(self) -> list[WorkerInfo]:
        return [] if self._view is None else self._view.workers

    def _no_slot(self, asked: list[Resources], workers: list[WorkerInfo] | None = None) -> Reason | None:
        """Return why no slot takes a trial: none fits, all are busy, or a quota is used up.

        With different resources, a trial without any fitting slot comes first.
        """
        if self._url is None:
            return Reason("no driver", "its own server and worker do not run", way_out=self._go_on)
        there = self._workers if workers is None else workers
        reasons = [reason for each in asked if (reason := self._no_slot_with(each, there)) is not None]
        return min(reasons, key=lambda reason: reason.cause != _NO_WORKER, default=None)

    def _no_slot_with(self, asked: Resources, workers: list[WorkerInfo]) -> Reason | None:
        able = [info for info in workers if self._fits(asked, info)]
        fitting = [info for info in able if info.slots > 0]
        stopped = [(info.name, each) for info in able for each in info.impairments if each.stops_trials]
        notes = "".join(f"; {name}: {impairment_text(each)}" for name, each in stopped[:_SHOWN])
        notes += self._of_other_versions(asked, workers)
        rooms = [_room_of(asked, info, info.slots) for info in fitting]
        seating = Seating()
        if not seating.count(asked, rooms):
            there = "no worker is connected" if not workers else f"connected: {_offers(workers)}"
            way_out = "start one: mqtune worker" if not workers else "start one that fits: mqtune worker --help"
            if any(self._would_fit(asked, info) for info in workers):
                way_out = UPGRADE
            return Reason(_NO_WORKER, f"{seating.not_offered(asked, rooms)}; {there}{notes}", way_out=way_out)
        slots, busy = sum(info.slots for info in fitting), sum(map(busy_slots, fitting))
        free = [_room_of(asked, info, max(0, info.slots - busy_slots(info))) for info in fitting]
        if asked.seats > 1 and not seating.count(asked, free):
            apart = " on different workers" if asked.machines > 1 else ""
            what = f"{max(0, slots - busy)} of the {slots} slots that fit are free, and it takes {asked.seats}{apart}"
            return Reason("busy", f"{what}{self._by_whom(fitting)}{notes}", way_out="see them all: mqtune fleet")
        if busy < slots:
            if not (short := self._short_of_memory(asked, fitting)):
                return self._quota_used()
            return Reason("busy", f"{short}{notes}", way_out="see them all: mqtune fleet")
        what = f"the {slots} slots that fit are all busy" if slots > 1 else "the one slot that fits is busy"
        return Reason("busy", f"{what}{self._by_whom(fitting)}{notes}", way_out="see them all: mqtune fleet")

    @property
    def _quotas(self) -> list[Quota] | None:
        return None if self._view is None else self._view.quotas

    def _quota_used(self) -> Reason | None:
        """Return the quota that is used up, if readable."""
        for pattern, slots, running in self._quotas or ():
            if running >= slots and fnmatchcase(self._place.name, pattern):
                text = f"a slot is free, and a quota is used up: {running} of {slots} for {pattern}"
                return Reason("quota", text, way_out="see all quotas, or set one: mqtune quota")
        return None

    def _fits(self, asked: Resources, info: WorkerInfo) -> bool:
        """Return whether a worker takes trials with these resources."""
        return meets(info.version) and self._would_fit(asked, info)

    def _would_fit(self, asked: Resources, info: WorkerInfo) -> bool:
        """Return whether a worker fits except for its version."""
        return serves(info.experiments, self._place.name) and asked.fits(_offer_of(info))

    def _of_other_versions(self, asked: Resources, workers: list[WorkerInfo]) -> str:
        """Return the slots that would fit if their workers had another version, or an empty string."""
        slots: Counter[str] = Counter()
        for info in workers:
            if not meets(info.version) and self._would_fit(asked, info):
                slots[info.version] += info.slots
        return "".join(
            f"; {counted(count, 'slot')} of mqtune {version} would fit, and {version} does not meet {__version__}"
            for version, count in sorted(slots.items())
        )

    def _short_of_memory(self, asked: Resources, workers: list[WorkerInfo]) -> str:
        """Return which attempts leave too little shared GPU memory, or an empty string."""
        free = max((info.free_gpu_memory_gb for info in workers), default=math.inf)
        if not asked.is_shared_by_memory or free >= asked.gpu_memory_gb:
            return ""
        there = f"no more than {free:g} GB" if free else "none"
        return f"no GPU has {asked.gpu_memory_gb:g} GB for it now: they have {there} free{self._by_whom(workers)}"

    def _by_whom(self, fitting: list[WorkerInfo]) -> str:
        """Return the attempts that use their slots, as far as known."""
        names = {info.name for info in fitting}
        found = []
        with contextlib.suppress(MqtuneError):
            found = sorted(
                (run for run in self._runs(self._url or "") if run.worker in names), key=lambda run: run.since
            )
        shown = [f"{run.experiment} {run.trial} for {_ago(run.since)}" for run in found[:_SHOWN]]
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return f": {', '.join(shown)}{more}" if shown else ""


def _room_of(asked: Resources, info: WorkerInfo, slots: int) -> SlotRoom:
    """Return a worker's room for trials, with this number of its slots."""
    shared = asked.shared_bytes
    most = min(slots, info.shared_gpus * (_offer_of(info).shared_bytes // shared)) if shared else slots
    return SlotRoom([EqualWorkers(most, 1)], most)


def _named(trial: Trial) -> str:
    return f"trial {trial.id}"


def _because(reason: str, by: str = "") -> str:
    """Return a reason and its author as the rest of a sentence."""
    who = _WHO.get(by, "")
    return f"{who}: {reason}" if reason else who


def _runs(count: int) -> str:
    return f"{count} trials run" if count > 1 else "1 trial runs"


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
