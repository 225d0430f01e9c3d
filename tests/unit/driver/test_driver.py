"""What a driver stages and publishes, what it waits for, and what it warns of."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from bench import NAME, SPACE, Bench, Obedient, Slots
from simulation import curve, simulate

import mqtune
from mqtune import ASHA, FIFO, RandomSearcher
from mqtune.backends import Offer
from mqtune.core.callback import Callback
from mqtune.core.errors import (
    BrokerUnavailable,
    DriverFenced,
    MetricMissing,
    NameTaken,
    ReportInvalid,
    TrainableNotFound,
    UserCodeFailed,
)
from mqtune.core.events import TrialStaged
from mqtune.core.timing import Timing
from mqtune.core.trial import Attempt, AttemptEnd, Config, Decision, Report, Trial, TrialId, TrialStatus
from mqtune.driver import GATHER_S, Limits, Publisher, RoomWatch
from mqtune.journal import MemoryJournal, MemoryServer, Room, Unclaimed
from mqtune.schedulers import Scheduler
from mqtune.search import Searcher

TIMING: Final = Timing()
LEASE_GRACE_S: Final = TIMING.lease_grace_s
LOOK_AT_LEASES_S: Final = TIMING.look_at_leases_s
UNCLAIMED_S: Final = TIMING.unclaimed_s
KEEP_LOCK_S: Final = TIMING.keep_lock_s
LOCK_S: Final = TIMING.lock_s

ONE, TWO = "0001", "0002"


class Queue(Slots):
    """A backend that knows what waits in its queue, and to which many attempts can be published at once."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.waiting: list[tuple[TrialId, int]] = []
        self.batches: list[list[str]] = []

    def publish_all(self, offers: Sequence[Offer]) -> None:
        if not offers:
            return
        self.batches.append([offer.trial for offer in offers])
        for offer in offers:
            self.publish(*offer)

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        super().publish(trial, attempt, config)
        self.waiting.append((trial, attempt))

    def queued(self) -> Any:
        return set(self.waiting)


def queueing(folder: Path, **options: Any) -> tuple[Bench, Queue]:
    """Three slots with a queue; a scheduler that is asked ahead has six attempts staged."""
    bench = Bench(folder, slots=3, **{"max_trials": 12, "scheduler": FIFO, **options})
    bench.backend = queue = Queue(3)
    bench.begin()
    return bench, queue


def ends(bench: Bench) -> list[AttemptEnd | None]:
    return [attempt.end for attempt in bench.trial().attempts]


# Publishing.


@pytest.mark.parametrize(
    ("takes_s", "behind"),
    [
        (0.0, [["0002", "0003", "0004", "0005", "0006"]]),
        # No staged attempt waits long for others.
        (0.4 * GATHER_S, [["0002", "0003", "0004"], ["0005", "0006"]]),
    ],
)
def test_what_a_filling_stages_behind_its_first_attempt_is_published_together(
    tmp_path: Path, takes_s: float, behind: list[list[str]]
) -> None:
    class Slow(RandomSearcher):
        def suggest(self, trial: TrialId) -> Any:
            bench.clock.now += takes_s
            return super().suggest(trial)

    bench, queue = queueing(tmp_path, searcher=lambda: Slow(SPACE, 7))

    bench.step()

    assert queue.batches == [["0001"], *behind]


def test_an_attempt_that_was_stopped_before_it_was_published_is_not_published(tmp_path: Path) -> None:
    class Stopping(Callback):
        in_loop = True

        def on_stage(self, trial: Trial) -> None:
            if trial.id == "0004":
                bench.driver.steer("stop", TWO, {})

    bench, queue = queueing(tmp_path, callbacks=[Stopping()])

    bench.step()

    assert queue.batches[:2] == [["0001"], ["0003", "0004", "0005", "0006", "0007"]]
    assert bench.trial(TWO).status is TrialStatus.EARLY_STOPPED


def test_what_was_staged_before_a_searcher_failed_is_published(tmp_path: Path) -> None:
    class Failing(RandomSearcher):
        def suggest(self, trial: TrialId) -> Any:
            if trial == "0004":
                raise ValueError("no more")
            return super().suggest(trial)

    bench, queue = queueing(tmp_path, searcher=lambda: Failing(SPACE, 7))

    with pytest.raises(UserCodeFailed):
        bench.step()

    assert queue.batches == [["0001"], ["0002", "0003"]]


