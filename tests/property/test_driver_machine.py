"""Users, workers, servers and drivers that do anything in any order: the journal tells all of it, and each trial ends."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import losing
import pytest
import redis
from bench import LEASE_S, NAME, START_ENTRY, Bench, Heir
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from mqtune.core.codec import encode_value
from mqtune.core.entries import events_in_order
from mqtune.core.errors import ConfigurationError, ExperimentFinished, InvalidTransition, NothingResumes
from mqtune.core.events import (
    AttemptEnded,
    AttemptStarted,
    DecisionTaken,
    Reports,
    RequestAnswered,
    Requested,
    Told,
    TrialStaged,
)
from mqtune.core.experiment import Experiment
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.core.trial import (
    CONTINUE,
    ITERATION,
    Action,
    AttemptEnd,
    CheckpointId,
    Decision,
    Report,
    Trial,
    TrialId,
    TrialStatus,
)
from mqtune.journal import FENCED, JOURNAL_FILE, JournalFile, MemoryJournal, MemoryServer, RedisJournal
from mqtune.schedulers.base import START, Choice, Fork, Resume, Scheduler

#: The driver's calls at which it may be killed, and around which workers act.
WRITES: Final = ("record", "stage", "intend", "lose", "close_trial", "drop_checkpoints", "order")
#: Losses on which the scheduler decides something; it lets trials continue on others.
STOPS, PAUSES, COPIES, COMPLETES, FORKS = 9.0, 8.0, 7.0, 6.0, 5.0
#: More turns than a trial can need to end.
MOST_TURNS: Final = 200
#: The number of examples in memory for one on a real server.
ON_REDIS: Final = 20
#: The steps of one example.
STEPS: Final = 30
TRIALS: Final = ["0001", "0002", "0003", "0004", "0005"]
#: The requests of another process; one may be sent twice.
REQUESTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    **{f"{action} {trial}": (action, {}) for action in ("stop", "pause", "resume", "save") for trial in TRIALS[:2]},
    "restart 0001": ("restart", {"config": {"lr": 0.75}}),
    "add": ("add", {"config": {"lr": 0.125}, "key": "theirs"}),
    "add again": ("add", {"config": {"lr": 0.125}, "key": "theirs"}),
    "ask": ("ask", {}),
    "tell": ("tell", {"config": {"lr": 0.25}, "metrics": {"loss": 0.5}}),
    "set": ("set", {"max_trials": 3}),
    "set slots": ("set", {"max_concurrent": 1}),
}

losses = st.sampled_from([0.5, 1.0, 2.0, float("nan"), STOPS, PAUSES, COPIES, COMPLETES, FORKS])
trial = st.sampled_from(TRIALS)
source = st.sampled_from([*TRIALS[:2], "", "", ""])
configs = st.sampled_from([{}, {"lr": 0.25}, {"lr": 0.5}])


class Killed(BaseException):
    """The driver's process is gone."""


