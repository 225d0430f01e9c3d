"""The port of a worker's services: hooks in order, and an error in one harms no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from unittest.mock import Mock, call

import pytest
from fleets import worker
from impaired import nothing_impaired, reasons

from mqtune.core.errors import BrokerUnavailable, CodeRefused
from mqtune.core.resources import Resources
from mqtune.core.trial import AttemptEnd, TrialId
from mqtune.journal import Assignment, Claim, Grant, Journal
from mqtune.trainable import EVERY_PACKAGE, TrainableSpec
from mqtune.worker import (
    FAILED_STARTS,
    ExperimentHere,
    Importers,
    ImportKey,
    RunResult,
    SlotPlan,
    Slots,
    WorkerHooks,
    ZygoteDied,
    ZygoteFinder,
)
from mqtune.worker.ports import AttemptHere, ProgramPlace, SlotHere, WorkerService

ATTEMPT = cast("AttemptHere", SimpleNamespace(claim=Claim(TrialId("0001"), 1, "token")))
SLOT = cast("SlotHere", SimpleNamespace())
TRAIN: Final = TrainableSpec("train", module="mine")
#: The hooks that the first test calls, in this order, before the services close.
HOOKS: Final = (
    *("start", "heartbeat", "tick", "hinted", "room", "taken", "working_dir", "started", "renewed", "measured"),
    *("ending", "emptied", "ended", "left", "describe", "drain"),
)


class Told(WorkerService):
    """Notes its calls, and raises an error in the broken one."""

    def __init__(self, name: str, calls: list[str], broken: str = "") -> None:
        self.name, self.calls, self.broken = name, calls, broken
        self.field = {"first": "cpus", "second": "pid"}[name]

    def note(self, hook: str) -> None:
        self.calls.append(f"{self.name} {hook}")
        if hook == self.broken:
            raise RuntimeError(hook)

    def start(self) -> None:
        self.note("start")

    def heartbeat(self) -> list[Callable[[], None]]:
        return [lambda: self.note("heartbeat")]

    def tick(self) -> list[Callable[[], None]]:
        return [lambda: self.note("tick")]

    def hinted(self, experiment: str, hint: str) -> None:
        self.note("hinted")

    def leaves(self, run: AttemptHere) -> str:
        self.note("leaves")
        return self.name

    def room(self, slot: SlotHere, run: AttemptHere) -> float:
        self.note("room")
        return 5.0

    def taken(self, slot: SlotHere, run: AttemptHere) -> None:
        self.note("taken")

    def emptied(self, slot: SlotHere, *, waits: bool) -> None:
        self.note(f"emptied{', waits' if waits else ''}")

    def left(self, slot: SlotHere, run: AttemptHere) -> None:
        self.note("left")

    def working_dir(self, run: AttemptHere) -> Path | None:
        self.note("working_dir")
        return Path(self.name)

    def started(self, run: AttemptHere) -> None:
        self.note("started")

    def renewed(self, run: AttemptHere) -> None:
        self.note("renewed")

    def measured(self, run: AttemptHere) -> dict[str, float]:
        self.note("measured")
        return {self.name: 1.0}

    def describe(self) -> dict[str, int]:
        self.note("describe")
        # A field that the description lacks is an error of the service, too.
        return {"absent" if self.broken == "absent" else self.field: 3}

    def ending(self, run: AttemptHere, end: AttemptEnd) -> None:
        self.note("ending")

    def ended(self, run: AttemptHere, result: RunResult) -> None:
        self.note("ended")

    def drain(self) -> None:
        self.note("drain")

    def close(self) -> None:
        self.note("close")


@pytest.mark.parametrize("broken", ["", *HOOKS[3:], "absent", "close"])
def test_hooks_are_called_in_order_also_after_an_error(broken: str, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    hooks = WorkerHooks([Told("first", calls, broken), WorkerService(), Told("second", calls)])
    plain = worker(pid=1, cpus=1)

    hooks.start()
    for step in (*hooks.heartbeat(), *hooks.tick()):
        step()
    hooks.hinted("x", "look")
    room = hooks.room(SLOT, ATTEMPT)
    hooks.taken(SLOT, ATTEMPT)
    working_dir = hooks.working_dir(ATTEMPT)
    hooks.started(ATTEMPT)
    hooks.renewed(ATTEMPT)
    measured = hooks.measured(ATTEMPT)
    hooks.ending(ATTEMPT, AttemptEnd.COMPLETED)
    hooks.emptied(SLOT, waits=False)
    hooks.ended(ATTEMPT, RunResult(None, ""))
    hooks.left(SLOT, ATTEMPT)
    described = hooks.describe(plain)
    hooks.drain()
    hooks.close()

    forward = [f"{name} {hook}" for hook in HOOKS for name in ("first", "second")]
    if broken != "working_dir":
        # The first answer counts.
        forward.remove("second working_dir")
    assert working_dir == Path("second" if broken == "working_dir" else "first")
    assert measured == {name: 1.0 for name in ("first", "second") if (broken, name) != ("measured", "first")}
    assert room == [5.0] * (1 if broken == "room" else 2)
    assert described == worker(pid=3, cpus=1 if broken in ("describe", "absent") else 3)
    assert calls == [*forward, "second close", "first close"]
    assert [each.getMessage() for each in caplog.records] == (
        ["service Told of this worker failed; the worker continues"] if broken else []
    )


def test_a_service_that_cannot_start_ends_the_start() -> None:
    calls: list[str] = []

    with pytest.raises(RuntimeError, match="start"):
        WorkerHooks([Told("first", calls, "start"), Told("second", calls)]).start()

    assert calls == ["first start"]


def service(**hooks: Callable[..., Any]) -> WorkerService:
    """Return a service with these hooks."""
    named = {name: staticmethod(hook) for name, hook in hooks.items()}
    made: WorkerService = type("Answering", (WorkerService,), named)()
    return made


def test_each_guard_may_refuse_a_slot_and_one_that_fails_has_the_worker_back_off(tmp_path: Path) -> None:
    impairments = nothing_impaired()
    broken = [RuntimeError("no device driver")] * FAILED_STARTS
    answers = [True, False, *[True] * FAILED_STARTS], [True, *broken]
    first, second = (service(admit=Mock(side_effect=admits)) for admits in answers)
    hooks = WorkerHooks([first, WorkerService(), second])
    slots = Slots(SlotPlan(offer=Resources(cpus=1), devices=((),)), tmp_path, impairments, hooks)
    (slot,) = slots.all

    def is_taken() -> bool:
        turn = slot.next_turn()
        try:
            return turn.take(stays=False)
        finally:
            turn.end()

    assert [is_taken(), is_taken()] == [True, False]
    assert reasons(impairments) == ""
    assert [is_taken() for _ in broken] == [False] * FAILED_STARTS
    slots.close()

    assert "could not be started (Answering: no device driver)" in reasons(impairments)


def test_the_first_reason_counts_and_a_service_that_fails_has_none(caplog: pytest.LogCaptureFixture) -> None:
    failing, silent = Mock(side_effect=RuntimeError("a bug")), Mock(return_value="")
    first, last = Mock(return_value="first"), Mock(return_value="second")
    services = [service(retires=answer, leaves=answer) for answer in (failing, silent, first, last)]
    hooks = WorkerHooks([WorkerService(), *services])

    assert [hooks.retires(SLOT), hooks.leaves(ATTEMPT)] == ["first", "first"]
    assert len(caplog.records) == 2
    assert not last.called
    assert [WorkerHooks([WorkerService()]).retires(SLOT), WorkerHooks([]).leaves(ATTEMPT)] == ["", ""]


def divider(*rooms: float) -> WorkerService:
    """Return a service with this much room in each slot."""
    return service(room=lambda slot, _: rooms[slot.index])


@pytest.mark.parametrize(
    ("rooms", "taken"),
    [
        ([], 0),
        ([(1.0, 1.0, 1.0)], 0),
        ([(2.0, 1.0, 3.0)], 1),
        ([(-1.0, 1.0, 0.0)], 2),
        # The first service counts more, and each may refuse.
        ([(1.0, 1.0, 2.0), (3.0, 2.0, 1.0)], 1),
        ([(1.0, 1.0, 2.0), (-1.0, -1.0, 1.0)], 2),
        ([(-1.0, -1.0, -1.0)], None),
    ],
)
def test_an_attempt_gets_the_tightest_slot(tmp_path: Path, rooms: list[tuple[float, ...]], taken: int | None) -> None:
    hooks = WorkerHooks([divider(*each) for each in rooms])
    slots = Slots(SlotPlan(offer=Resources(cpus=1), devices=((),) * 3), tmp_path, nothing_impaired(), hooks)

    slot = slots.acquire(ATTEMPT, timeout_s=0)

    assert (None if slot is None else slot.index) == taken
    assert len(slots.free) == (3 if taken is None else 2)
    slots.close()


def an_experiment() -> ExperimentHere:
    definition = {"trainable": {"name": "train", "module": "mine"}}
    return ExperimentHere(cast("Journal", SimpleNamespace(experiment="x")), definition)


def problem_of(folder: Path, *services: WorkerService) -> tuple[str, str]:
    """Return why an attempt without any code can't start, on a worker with these services."""
    slots = Slots(SlotPlan(offer=Resources(cpus=1), devices=((),)), folder, nothing_impaired())
    turn = slots.all[0].next_turn()
    try:
        return ZygoteFinder("w@h", folder / "own", folder, WorkerHooks(services)).find(
            turn, an_experiment(), lambda: None
        )[1]
    finally:
        turn.end()
        slots.end()
        slots.close()


