"""The attempts that a driver stages and publishes, its waits and its warnings."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from bench import NAME, SPACE, Bench, Clock, Slots
from simulation import simulate

from mqtune import ASHA, FIFO, RandomSearcher
from mqtune.backends import Offer
from mqtune.core.errors import DriverFenced, MetricMissing, NameTaken, ReportInvalid, TrainableNotFound
from mqtune.core.events import TrialStaged
from mqtune.core.timing import Timing
from mqtune.core.trial import FORGOTTEN, Attempt, AttemptEnd, Config, Trial, TrialId, TrialStatus
from mqtune.driver import GATHER_S, Publisher, RoomWatch
from mqtune.journal import MemoryJournal, MemoryServer, OnLoss, Room, TrialState
from mqtune.schedulers import Scheduler

TIMING: Final = Timing()
UNCLAIMED_S: Final = TIMING.unclaimed_s
KEEP_LOCK_S: Final = TIMING.keep_lock_s
LEASE_GRACE_S: Final = TIMING.lease_grace_s
LOOK_AT_ATTEMPTS_S: Final = TIMING.look_at_attempts_s
LOOK_AT_LEASES_S: Final = TIMING.look_at_leases_s
#: A worker's, so that leases run out here.
LEASE_S: Final = 15.0

ONE, TWO, THREE = "0001", "0002", "0003"


class Queue(Slots):
    """A backend that knows what waits in its queue."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.waiting: list[tuple[TrialId, int]] = []

    def publish(self, trial: TrialId, attempt: int, config: Config) -> None:
        super().publish(trial, attempt, config)
        self.waiting.append((trial, attempt))

    def queued(self) -> Any:
        return set(self.waiting)


class Adaptive(RandomSearcher):
    adaptive = True


@pytest.mark.parametrize(("searcher", "live"), [(RandomSearcher, 6), (Adaptive, 3)])
def test_a_searcher_is_asked_ahead_unless_its_suggestions_depend_on_reports(tmp_path: Path, searcher: Any, live: int):
    bench = Bench(tmp_path, slots=3, max_trials=12, scheduler=FIFO, searcher=lambda: searcher(SPACE, 1)).step()

    assert bench.experiment.live == live


def test_retries_come_before_new_trials_with_the_same_timeout(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=1, max_failures=1, max_trials=9, timeout_s=60.0).step().start(ONE).fail(ONE)

    assert [(event.trial, event.attempt) for event in bench.of(TrialStaged)] == [(ONE, 1), (ONE, 2)]
    assert bench.start(ONE).grant.assignment.timeout_s == 60.0


def test_a_driver_keeps_its_lock_until_it_closes(tmp_path: Path) -> None:
    bench = Bench(tmp_path).step()
    other = MemoryJournal(bench.server, NAME)

    for _ in range(20):
        bench.clock.now += KEEP_LOCK_S
        bench.step()

    assert bench.server.experiments[NAME].driver_until == bench.clock.now + TIMING.lock_s
    with pytest.raises(NameTaken):
        other.lock("another", "", TIMING.lock_s)
    bench.driver.close()
    other.lock("another", "", TIMING.lock_s)
    bench.clock.now += KEEP_LOCK_S
    with pytest.raises(DriverFenced):
        bench.step()


def test_workers_know_the_limits_of_a_lost_driver_and_of_the_journal_before_a_trial(tmp_path: Path) -> None:
    bench = Bench(tmp_path, on_driver_loss="stop", driver_loss_grace_s=7.0, journal_mb=2.0)

    assert bench.of(TrialStaged) == []
    state = bench.server.experiments[NAME]
    assert (state.on_loss, state.most_bytes) == (OnLoss("stop", 7.0), 2_000_000)


@pytest.mark.parametrize(
    ("how", "pid", "error_type"),
    [(AttemptEnd.HANDED_BACK, 0, "ImportError"), (AttemptEnd.FAILED, 7, "TrainableNotFound")],
    ids=["its worker found out", "its process found out"],
)
def test_an_unstartable_trainable_ends_the_run(tmp_path: Path, how: AttemptEnd, pid: int, error_type: str) -> None:
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
def test_a_first_report_that_can_not_be_sent_ends_the_run(tmp_path: Path, error_type: str, error: str) -> None:
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
def test_a_first_trial_that_never_reports_the_metric_ends_the_run(scheduler: Callable[[], Scheduler]) -> None:
    with pytest.raises(MetricMissing, match="none of its"):
        simulate(lambda config: [(1.0, {"loss": None})] * 3, scheduler=scheduler)