def test_a_server_that_is_away_is_waited_for_once_and_what_was_staged_is_published_by_the_next_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, queue = queueing(tmp_path)
    stage = MemoryJournal.stage

    def away(journal: MemoryJournal, trial: TrialId, *rest: Any) -> bool:
        if trial == "0004":
            raise BrokerUnavailable("it is away")
        return stage(journal, trial, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryJournal, "stage", away)
        with pytest.raises(BrokerUnavailable):
            bench.step()
    assert queue.batches == [["0001"]]

    bench.begin()

    assert queue.batches == [["0001"], ["0002", "0003"]]


def test_an_attempt_that_is_staged_by_hand_is_published_at_once(tmp_path: Path) -> None:
    bench, queue = queueing(tmp_path)

    bench.hand.add({"lr": 0.5})
    bench.hand.add({"lr": 0.6})

    assert queue.batches == [["0001"], ["0002"]]


def test_a_message_that_was_lost_is_published_again_and_one_that_waits_is_not(tmp_path: Path) -> None:
    bench, queue = queueing(tmp_path)
    bench.step()
    lost = queue.waiting.pop(2)
    queue.published.clear()

    bench.clock.now += UNCLAIMED_S - 1
    bench.step()
    assert queue.published == []

    bench.clock.now += UNCLAIMED_S
    bench.step()
    assert queue.published == [lost]


def test_what_a_full_server_has_not_taken_is_published_when_there_is_room_and_nobody_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = [Room(used=2, most=1)]
    bench, queue = queueing(tmp_path)
    monkeypatch.setattr(bench.journal, "room", lambda: room[0])
    bench.step()
    refused = queue.waiting.pop(2)
    queue.published.clear()

    def wait(times: int) -> None:
        for _ in range(times):
            bench.clock.now += UNCLAIMED_S
            bench.step()

    wait(3)
    assert queue.published == []

    room[0] = Room(used=0, most=0)
    wait(2)

    assert queue.published == [refused]
    assert "nobody has taken it" not in caplog.text
    queue.waiting.remove(refused)
    wait(1)
    assert "nobody has taken it" in caplog.text


def test_an_attempt_that_a_worker_holds_is_not_published_again_until_that_runs_out(tmp_path: Path) -> None:
    bench, queue = queueing(tmp_path)
    bench.step()
    taken = queue.waiting.pop(2)
    queue.published.clear()
    for _ in range(3):
        # As with each heartbeat of a worker whose slot imports for a while.
        bench.worker.hold([Unclaimed(*taken, "w", 1.0)], 2 * UNCLAIMED_S)
        bench.clock.now += UNCLAIMED_S
        bench.step()
    assert queue.published == []

    bench.clock.now += 2 * UNCLAIMED_S
    bench.step()

    assert queue.published == [taken]


# What it waits for.


def test_without_a_slot_nothing_is_staged_and_the_reason_is_told(tmp_path: Path) -> None:
    told: list[str] = []

    class Told(Callback):
        in_loop = True

        def on_step(self, waiting_for: str) -> None:
            told.append(waiting_for)

    bench = Bench(tmp_path, slots=0, callbacks=[Told()]).step()
    assert (bench.experiment.trials, bench.driver.waiting_for, told) == (
        {},
        "there is no worker",
        ["there is no worker"],
    )

    bench.backend.slots = 1
    bench.clock.now += KEEP_LOCK_S
    bench.step()
    assert bench.driver.waiting_for == ""
    assert len(bench.experiment.trials) == 1


def test_the_fleet_is_looked_at_when_it_says_that_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path).step()
    looks: list[None] = []
    monkeypatch.setattr(bench.backend, "refresh", lambda: looks.append(None))

    bench.journal.fleet_changed = True
    bench.step(2)

    assert len(looks) == 1


def test_while_workers_import_it_is_told_that_they_do_and_for_how_long(tmp_path: Path) -> None:
    bench, queue = queueing(tmp_path)
    bench.step()
    one, two, three = queue.waiting[:3]
    # It waits for its slot.
    bench.worker.hold([Unclaimed(*three, "w3")], 100)
    assert bench.step().driver.waiting_for == ""

    bench.worker.hold([Unclaimed(*one, "w1", 12.0)], 100)
    assert bench.step().driver.waiting_for == "importing your code (12 s)"

    bench.worker.hold([Unclaimed(*two, "w2", 20.0)], 100)
    bench.clock.now += 1
    assert bench.step().driver.waiting_for == "importing your code on 2 workers (21 s)"

    assert bench.start(ONE).driver.waiting_for == ""


# Room.


class Adaptive(RandomSearcher):
    adaptive = True