class Judging(Scheduler):
    """Decides by a report's loss alone, resumes what it has paused, and notes what it hears."""

    takes_several = True

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self._trials: dict[TrialId, Trial] = {}
        #: Trials that it pauses, with the source that each is to copy; paused ones; and trials to be forked.
        self._sources: dict[TrialId, TrialId | None] = {}
        self._paused: dict[TrialId, None] = {}
        self._forks: dict[TrialId, None] = {}

    def on_queue(self, trial: Trial) -> None:
        self.heard.append(("stage", trial.id, trial.attempt.number, trial.parent))
        self._trials[trial.id] = trial
        self._paused.pop(trial.id, None)
        self._sources.pop(trial.id, None)
        if trial.parent is not None and trial.history[-1].by == "scheduler":
            self._forks.pop(trial.parent, None)

    def on_report(self, trial: Trial, report: Report) -> Decision:
        loss = report.metrics["loss"]
        decision = CONTINUE
        if loss in (STOPS, COMPLETES):
            decision = Decision(Action.STOP if loss == STOPS else Action.COMPLETE, f"loss {loss}")
        elif loss in (PAUSES, COPIES):
            copied = TrialId("0001") if loss == COPIES and trial.id != "0001" else None
            self._sources[trial.id] = copied
            decision = Decision(Action.PAUSE, f"loss {loss}", copied)
        elif loss == FORKS:
            self._forks[trial.id] = None
        self.heard.append((trial.id, report.attempt, report.sequence, repr(loss), decision))
        return decision

    def on_trial_pause(self, trial: Trial) -> None:
        self.heard.append(("pause", trial.id))
        if trial.id in self._sources:
            self._paused[trial.id] = None

    def on_trial_end(self, trial: Trial) -> None:
        self.heard.append(("end", trial.id, trial.status))
        self._paused.pop(trial.id, None)
        self._sources.pop(trial.id, None)
        self._forks.pop(trial.id, None)

    def choose(self, *, can_start: bool) -> Choice:
        for id_ in self._paused:
            source = self._sources[id_]
            return Resume(id_, "its turn", None, source if self._has_checkpoint(source) else None)
        for id_ in filter(self._has_checkpoint, self._forks):
            return Fork(id_, {"lr": 0.5, "depth": 3}, "as good")
        return START

    def _has_checkpoint(self, id_: TrialId | None) -> bool:
        return id_ in self._trials and bool(self._trials[id_].checkpoint)

    def describe(self) -> dict[str, Any]:
        return {}


def interrupted(kind: type[Any], around: Callable[[], None]) -> type[Any]:
    """Return a kind of journal that calls *around* before and after each write of a driver."""

    def written(name: str) -> Callable[..., Any]:
        def write(self: Any, *args: Any, **options: Any) -> Any:
            around()
            answer = getattr(kind, name)(self, *args, **options)
            around()
            return answer

        return write

    return type(f"Interrupted{kind.__name__}", (kind,), {name: written(name) for name in WRITES})