MIB = 1 << 20


def test_a_driver_says_once_that_room_runs_out_and_is_back(caplog: pytest.LogCaptureFixture) -> None:
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
    room = Room.of({"used_memory": 110 * MIB, "maxmemory": 100 * MIB, "mem_not_counted_for_evict": 40 * MIB})

    assert (room.part, room.shortage) == (0.7, "")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """One running trial, whose lease is new, when the driver has looked at leases for a while."""
    bench = Bench(tmp_path, max_trials=1).step().start()
    bench.worker.renew(list(bench.claims.values()), LEASE_S)
    return wait(bench, LEASE_GRACE_S)


def wait(bench: Bench, seconds: float) -> Bench:
    """Let time pass, and have the driver look as often as it does."""
    until = bench.clock.now + seconds
    while bench.clock.now < until:
        bench.clock.now += LOOK_AT_LEASES_S
        bench.step()
    return bench


def ends(bench: Bench) -> list[AttemptEnd | None]:
    return [attempt.end for attempt in bench.trial().attempts]


@pytest.mark.parametrize("late_s", [0.0, TIMING.stall_s])
def test_a_lease_that_runs_out_before_the_drivers_eyes_is_lost_at_once(bench: Bench, late_s: float) -> None:
    bench.clock.now += late_s
    bench.step()
    wait(bench, LEASE_S - LEASE_GRACE_S - late_s + 2 * LOOK_AT_LEASES_S)

    assert ends(bench)[0] is AttemptEnd.LOST


@pytest.mark.parametrize("was_away", [False, True])
@pytest.mark.parametrize(("renews", "end"), [(True, None), (False, AttemptEnd.LOST)])
def test_leases_last_after_an_outage(bench: Bench, was_away: bool, renews: bool, end: AttemptEnd | None) -> None:
    bench.worker.renew(list(bench.claims.values()), 0.0)
    bench.journal.outages += was_away
    bench.clock.now += LOOK_AT_LEASES_S if was_away else 2 * LEASE_S
    bench.step()
    wait(bench, LEASE_GRACE_S / 2)
    assert ends(bench) == [None]
    if renews:
        bench.worker.renew(list(bench.claims.values()), LEASE_S)

    wait(bench, LEASE_GRACE_S)

    assert ends(bench)[0] is end


@pytest.mark.parametrize("waits_s", [0.0, 2 * LEASE_S])
def test_a_look_that_itself_waited_for_the_server_reaps_nothing(bench: Bench, waits_s: float) -> None:
    journal, expired = bench.journal, bench.journal.expired
    bench.worker.renew(list(bench.claims.values()), 0.0)

    def slow_to_answer() -> list[TrialId]:
        bench.clock.now += waits_s
        found = expired()
        journal.outages += 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "expired", slow_to_answer)
        bench.clock.now += LOOK_AT_LEASES_S
        bench.step()
    assert ends(bench) == [None]
    bench.worker.renew(list(bench.claims.values()), LEASE_S)
    wait(bench, LEASE_GRACE_S)
    assert ends(bench) == [None]


def test_an_attempt_whose_key_is_gone_is_lost_with_the_reason_and_the_trial_runs_again(bench: Bench) -> None:
    del bench.server.experiments[NAME].trials[bench.trial().id]

    wait(bench, 2 * LOOK_AT_ATTEMPTS_S + LOOK_AT_LEASES_S)

    first, second = bench.trial().attempts
    assert (first.end, first.error_type) == (AttemptEnd.LOST, FORGOTTEN)
    assert "noeviction" in first.error
    assert (second.number, second.end) == (2, None)
    assert bench.replayed().trials[bench.trial().id].status is bench.trial().status
    # So is a waiting one.
    del bench.server.experiments[NAME].trials[bench.trial().id]
    wait(bench, 2 * LOOK_AT_ATTEMPTS_S + LOOK_AT_LEASES_S)
    assert ends(bench) == [AttemptEnd.LOST, AttemptEnd.LOST, None]
    assert bench.backend.published[-1] == ("0001", 3)