@pytest.mark.parametrize(("searcher", "live"), [(RandomSearcher, 6), (Adaptive, 3)])
def test_a_searcher_is_asked_ahead_unless_its_suggestions_depend_on_reports(
    tmp_path: Path, searcher: type[RandomSearcher], live: int
) -> None:
    bench = Bench(tmp_path, slots=3, max_trials=12, scheduler=FIFO, searcher=lambda: searcher(SPACE, 1)).step()

    assert bench.experiment.live == live


def test_the_searcher_decides_how_many_trials_there_are_when_nobody_else_does() -> None:
    class Three(RandomSearcher):
        def suggest(self, trial: TrialId) -> Config | None:  # type: ignore[override]
            return super().suggest(trial) if int(trial) <= 3 else None

    simulation = simulate(curve(1), limits=Limits(max_trials=None), searcher=lambda: Three(SPACE, 1))

    assert len(simulation.experiment.trials) == 3


def test_retries_come_before_new_trials_with_the_same_time_to_live(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=1, max_failures=1, max_trials=9, ttl_s=60.0).step().start(ONE).fail(ONE)

    assert [(event.trial, event.attempt) for event in bench.of(TrialStaged)] == [(ONE, 1), (ONE, 2)]
    assert bench.start(ONE).grant.assignment.ttl_s == 60.0


# The lock, and leases.


def test_a_driver_keeps_its_lock_for_as_long_as_it_steps_and_lets_the_next_one_in_when_it_closes(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path).step()
    other = MemoryJournal(bench.server, NAME)

    for _ in range(20):
        bench.clock.now += KEEP_LOCK_S
        bench.step()

    assert bench.server.experiments[NAME].driver_until == bench.clock.now + LOCK_S
    with pytest.raises(NameTaken):
        other.lock("another", "", LOCK_S)
    bench.driver.close()
    other.lock("another", "", LOCK_S)
    bench.clock.now += KEEP_LOCK_S
    with pytest.raises(DriverFenced):
        bench.step()


@pytest.mark.parametrize("slow", ["reports", "other entries"])
def test_a_driver_that_catches_up_for_long_keeps_its_lock(tmp_path: Path, slow: str) -> None:
    class Slow(Obedient):
        takes_s = 0.0

        def on_stage(self, trial: Trial) -> None:
            bench.clock.now += self.takes_s
            super().on_stage(trial)

        def on_report(self, trial: Trial, report: Report) -> Decision:
            bench.clock.now += self.takes_s
            return super().on_report(trial, report)

    # Behind reports alone it looks at its lock now and then, and behind other entries each time.
    many, reports, takes_s = (1, 640, LOCK_S / 100) if slow == "reports" else (30, 1, LOCK_S / 4)
    bench = Bench(tmp_path, slots=many, max_trials=many, scheduler=Slow)
    bench.step().start(ONE)
    bench.is_away = True
    for _ in range(reports):
        bench.report(ONE, 1.0)
    bench.is_away = False
    Slow.takes_s = takes_s
    began = bench.clock.now

    bench.begin()

    assert bench.clock.now > began + 5 * LOCK_S
    held_until = bench.server.experiments[NAME].driver_until
    assert held_until is not None
    assert bench.clock.now < held_until <= bench.clock.now + LOCK_S


def test_after_an_outage_of_redis_workers_have_their_turn_before_their_leases_are_reaped(tmp_path: Path) -> None:
    bench = Bench(tmp_path).step().start(ONE)
    bench.clock.now += LEASE_GRACE_S
    bench.step()

    bench.worker.renew([bench.claims[ONE]], 0.0)
    bench.journal.outages += 1
    bench.clock.now += LOOK_AT_LEASES_S
    bench.step()
    assert ends(bench) == [None]

    bench.worker.renew([bench.claims[ONE]], 100.0)
    bench.clock.now += LEASE_GRACE_S + LOOK_AT_LEASES_S
    bench.step()
    assert ends(bench) == [None]


def test_no_lease_is_reaped_that_ran_out_while_redis_was_full_and_took_no_renewal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path).step().start(ONE)
    for _ in range(round(LEASE_GRACE_S / LOOK_AT_LEASES_S) + 1):
        bench.clock.now += LOOK_AT_LEASES_S
        bench.step()
    journal = bench.journal
    lock = journal.lock

    def lock_when_there_is_room(*arguments: Any, **options: Any) -> None:
        journal.outages += 1
        lock(*arguments, **options)

    monkeypatch.setattr(journal, "lock", lock_when_there_is_room)
    bench.worker.renew([bench.claims[ONE]], 0.0)
    bench.clock.now += LOOK_AT_LEASES_S
    bench.step()

    assert ends(bench) == [None]


# The end, and going on.


