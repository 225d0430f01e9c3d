"""Drivers that share a fleet keep to their shares, also many of them over time."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from shared_fleet import SharedFleetInTime, fairness, many

from mqtune.backends import Pool, SharedSession
from mqtune.core.crews import Register
from mqtune.core.priorities import Priority
from mqtune.core.resources import Resources
from mqtune.core.timing import Timing
from mqtune.core.trial import Attempt, Trial, TrialId, TrialStatus
from mqtune.core.worker_info import busy_as
from mqtune.driver import RunOptions
from mqtune.driver.ports import Appetite, DriverHost
from mqtune.services.shares import driver
from mqtune.services.shares.divider import Cap, Demand, Share, Table as Shared, divide, held_to
from mqtune.services.shares.driver import (
    STARVED_S,
    BrokerFleet,
    Held,
    SharedFleet,
    ShareKeeper,
    Sharing,
    Standing,
    for_driver,
)

TIMING: Final = Timing()
GRACE_S: Final = TIMING.share_grace_s
TURN_S: Final = TIMING.share_turn_s

QUEUE = ["q"]


class Table:
    """A fleet, and the demands of all."""

    def __init__(self, **slots: int) -> None:
        self.now = 0.0
        self.slots = slots
        self.demands: dict[str, Demand] = {}
        self.busy: dict[str, Mapping[str, int]] = {}
        self.quotas: dict[str, int] = {}
        self.caps: dict[str, Cap] = {}
        self.is_readable = True

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def keeper(self, token: str, queues: Sequence[str] = QUEUE, seats: int = 1, most: int | None = None) -> ShareKeeper:
        return ShareKeeper(Seat(self, token, queues, most), seats)


class Seat:
    """The fleet as one experiment has it."""

    def __init__(self, table: Table, token: str, queues: Sequence[str], most: int | None = None) -> None:
        self.token = self.name = token
        self.clock = table
        self.priority: Priority = "normal"
        self._table = table
        self._queues = queues
        self._most = most

    def pool(self) -> Pool:
        return Pool(Counter(self._table.slots), self._queues, self._most)

    def exchange(self, demand: Demand) -> Share | None:
        """Say what it wants, and return its share of all as they want it in this moment."""
        table = self._table
        table.demands[self.token] = demand
        under = [
            held_to(each, [p for p in {*table.quotas, *table.caps} if fnmatchcase(each.experiment, p)], table.caps)
            for each in table.demands.values()
        ]
        shares = divide(Shared(under, table.quotas, caps=table.caps), table.slots, table.busy)
        return shares[self.token] if table.is_readable else None

    def leave(self) -> None:
        del self._table.demands[self.token]


def hungry(running: int, live: int | None = None) -> Held:
    return Held(running, running if live is None else live, is_hungry=True)


def look(keeper: ShareKeeper, held: Held, most: int | None = None, **standing: object) -> float:
    keeper.look(held, Standing(**standing), most)  # type: ignore[arg-type]
    return keeper.limit


def test_who_is_alone_has_no_limit_and_who_comes_has_its_share_at_once():
    table = Table(q=4)
    first, second = table.keeper("a"), table.keeper("b")
    assert isinstance(Seat(table, "a", QUEUE), SharedFleet)

    assert look(first, hungry(4, 8)) == math.inf
    assert first.why == ""
    assert look(second, hungry(0)) == 2
    assert look(first, hungry(4, 8)) == 2
    assert first.wanted_by_others == {"q"}
    assert first.why == "its share is used up: 2 of 4 slots, as 1 other experiment wants slots too"
    assert look(second, hungry(2)) == 2
    assert look(first, hungry(2)) == 2
    assert not first.wanted_by_others
    second.leave()
    assert look(first, hungry(2)) == math.inf


def test_priority_and_share_hold_and_may_change_at_any_time():
    table = Table(q=6)
    first, second = table.keeper("a"), table.keeper("b")
    look(first, hungry(6))

    assert look(second, hungry(0), share=2.0) == 4
    assert look(first, hungry(6)) == 2
    assert look(second, hungry(0), priority="low") == 0
    assert look(first, hungry(6), priority="low") == 3
    assert look(second, hungry(0), priority="high", most=5) == 5
    assert look(first, hungry(6), priority="low") == 1
    assert first.why.endswith("1 other experiment wants slots too, 1 of higher priority")


def test_for_how_long_an_experiment_has_had_no_slot_is_said(caplog: pytest.LogCaptureFixture):
    table = Table(q=2)
    first, last = table.keeper("a"), table.keeper("z")
    look(first, hungry(2))

    said = []
    for now in (0.0, 59.0, 61.0, STARVED_S, STARVED_S + 60):
        table.now = now
        look(last, hungry(0), priority="low")
        said.append((last.why.partition("; ")[2], table.demands["z"].waiting_s, len(caplog.records)))

    assert said == [
        ("", 0.0, 0),
        ("", 59.0, 0),
        ("it has had no slot for 1 min 01 s, and gets one after 1 d 0 h", 61.0, 0),
        ("it has had no slot for 15 min 00 s, and gets one after 1 d 0 h", STARVED_S, 1),
        ("it has had no slot for 16 min 00 s, and gets one after 1 d 0 h", STARVED_S + 60, 1),
    ]
    assert "its share is used up" in caplog.text
    assert "mqtune why z" in caplog.text
    look(first, hungry(1))
    look(last, hungry(1), priority="low")
    assert "has had no slot" not in last.why
    # The first look without a demand ends the wait.
    look(last, hungry(0), priority="low")
    assert table.demands["z"].waiting_s == 0
    assert first.why == ""


def test_those_who_want_other_slots_are_no_rivals():
    table = Table(p=2, q=4)
    first, second, third = table.keeper("a"), table.keeper("b", ["p"]), table.keeper("c", ["p", "q"])
    look(first, hungry(4))

    assert look(second, hungry(2)) == math.inf
    assert look(third, hungry(0)) == 2
    assert look(first, hungry(4)) == 2
    assert look(second, hungry(2)) == 2


def test_who_can_not_know_what_others_want_goes_on_as_if_it_were_alone():
    table = Table(q=4)
    first, second = table.keeper("a"), table.keeper("b")
    look(first, hungry(4))
    table.is_readable = False

    assert look(second, hungry(0)) == math.inf


def test_a_quota_holds_for_all_under_it_and_for_who_is_alone():
    table = Table(q=6)
    first, second = table.keeper("team-1"), table.keeper("team-2")
    assert look(first, hungry(6)) == math.inf

    table.quotas = {"team-*": 3, "other-*": 0}
    assert look(first, hungry(6)) == 3
    assert first.must_give
    assert first.why == "its quota is used up: 3 slots for all experiments whose names fit team-*"
    # Others hear a moment later that somebody falls under it too.
    look(second, hungry(0))
    look(first, hungry(3))
    assert look(second, hungry(0)) == 1
    assert look(first, hungry(3)) == 2
    assert look(table.keeper("c"), hungry(0)) == 3
    table.quotas = {}
    assert look(first, hungry(3), most=2) == 2
    assert first.why == ""


def test_all_that_it_runs_beyond_its_share_stays_to_be_paused_until_it_is():
    table = Table(q=6)
    first, second = table.keeper("a"), table.keeper("b")
    look(first, hungry(6))
    look(second, hungry(0))
    look(first, hungry(6))

    for waits_s in (GRACE_S, TURN_S):
        table.now += waits_s
        look(first, hungry(6))
        assert (first.to_pause, first.limit) == (3, 3)


def test_a_standing_is_what_the_options_say() -> None:
    assert Standing.of(RunOptions()) == Standing()
    assert Standing.of(RunOptions(priority="high", share=3)) == Standing("high", 3.0)
    assert Standing.of(RunOptions(priority="low", preemptible=True)) == Standing("low", 1.0, preemptible=True)


def host_of(fleet: object, table: Table, experiment: object, **options: Any) -> DriverHost:
    """A driver, as far as sharing needs it, with these options of its run."""
    heartbeat = SimpleNamespace(journal_mb=9.0, caps=[])
    heartbeat.cap = lambda *cap: heartbeat.caps.append(cap)
    return cast(
        "DriverHost",
        SimpleNamespace(
            experiment=experiment,
            backend=fleet,
            heartbeat=heartbeat,
            resources=Resources(),
            options=lambda: RunOptions(**options),
            appetite=lambda: Appetite(None, has_more=True),
            clock=table,
            timing=TIMING,
        ),
    )


def test_an_experiment_hears_its_share_when_it_is_first_asked_and_leaves_only_then() -> None:
    table = Table(q=4)
    look(table.keeper("b"), hungry(0))
    experiment = SimpleNamespace(busy={}, running=0, live=0, mode="min")
    assert not for_driver(host_of(SimpleNamespace(), table, experiment))
    seat = Seat(table, "a", QUEUE)
    host = host_of(seat, table, experiment, share=3.0)
    Sharing(host, seat).close()
    sharing = Sharing(host, seat)
    assert (sharing.due, set(table.demands)) == (TIMING.look_at_shares_s, {"b"})
    table.caps = {"a": Cap(journal_mb=5.0, by="olaf")}

    assert (sharing.capacity(), sharing.reason()) == (3, "")

    assert (table.demands["a"].weight, table.demands["a"].journal_mb) == (3.0, 9.0)
    assert [cap for cap, _ in cast("Any", host.heartbeat).caps] == [5.0]
    experiment.live = 3
    assert sharing.reason().startswith("its share is used up: 3 of 4 slots")
    sharing.close()
    assert set(table.demands) == {"b"}


def test_a_backend_reads_its_register_with_the_shares_and_hears_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    demands = SimpleNamespace(register=Register(), exchange=lambda name, _: Share(limit=2.0, full=name), left=[])
    demands.leave = demands.left.append
    monkeypatch.setattr(driver, "Demands", lambda *_, **__: demands)
    sources: list[object] = []
    backend = SimpleNamespace(
        client=None, priority="normal", register=demands.register, pool=lambda: Pool({}, []), read_from=sources.append
    )
    assert isinstance(backend, SharedSession)
    host = cast("Any", host_of(backend, Table(q=4), SimpleNamespace()))
    host.ledger = SimpleNamespace(journal=SimpleNamespace(experiment="x", fleet_changed=False))

    fleet = BrokerFleet(host, backend)

    assert isinstance(fleet, SharedFleet)
    assert sources == [demands]
    wanted = Demand(experiment=fleet.token, queues=[], wanted=1)
    assert (fleet.exchange(wanted), host.ledger.journal.fleet_changed) == (Share(limit=2.0, full="x"), False)
    demands.register = Register([])
    fleet.exchange(wanted)
    assert host.ledger.journal.fleet_changed
    fleet.priority = "high"
    fleet.leave()
    assert (backend.priority, demands.left) == ("high", [busy_as("x")])


def test_of_what_waits_those_are_taken_back_first_that_would_run_last():
    table = Table(q=4)
    ids = [TrialId(f"000{number}") for number in (1, 2, 3, 4)]
    trials = {id_: Trial(id_, {}, TrialStatus.QUEUED, [Attempt(1, queued_at=0.0)]) for id_ in ids}
    trials[ids[3]].reports = 3
    experiment = SimpleNamespace(busy=trials, running=0, live=4, mode="min")
    seat = Seat(table, "a", QUEUE)
    sharing = Sharing(host_of(seat, table, experiment), seat)
    other = table.keeper("b")
    list(sharing.tick())

    look(other, hungry(0))

    assert [action.trial.id for action in sharing.tick()] == ["0003", "0002"]
    table.now += 60.0
    look(other, hungry(2), priority="high")
    experiment.live = 4
    assert [action.trial.id for action in sharing.tick()] == ["0003", "0002", "0001", "0004"]


def test_nobody_asks_for_more_than_a_cap_allows(caplog: pytest.LogCaptureFixture):
    table = Table(q=4)
    table.caps = {
        "a*": Cap("normal", 1.0, by="olaf"),
        "a1": Cap("high", 9.0, by="eve"),
        "b*": Cap("low", 0.1, by="eve"),
    }
    seat, other = Seat(table, "a1", QUEUE), table.keeper("c1")
    greedy = ShareKeeper(seat)
    look(other, hungry(0))

    assert look(greedy, hungry(0), priority="high", share=5.0) == 2
    assert seat.priority == "normal"
    assert greedy.why.endswith(
        "; priority normal and share 1 are the most for experiments whose names fit a*, as set by olaf"
    )
    look(greedy, hungry(0), priority="high", share=5.0)
    assert len(caplog.messages) == 1
    assert look(greedy, hungry(0), share=0.5) == 1
    assert "fit a*" not in greedy.why

    table.caps = {}
    assert look(greedy, hungry(0), priority="high") == 4


def test_a_journal_is_no_larger_than_a_cap_allows_and_why_says_by_whom_it_was_set() -> None:
    table = Table(q=4)
    table.caps = {"a*": Cap(journal_mb=5.0, by="olaf")}
    keeper = table.keeper("a1")

    keeper.look(hungry(0), Standing(), None, journal_mb=1000.0)

    assert keeper.journal_mb == 5.0
    assert "5 MB is the most for experiments whose names fit a*, as set by olaf" in keeper.capped


def test_each_class_of_many_experiments_shares_fairly_within_minutes_and_nobody_starves():
    fleet = SharedFleetInTime(60, many(10, 60))
    fleet.run(60)
    assert sum(len(each.running) for each in fleet.sharers if each.wish.standing.priority == "low") == 60

    fleet.run(120)
    for each in fleet.sharers:
        each.slot_s = each.longest_without_s = 0.0
    fleet.run(600)

    for priority in ("high", "normal", "low"):
        assert fairness([each for each in fleet.sharers if each.wish.standing.priority == priority]) > 0.95
    assert max(each.longest_without_s for each in fleet.sharers) < 60
    assert sum(each.slot_s for each in fleet.sharers) / 600 == pytest.approx(60, rel=0.01)
    # Experiments of low priority had all slots, and keep the slots that nobody else wants.
    assert 0 < sum(each.pauses for each in fleet.sharers) <= 60