@pytest.mark.parametrize("end", [AttemptEnd.COMPLETED, AttemptEnd.LOST])
def test_what_the_driver_has_not_read_yet_counts_before_its_attempt_is_lost(bench: Bench, end: AttemptEnd) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.journal, "read", lambda *_, **__: [])
        bench.report("0001", 0.5)
        if end is AttemptEnd.COMPLETED:
            bench.end()
        wait(bench, max(LEASE_S, 4 * LOOK_AT_ATTEMPTS_S) + 2 * LOOK_AT_LEASES_S)
        assert ends(bench) == [None]

    wait(bench, LOOK_AT_LEASES_S)

    assert bench.trial().reports == 1
    assert ends(bench)[0] is end


def test_what_is_listed_and_is_no_trial_ends_no_driver(bench: Bench) -> None:
    trials = bench.server.experiments[NAME].trials
    trials[TrialId("nonsense")] = TrialState(1, b"", state="running", lease_until=0.0)
    trials[TrialId("more")] = TrialState(1, b"", state="staged")
    bench.worker.renew(list(bench.claims.values()), LEASE_S)

    wait(bench, UNCLAIMED_S + LOOK_AT_LEASES_S)

    assert ends(bench) == [None]


def size_of(root: object) -> int:
    """Return the bytes of all objects reachable from *root*, without code and the journal."""
    seen: set[int] = set()
    waiting, total = [root], 0
    while waiting:
        each: Any = waiting.pop()
        if id(each) in seen or isinstance(each, type | types.ModuleType | MemoryServer | MemoryJournal):
            continue
        seen.add(id(each))
        is_code = isinstance(each, types.FunctionType)
        total += 0 if is_code else sys.getsizeof(each)
        # A function owns its closure; its globals are its module's.
        waiting += [cell.cell_contents for cell in each.__closure__ or ()] if is_code else gc.get_referents(each)
    return total


def test_what_a_driver_remembers_does_not_grow_with_the_reports(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots=20, max_trials=20, scheduler=lambda: ASHA(max_t=10**6)).step()
    for trial in list(bench.experiment.trials):
        bench.start(trial)

    def report(count: int) -> int:
        for trial in bench.experiment.trials:
            bench.report(trial, *(1.0 + number / count for number in range(count)))
        return size_of(bench.driver)

    before, after = report(10), report(250)

    # Numbers become larger ones, and ASHA has more rungs; a reference to an empty object has 24 bytes for each report.
    assert after - before < 20 * 1_500 < 20 * 250 * 24


def test_what_a_full_server_has_not_taken_is_published_when_there_is_room_and_nobody_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = [Room(used=2, most=1)]
    # A searcher that is asked ahead has six attempts staged.
    bench = Bench(tmp_path, slots=3, max_trials=12, scheduler=FIFO)
    bench.backend = queue = Queue(3)
    bench.begin()
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
    assert "no worker has taken it" not in caplog.text
    queue.waiting.remove(refused)
    bench.clock.now += UNCLAIMED_S - 1
    bench.step()
    assert queue.published == [refused]
    wait(1)
    assert queue.published == [refused, refused]
    assert "no worker has taken it" in caplog.text


@pytest.mark.parametrize(("takes_s", "gathered_s"), [(0.0, GATHER_S), (0.001, GATHER_S), (0.05, 0.5)])
def test_attempts_are_gathered_for_longer_the_longer_it_takes_to_send_some(takes_s: float, gathered_s: float) -> None:
    clock, sent = Clock(), []

    def publish_all(offers: Sequence[Offer]) -> None:
        clock.now += takes_s
        sent.append(len(offers))

    with Publisher(SimpleNamespace(publish_all=publish_all), clock) as publisher:  # type: ignore[arg-type]
        for number in range(60):
            publisher.publish(Trial(TrialId(f"{number:04d}"), {}, attempts=[Attempt(1, queued_at=0.0)]))
            clock.now += 0.02
    sent_before = len(sent)
    publisher.publish(Trial(TrialId("0061"), {}, attempts=[Attempt(1, queued_at=0.0)]))
    assert sent[sent_before:] == [1], "who stages by hand does not wait"

    first, *middle, last = sent[:sent_before]
    assert first == 1, "the first of a filling never waits"
    assert middle
    assert set(middle) <= {round(gathered_s / 0.02), round(gathered_s / 0.02) + 1}
    assert sum(sent) == 61
    assert last <= max(middle)