@pytest.mark.parametrize(
    ("how", "pid", "error_type"),
    [(AttemptEnd.HANDED_BACK, 0, "ImportError"), (AttemptEnd.FAILED, 7, "TrainableNotFound")],
    ids=["its worker found out", "its process found out"],
)
def test_a_trainable_that_can_not_be_started_ends_the_run_at_the_first_trial_and_not_that_of_the_next_driver(
    tmp_path: Path, how: AttemptEnd, pid: int, error_type: str
) -> None:
    """A person has seen it, repaired the code, and run the same script again."""
    bench = Bench(tmp_path, max_trials=9).step().start(ONE, is_ready=bool(pid))

    bench.end(ONE, how, pid=pid, error_type=error_type, error=f"{error_type}: no module named train")

    assert isinstance(bench.driver.failure, TrainableNotFound)
    assert f"trial 0001 could not be started: {error_type}: no module named train" in str(bench.driver.failure)
    staged = len(bench.experiment.trials)
    assert len(bench.step().experiment.trials) == staged
    bench.begin()
    assert bench.driver.failure is None


def test_a_trial_whose_child_process_has_tried_to_report_says_so_in_its_reason(tmp_path: Path) -> None:
    bench = Bench(tmp_path).step().start(ONE)

    bench.end(ONE, AttemptEnd.COMPLETED, error="report: this is a child process of the trial")

    trial = bench.experiment.trials[ONE]
    assert trial.status is TrialStatus.FAILED
    assert trial.reason == "ended without any report: report: this is a child process of the trial"


UNSENDABLE = (
    "Traceback (most recent call last):\n  …\nmqtune.core.errors.ReportInvalid: report: the metric 'seen' can't be sent"
)

OF_A_SCRIPT = f"script train.py exited with code 1; its last errors were:\n{UNSENDABLE}"


@pytest.mark.parametrize(
    ("error_type", "error"), [("ReportInvalid", UNSENDABLE), ("Exited", OF_A_SCRIPT)], ids=["function", "script"]
)
def test_a_report_that_can_not_be_sent_ends_the_run_unless_other_reports_could_be(
    tmp_path: Path, error_type: str, error: str
) -> None:
    bench = Bench(tmp_path / "first", max_trials=9).step().start(ONE)
    bench.end(ONE, AttemptEnd.FAILED, pid=7, error_type=error_type, error=error)

    assert isinstance(bench.driver.failure, ReportInvalid)
    assert str(bench.driver.failure) == "trial 0001: report: the metric 'seen' can't be sent"
    bench.begin()
    assert bench.driver.failure is None, "a person has seen it, and repaired the code"

    bench = Bench(tmp_path / "later", max_trials=9).step().start(ONE)
    bench.report(ONE, 1.0)
    bench.end(ONE, AttemptEnd.FAILED, pid=7, error_type=error_type, error=error)

    assert bench.driver.failure is None


@pytest.mark.parametrize("scheduler", [FIFO, lambda: ASHA(max_t=3)])
def test_a_trial_that_never_reports_the_metric_ends_the_run_when_it_is_the_first_to_end(
    scheduler: Callable[[], Scheduler],
) -> None:
    """Also one that reaches the scheduler's last rung so: a misspelt metric must not cost the whole experiment."""
    with pytest.raises(MetricMissing, match="none of its"):
        simulate(lambda config: [(1.0, {"loss": None})] * 3, scheduler=scheduler)


def test_a_suggestion_that_differs_from_the_journals_is_a_warning_and_the_journal_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Plain(RandomSearcher):
        replay = Searcher.replay

    seeds = iter((1, 2))
    bench = Bench(tmp_path, searcher=lambda: Plain(SPACE, next(seeds))).step()
    configs = [trial.config for trial in bench.experiment.trials.values()]

    bench.begin()

    assert [trial.config for trial in bench.experiment.trials.values()] == configs
    assert caplog.text.count("the searcher now suggests") == 2


def test_a_step_in_real_time_waits_once_also_when_what_came_leaves_nothing_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, slots=1).step(2).start()
    # From here on there is room for nothing, and a report leaves the round steady.
    bench.report("0001", 0.5)
    journal, waits = bench.journal, []
    read = journal.read
    monkeypatch.setattr(journal, "read", lambda *args, **how: waits.append(how) or read(*args, **how))

    bench.report("0001", 0.4)

    assert len(waits) == 1


TRIALS: Final = 20

#: Reports of each trial by the first look and until the second.
FEW: Final = 10

MANY: Final = 250

#: By how much a driver may grow for each trial meanwhile: numbers become larger ones, and ASHA's rungs more by four, which
#: know what each trial had there.
GROWTH_BYTES: Final = 1_500