def test_the_first_service_that_knows_says_where_a_program_is(tmp_path: Path) -> None:
    experiment, places = an_experiment(), [None, ProgramPlace(tmp_path / "a"), ProgramPlace(tmp_path / "b")]
    answers = [Mock(return_value=place) for place in places]
    unsure, first, second = (service(program=answer) for answer in answers)

    assert WorkerHooks([unsure, first, second]).program(experiment) == places[1]

    assert [answer.call_args_list for answer in answers] == [[call(experiment)], [call(experiment)], []]
    assert WorkerHooks([unsure]).program(experiment) is None
    assert f"below code root {tmp_path / 'a'}" in problem_of(tmp_path, first)[1]
    assert f"below code root {tmp_path / 'own'}" in problem_of(tmp_path, unsure)[1]


@pytest.mark.parametrize("hook", ["program", "prepare"])
@pytest.mark.parametrize(("error", "is_logged"), [(CodeRefused("not this"), False), (RuntimeError("a bug"), True)])
def test_an_attempt_whose_program_a_service_can_not_find_or_prepare_is_refused_with_the_reason(
    hook: str, error: Exception, is_logged: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sound = service(program=lambda _: ProgramPlace(tmp_path), prepare=lambda _, key: key)

    kind, text = problem_of(tmp_path, service(**{hook: Mock(side_effect=error)}), sound)

    assert kind == type(error).__name__
    assert str(error) in text
    assert bool(caplog.records) is is_logged


def test_each_service_changes_what_the_processes_of_trials_have(tmp_path: Path) -> None:
    def prepares(name: str) -> WorkerService:
        return service(prepare=lambda at, key: replace(key, environment=(*key.environment, (name, at.name))))

    key = an_experiment().import_key(tmp_path, None, tmp_path)

    prepared = WorkerHooks([prepares("a"), WorkerService(), prepares("b")]).prepare(an_experiment(), key)

    assert prepared == replace(key, environment=(("a", "x"), ("b", "x")))


def test_the_first_service_that_claims_an_attempt_does_so() -> None:
    send, grant, last = Mock(), Grant(Assignment({}), 0.0, "here"), Mock()
    claims = Mock(return_value=grant)

    assert WorkerHooks([WorkerService(), service(claim=claims), service(claim=last)]).claim(ATTEMPT, send) == grant
    claims.assert_called_once_with(ATTEMPT, send)
    assert not last.called
    assert WorkerHooks([WorkerService()]).claim(ATTEMPT, send) is None


def test_an_attempt_returns_unclaimed_if_its_service_can_not_claim_it(caplog: pytest.LogCaptureFixture) -> None:
    broken, away = (service(claim=Mock(side_effect=kind("a bug"))) for kind in (RuntimeError, BrokerUnavailable))
    hooks = WorkerHooks([broken, service(claim=lambda *_: Grant(Assignment({}), 0.0))])

    assert hooks.claim(ATTEMPT, Mock()) == RunResult(None, "not run: RuntimeError: a bug", goes_back=True)
    assert [each.getMessage() for each in caplog.records] == ["trial 0001 attempt 1 could not be claimed"]
    with pytest.raises(BrokerUnavailable):
        WorkerHooks([away]).claim(ATTEMPT, Mock())


def test_the_variables_of_all_services_go_into_the_environment_and_an_error_is_the_attempts() -> None:
    first, last = service(variables=lambda _: {"A": "1"}), service(variables=lambda _: {"B": "2"})

    assert WorkerHooks([first, WorkerService(), last]).variables(ATTEMPT) == {"A": "1", "B": "2"}
    with pytest.raises(RuntimeError, match="a bug"):
        WorkerHooks([service(variables=Mock(side_effect=RuntimeError("a bug")))]).variables(ATTEMPT)


def knows(preloads: Any) -> WorkerService:
    """Return a service with these preloads."""
    return service(preloads=lambda: preloads)


def test_the_first_service_that_knows_preloads_has_importers_import_them(tmp_path: Path) -> None:
    told: list[tuple[Any, ...]] = []
    known = SimpleNamespace(
        of=lambda *_: [({}, ["early"])],
        refused=lambda _: ["unsafe"],
        learn=lambda *given: told.append(given),
        settle=lambda *given: told.append(given),
        refuse=lambda *_: True,
    )
    broken = service(preloads=Mock(side_effect=RuntimeError("a bug")))
    services = [WorkerService(), knows(None), broken, knows(known), knows(SimpleNamespace())]

    preloads = WorkerHooks(services).preloads()
    preloads.learn(TRAIN, [({}, ["early"])])
    preloads.settle(TRAIN, ["early"], [])

    assert (preloads.of(TRAIN), preloads.refused(TRAIN)) == ([({}, ["early"])], ["unsafe"])
    assert preloads.refuse(TRAIN, "unsafe", "a thread") is True
    assert told == [(TRAIN, [({}, ["early"])]), (TRAIN, ["early"], [])]


@pytest.mark.parametrize("services", [(), (knows(SimpleNamespace()),)], ids=["no service", "a broken one"])
def test_without_preloads_packages_are_left_to_trials(services: tuple[WorkerService, ...]) -> None:
    preloads = WorkerHooks(services).preloads()

    preloads.learn(TRAIN, [])
    preloads.settle(TRAIN, [], [])

    assert (preloads.of(TRAIN), preloads.refused(TRAIN)) == ([], [EVERY_PACKAGE])
    assert preloads.refuse(TRAIN, "unsafe", "a thread") is False


class UnsafeImporter:
    """An importer that always dies of a module that it was to import early."""

    serves = is_current = staticmethod(lambda *_: True)
    is_dead = was_ended = was_killed = False
    users = 0

    def __init__(self, key: ImportKey, *_: object) -> None:
        self.key = key

    def get_ready(self, *_: object) -> None:
        raise ZygoteDied("a crash")

    def find_blamed_module(self, _: Exception) -> tuple[str, str]:
        return "unsafe", "a crash"

    def close(self) -> None:
        self.is_dead = True


@pytest.mark.parametrize("tries", [0, 2])
def test_an_import_is_tried_again_only_while_the_preloads_do_without_a_module(tries: int, tmp_path: Path) -> None:
    answers = [*[True] * tries, False]
    known: Any = SimpleNamespace(of=lambda _: [], refused=lambda _: [], refuse=lambda *_: answers.pop(0))
    make: Any = UnsafeImporter
    slots = Slots(SlotPlan(offer=Resources(cpus=1), devices=((),)), tmp_path, nothing_impaired())
    slots.all[0].importers = Importers(tmp_path / "log", known, most_bytes=1e12, make=make)
    turn = slots.all[0].next_turn()

    found = ZygoteFinder("w@h", tmp_path, tmp_path, WorkerHooks(())).find(turn, an_experiment(), lambda: None)
    turn.end()
    slots.close()

    assert found[0] is None
    assert found[1][0] == "ImportDied"
    assert answers == []


@pytest.mark.parametrize("hook", ["heartbeat", "tick"])
def test_a_service_that_can_not_return_its_steps_costs_no_other_its_own_and_the_thread_nothing(
    hook: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []
    broken, sound = Told("first", calls), Told("second", calls)

    monkeypatch.setattr(broken, hook, Mock(side_effect=RuntimeError("no steps")))

    for step in getattr(WorkerHooks([broken, sound]), hook)():
        step()

    assert calls == [f"second {hook}"]
    assert [each.getMessage() for each in caplog.records] == [
        "service Told of this worker failed; the worker continues"
    ]