class DriverMachine(RuleBasedStateMachine):
    """An experiment in which anything happens, on a server in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        #: The actions around the next writes of the driver: none, one of a worker, or the end of the driver.
        self.script: deque[str] = deque()
        #: The reports of each attempt that its worker was told to have arrived.
        self.accepted: Counter[tuple[TrialId, int]] = Counter()
        self.before: Any = None
        self.places = 0

    # The server.

    def journal(self, server: MemoryServer) -> Any:
        return MemoryJournal(server, NAME)

    def drivers_journal(self, server: MemoryServer) -> Any:
        return interrupted(MemoryJournal, self.meanwhile)(server, NAME)

    def snapshot(self) -> Any:
        return losing.snapshot(self.bench.server)

    def set_back(self, before: Any) -> None:
        losing.set_back(self.bench.server, before)

    def heir(self) -> Heir:
        """Return what another driver makes of the journal."""
        return self.bench.heir()

    # The beginning and the end.

    @initialize(
        slots=st.integers(1, 3),
        seats=st.sampled_from([1, 1, 1, 2]),
        max_failures=st.sampled_from([0, 2]),
        delete=st.sampled_from([False, "stopped", True, "all"]),
        lockstep=st.booleans(),
    )
    def begin(self, slots: int, seats: int, max_failures: int, delete: Any, lockstep: bool) -> None:
        self.bench = Bench(
            self.folder,
            slots=slots,
            scheduler=Judging,
            max_trials=4,
            max_failures=max_failures,
            delete_checkpoints=delete,
            lockstep=lockstep,
            resources=Resources(seats=seats),
            journal=self.journal,
            drivers_journal=self.drivers_journal,
        )

    def teardown(self) -> None:
        try:
            if hasattr(self, "bench"):
                self.end_all()
                self.bench.close()
        finally:
            shutil.rmtree(self.folder)

    def end_all(self) -> None:
        """Stop the experiment, and check that each trial ends. Check the whole journal then."""
        bench = self.bench
        self.script.clear()
        bench.is_away = False
        bench.begin()
        bench.hand.stop_all("the night is over")
        for _ in range(MOST_TURNS):
            for name in self.running():
                self.end(name, None)
            if bench.driver.is_finished:
                break
            bench.step()
        assert bench.driver.is_finished
        assert all(trial.status.is_terminal for trial in bench.experiment.trials.values())
        bench.driver.end("finished", "")
        self.check()
        self.check_history()
        self.check_what_is_kept()

    # Actions around the driver's writes.

    def meanwhile(self) -> None:
        act = self.script.popleft() if self.script else ""
        if act == "kill":
            raise Killed
        if not act:
            return
        was_away, self.bench.is_away = self.bench.is_away, True
        if act == "start":
            for name in self.staged()[:1]:
                self.start(name)
        for name in self.running()[:1]:
            if act == "report":
                self.report(name, [1.0, PAUSES], saves=True)
            elif act == "end":
                self.end(name, None)
            elif act == "fail":
                self.end(name, AttemptEnd.FAILED)
        self.bench.is_away = was_away

    def act(self, call: Callable[[], Any]) -> None:
        """Do something; a driver that is killed meanwhile is followed by others, until one lives."""
        refused = (InvalidTransition, ConfigurationError, NothingResumes, ExperimentFinished)
        staged = self.staged_by_itself()
        try:
            with contextlib.suppress(*refused):
                call()
        except Killed:
            self.another_lives()
        if self.staged_by_itself() > staged and not self.bench.is_away:
            assert self.bench.experiment.live <= self.bench.slots, "more attempts than slots"
        self.check()

    def another_lives(self) -> None:
        while True:
            with contextlib.suppress(Killed):
                self.bench.begin()
                return

    def staged_by_itself(self) -> int:
        staged = self.bench.of(TrialStaged)
        return sum(event.by in ("searcher", "scheduler") and not event.outside for event in staged)

    # Workers.

    def staged(self) -> list[str]:
        """Return the trials that a worker may start; of those with several seats only the first may."""
        names = list(dict.fromkeys(each.trial.partition("~")[0] for each in self.bench.worker.unclaimed()))
        return names[:1] if self.bench.options["resources"].seats > 1 else names

    def running(self) -> list[str]:
        """Return the trials that a worker runs: it has the claim, and the server knows it."""
        claims = [(name, claim) for name, claim in self.bench.claims.items() if "~" not in name]
        answers = self.bench.worker.renew([claim for _, claim in claims], LEASE_S) if claims else []
        return [name for (name, _), answer in zip(claims, answers, strict=True) if answer != FENCED]

    def start(self, name: str) -> None:
        self.bench.start(name)
        begins_with = self.bench.grant.assignment.checkpoint
        assert not begins_with or self.bench.worker.checkpoint(begins_with), "what an attempt begins with is deleted"

    def report(self, name: str, values: list[float], *, saves: bool) -> None:
        bench, claim = self.bench, self.bench.claims[name]
        checkpoint = ""
        if saves:
            checkpoint = bench.new_checkpoint(name)
            bench.worker.put_checkpoint(claim, checkpoint, b"state")
        with contextlib.ExitStack() as stack:
            # Whatever becomes of the driver, the worker has had its answer.
            stack.callback(self.count, claim.trial, claim.attempt, len(values))
            bench.report(name, *values, checkpoint=checkpoint)

    def count(self, name: TrialId, attempt: int, count: int) -> None:
        self.accepted[name, attempt] += count

    def end(self, name: str, how: AttemptEnd | None) -> None:
        """End all seats of an attempt, as they were told or in a certain way."""
        seats = [seat for seat in self.bench.claims if seat.partition("~")[0] == name and seat != name]
        claims = [self.bench.claims[seat] for seat in seats]
        failed = {"error_type": "ValueError", "error": "ValueError: no luck"} if how is AttemptEnd.FAILED else {}
        was_away, self.bench.is_away = self.bench.is_away, True
        self.bench.end(name, how, **failed)
        for claim in claims:
            ended = AttemptEnded(
                trial=TrialId(name), attempt=claim.attempt, end=AttemptEnd.STOPPED, at=self.bench.clock.now
            )
            self.bench.worker.end(claim, ended.encode())
        for seat in (name, *seats):
            del self.bench.claims[seat]
        self.bench.is_away = was_away
        self.bench.step()

    @precondition(lambda self: self.staged())
    @rule(data=st.data())
    def a_worker_starts(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.staged()))
        self.act(lambda: self.start(name))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), values=st.lists(losses, min_size=1, max_size=3), saves=st.booleans())
    def a_worker_reports(self, data: st.DataObject, values: list[float], saves: bool) -> None:
        name = data.draw(st.sampled_from(self.running()))
        self.act(lambda: self.report(name, values, saves=saves))

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def a_worker_saves(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.running()))
        self.act(lambda: self.bench.save(name))

    @precondition(lambda self: self.running())
    @rule(data=st.data(), how=st.sampled_from([None, None, AttemptEnd.FAILED]))
    def a_worker_ends(self, data: st.DataObject, how: AttemptEnd | None) -> None:
        name = data.draw(st.sampled_from(self.running()))
        self.act(lambda: self.end(name, how))

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def a_worker_is_lost(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.running()))
        self.act(lambda: self.bench.lose(name))

    # Users.

    @rule(
        call=st.sampled_from(["pause", "stop", "complete", "fail", "abandon", "save", "delete_checkpoints"]), name=trial
    )
    def a_user_acts_on_a_trial(self, call: str, name: str) -> None:
        self.act(lambda: getattr(self.bench.hand.trial(name), call)())

    @rule(name=trial, config=configs)
    def a_user_resumes(self, name: str, config: dict[str, Any]) -> None:
        self.act(lambda: self.bench.hand.trial(name).resume(config or None))

    @rule(name=trial, config=configs, source=source)
    def a_user_restarts(self, name: str, config: dict[str, Any], source: str) -> None:
        self.act(lambda: self.bench.hand.trial(name).restart(config or None, source=source))

    @precondition(lambda self: len(self.bench.experiment.trials) < len(TRIALS))
    @rule(config=configs, source=source)
    def a_user_adds(self, config: dict[str, Any], source: str) -> None:
        self.act(lambda: self.bench.hand.add(config, source=source))

    @rule()
    def a_user_asks(self) -> None:
        self.act(lambda: self.bench.hand.ask())

    @precondition(lambda self: self.bench.experiment.outside)
    @rule(data=st.data(), step=st.integers(1, 3), loss=losses, ends=st.booleans())
    def a_user_tells(self, data: st.DataObject, step: int, loss: float, ends: bool) -> None:
        name = data.draw(st.sampled_from([*self.bench.experiment.outside]))
        self.act(lambda: self.bench.hand.tell(name, {"loss": loss, ITERATION: step}, ends=ends))

    @rule(id_=st.sampled_from(list(REQUESTS)))
    def somebody_requests(self, id_: str) -> None:
        action, arguments = REQUESTS[id_]
        name = id_.partition(" ")[2] if id_[-1].isdigit() else ""
        request = Requested(id=id_, action=action, trial=name, arguments=arguments, by="ann", at=self.bench.clock.now)
        self.bench.worker.request(request)
        self.act(self.bench.step)

    # Drivers, and the fleet.

    @rule(times=st.integers(1, 3))
    def a_driver_steps(self, times: int) -> None:
        self.bench.is_away = False
        self.act(lambda: self.bench.step(times))

    @rule()
    def a_driver_is_slow(self) -> None:
        """It reads nothing until it steps again."""
        self.bench.is_away = True

    @rule()
    def another_driver_takes_over(self) -> None:
        self.bench.is_away = False
        self.act(self.bench.begin)

    @rule()
    def a_driver_is_interrupted(self) -> None:
        self.act(lambda: self.bench.driver.requeue_all("Ctrl-C"))
        self.act(self.bench.begin)

    @rule(script=st.lists(st.sampled_from(["", "", "start", "report", "end", "fail", "kill"]), min_size=1, max_size=9))
    def trouble_is_ahead(self, script: list[str]) -> None:
        self.script = deque(script)

    @rule(slots=st.integers(0, 3))
    def the_fleet_changes(self, slots: int) -> None:
        self.bench.backend.slots = self.bench.slots = slots

    # The server's losses.

    @rule()
    def the_server_writes_its_file(self) -> None:
        self.before = self.snapshot()

    @rule(is_emptied=st.booleans())
    def the_server_is_set_back(self, is_emptied: bool) -> None:
        """The driver restores all that it had read or written."""
        self.script.clear()
        copied = list(JournalFile(self.folder / JOURNAL_FILE).read())
        self.set_back(None if is_emptied else self.before)
        self.bench.is_away = False
        # Its connection was cut.
        self.bench.journal.outages += 1
        self.bench.clock.now += Timing().keep_lock_s
        with contextlib.suppress(NothingResumes, ExperimentFinished):
            self.bench.step(2)
        if self.bench.worker.definition() is None:
            # A finished driver does nothing more; the next one would restore it.
            self.bench.driver.reader.close()
        assert [entry.data for entry in self.bench.entries()[: len(copied)]] == [entry.data for entry in copied]
        self.accepted = Counter((report.trial, report.attempt) for report in self.reports())
        self.check()

    # Claims that hold at any time.

    def reports(self) -> Iterator[Report]:
        for event in self.bench.of(Reports):
            yield from event

    def fold(self) -> Experiment:
        """Return what a second reader makes of the journal."""
        fold = self.bench.settings.experiment()
        for event in events_in_order([(entry.id, entry.data) for entry in self.bench.entries()]):
            fold.apply_report(event) if isinstance(event, Report) else fold.apply(event)
        return fold

    def check(self) -> None:
        experiment = self.bench.experiment
        trials = experiment.trials.values()
        assert experiment.counts == {status: sum(t.status is status for t in trials) for status in TrialStatus}
        assert experiment.live == sum(a.end is None for t in trials for a in t.attempts if not t.outside)
        assert all(t.attempt.end is not None for t in trials if not t.is_busy and not t.outside)
        assert all(
            t.checkpoint in t.checkpoints for t in trials if t.checkpoint and t.parent is None and not t.attempt.source
        )
        if self.bench.worker.read(self.bench.driver.reader.last, count=1):
            return
        assert encode_value(self.fold().state()) == encode_value(experiment.state())
        counted = Counter((report.trial, report.attempt) for report in self.reports())
        assert counted == self.accepted, "a result is lost or doubled"
        told = len(self.bench.of(Told))
        assert sum(t.reports + t.late_reports for t in trials) == counted.total() + told
        assert self.named() <= self.bench.worker.checkpoints(), "a checkpoint is deleted that is not dropped"
        if self.bench.lockstep and not self.bench.driver.failure:
            self.check_that_nobody_waits()

    def named(self) -> set[CheckpointId]:
        return {name for trial in self.bench.experiment.trials.values() for name in trial.checkpoints}

    def check_what_is_kept(self) -> None:
        """Check that only trials on the front keep dicts in the end, and that the server has no others."""
        experiment = self.bench.experiment
        spared = () if self.bench.delete_checkpoints == "all" else experiment.leaders
        assert all(trial.id in spared for trial in experiment.trials.values() if trial.checkpoints)
        assert self.bench.worker.checkpoints() == self.named()

    def check_that_nobody_waits(self) -> None:
        for name in self.running():
            orders, reported = self.bench.told(name), self.accepted[self.bench.claims[name][:2]]
            assert not reported or f"go:{reported}" in orders or orders.partition(" ")[0].isidentifier(), orders

    @rule()
    def a_replay_comes_to_the_same(self) -> None:
        """Another driver decides, hears and knows what this one does."""
        if self.bench.worker.read(self.bench.driver.reader.last, count=1):
            return
        heir = self.heir()
        assert known(heir.experiment) == known(self.bench.experiment)
        assert heir.scheduler.heard == self.bench.scheduler.heard

    def check_history(self) -> None:
        """Check what must be true of a journal in the end."""
        bench = self.bench
        for kind in (TrialStaged, AttemptEnded):
            assert set(Counter((event.trial, event.attempt) for event in bench.of(kind)).values()) <= {1}
        begun = Counter((event.trial, event.attempt, event.task) for event in bench.of(AttemptStarted))
        assert set(begun.values()) <= {1}
        decided = Counter((event.trial, event.attempt, event.action) for event in bench.of(DecisionTaken))
        assert set(decided.values()) <= {1}
        sequences: Counter[tuple[str, int]] = Counter()
        for report in self.reports():
            sequences[report.trial, report.attempt] += 1
            assert report.sequence == sequences[report.trial, report.attempt]
        answered = Counter(event.id for event in bench.of(RequestAnswered))
        assert set(answered.values()) <= {1}
        effects = Counter(request for event in bench.events() if (request := getattr(event, "request", "")))
        assert set(effects.values()) <= {1}
        actions = {event.id: event.action for event in bench.of(Requested)}
        for answer in bench.of(RequestAnswered):
            assert answer.done or (answer.reason and not effects[answer.id])
            # What is added or told again changes nothing, and others leave no event of a trial.
            again = actions[answer.id] in ("add", "tell", "save", "set")
            assert not answer.done or again or effects[answer.id], answer
        # A trial that waited for a slot is left to a later driver.
        assert all(event.action == "add" for event in bench.of(Requested) if event.id not in answered)
        assert list(JournalFile(bench.folder / JOURNAL_FILE).read()) == bench.worker.read(START_ENTRY, count=10**6)


class RedisMachine(DriverMachine):
    """The same on a real server, which has a clock of its own."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__()
        self.client: Any = client
        client.flushdb()

    def journal(self, server: MemoryServer) -> Any:
        return MemoryJournal(server, NAME) if server.experiments else RedisJournal(self.client, NAME)

    def drivers_journal(self, server: MemoryServer) -> Any:
        return interrupted(RedisJournal, self.meanwhile)(self.client, NAME)

    def snapshot(self) -> Any:
        return losing.snapshot_of_redis(self.client)

    def set_back(self, before: Any) -> None:
        losing.set_back_redis(self.client, before or {})

    def heir(self) -> Heir:
        """Have a driver on a server in memory read the same entries."""
        server = MemoryServer(self.bench.clock.monotonic)
        MemoryJournal(server, NAME)
        state = server.experiments[NAME]
        state.entries, state.definition = self.bench.entries(), self.bench.worker.definition()
        return self.bench.heir(server)


def known(experiment: Experiment) -> tuple[str, ...]:
    """Return what a driver knows of its trials, as text, in which NaN is equal to NaN."""
    return tuple(map(repr, (experiment.trials, experiment.counts, experiment.to_retry, experiment.to_restart)))


def check(machine: Callable[[], DriverMachine], examples: int) -> None:
    """Run a machine for a number of examples."""
    run = settings(max_examples=examples, stateful_step_count=STEPS, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=run)


@pytest.mark.hypothesis
def test_whatever_users_workers_and_drivers_do_the_journal_tells_it_all_and_each_trial_ends() -> None:
    check(DriverMachine, settings.default.max_examples)


@pytest.mark.hypothesis
def test_on_a_real_server_the_journal_tells_it_all_too(redis_client: redis.Redis) -> None:
    check(lambda: RedisMachine(redis_client), max(1, settings.default.max_examples // ON_REDIS))