SCHEDULERS: Final[dict[str, Callable[[], Scheduler]]] = {
    "fifo": mqtune.FIFO,
    "asha": lambda: mqtune.ASHA(max_t=10**6),
    "hyperband": lambda: mqtune.HyperBand(max_t=10**6),
    "median": lambda: mqtune.MedianStopping(interval=10**6),
    "pbt": lambda: mqtune.PBT(10**6, {"lr": mqtune.uniform(0, 1)}),
}


def size_of(root: object) -> int:
    """Return how many bytes all have that can be reached from *root*, but for code and the journal."""
    seen: set[int] = set()
    waiting: list[Any] = [root]
    total = 0
    while waiting:
        each = waiting.pop()
        if id(each) in seen or isinstance(each, type | types.ModuleType | MemoryServer | MemoryJournal):
            continue
        seen.add(id(each))
        if isinstance(each, types.FunctionType):
            # What it closes over is its own; its globals are its module's.
            waiting += [cell.cell_contents for cell in each.__closure__ or ()]
            continue
        total += sys.getsizeof(each)
        waiting += gc.get_referents(each)
    return total


@pytest.mark.parametrize("name", SCHEDULERS)
def test_what_a_driver_remembers_does_not_grow_with_the_reports(name: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=TRIALS, max_trials=TRIALS, scheduler=SCHEDULERS[name])
    bench.step()
    trials = list(bench.experiment.trials)
    for trial in trials:
        bench.start(trial)

    def report(count: int) -> int:
        for trial in trials:
            bench.report(trial, *(1.0 + number / count for number in range(count)))
        return size_of(bench.driver)

    before, after = report(FEW), report(MANY)

    # Those that come after a decision are late.
    assert sum(trial.reports + trial.late_reports for trial in bench.experiment.trials.values()) == TRIALS * (
        FEW + MANY
    )
    # An empty object has 16 bytes, and a reference to it another 8.
    assert after - before < GROWTH_BYTES * TRIALS < 24 * MANY * TRIALS


class Broker:
    """A broker that takes some time for each message, and its clock."""

    def __init__(self, takes_s: float) -> None:
        self.now = 0.0
        self.sent: list[list[str]] = []
        self._takes_s = takes_s

    def monotonic(self) -> float:
        return self.now

    def publish_all(self, offers: Sequence[Offer]) -> None:
        self.now += self._takes_s
        self.sent.append([offer.trial for offer in offers])


def staged_trial(number: int) -> Trial:
    trial = Trial(TrialId(f"{number:04d}"), {})
    trial.attempts.append(Attempt(1, staged_at=0.0))
    return trial


@pytest.mark.parametrize(("takes_s", "gathered_s"), [(0.0, GATHER_S), (0.001, GATHER_S), (0.05, 0.5)])
def test_attempts_are_gathered_for_longer_the_longer_it_takes_to_send_some(takes_s: float, gathered_s: float) -> None:
    broker: Any = Broker(takes_s)
    publisher = Publisher(broker, broker)

    with publisher:
        for number in range(60):
            publisher.publish(staged_trial(number))
            broker.now += 0.02

    first, *middle, last = map(len, broker.sent)
    assert first == 1, "the first of a filling never waits"
    assert middle
    assert set(middle) <= {round(gathered_s / 0.02), round(gathered_s / 0.02) + 1}
    assert sum(map(len, broker.sent)) == 60
    assert last <= max(middle)


MIB = 1 << 20


def test_a_driver_says_once_that_room_runs_out_that_there_is_none_and_that_there_is_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = RoomWatch()
    said = []

    for percent in (79, 80, 81, 79, 80, 101, 99, 101, 90, 70, 82):
        caplog.clear()
        watch.look(Room(percent * MIB, 100 * MIB))
        said.append((percent, bool(watch.why), [record.getMessage().partition(",")[0] for record in caplog.records]))

    assert said == [
        (79, False, []),
        (80, False, ["Redis is nearly full"]),
        (81, False, []),
        (79, False, []),
        (80, False, []),
        (101, True, ["Redis is full (maxmemory)"]),
        (99, True, []),
        (101, True, []),
        (90, False, ["Redis has room again: 90 MiB used of 100 MiB"]),
        (70, False, ["Redis has room again: 70 MiB used of 100 MiB"]),
        (82, False, ["Redis is nearly full"]),
    ]


def test_what_a_server_does_not_count_against_its_limit_is_left_out() -> None:
    """Buffers of replicas and of its file."""
    room = Room.of({"used_memory": 110 * MIB, "maxmemory": 100 * MIB, "mem_not_counted_for_evict": 40 * MIB})

    assert (room.part, room.shortage) == (0.7, "")
