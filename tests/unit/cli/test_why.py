"""The reasons of ``mqtune why`` for a trial that no worker has taken: seats that are missing, and workers of another version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, cast

import pytest
from cli_page import PAGE, with_tables
from fleets import impairment, worker

from mqtune.cli import CAUSES, Inquiry, Place, Reason, runs_of
from mqtune.client import ExperimentState
from mqtune.core.events import START, AttemptStarted, TrialStaged
from mqtune.core.experiment import Experiment
from mqtune.core.resources import Resources, queue_name
from mqtune.core.trial import TrialId
from mqtune.core.version import __version__
from mqtune.core.worker_info import WorkerInfo
from mqtune.journal import Unclaimed

ONE = TrialId("0001")
OTHER = "99.3.0"


class View(NamedTuple):
    """A server with these workers and unclaimed seats, and a driver that waits for nothing else."""

    workers: list[WorkerInfo]
    seats: Sequence[Unclaimed] = ()
    info: Mapping[str, object] = MappingProxyType({})
    quotas: tuple[()] = ()
    waits: str = ""

    def state(self) -> ExperimentState:
        return ExperimentState("x", "loss", 1.0, outcome="", is_driven=True, age_s=0.0, waits=self.waits)

    def unclaimed(self) -> Sequence[Unclaimed]:
        return self.seats


def experiment_of(seats: int) -> Experiment:
    """An experiment with one queued trial; this number of its seats has started."""
    found = Experiment("x", metric="loss", mode="min", max_failures=0)
    found.apply(TrialStaged(trial=ONE, attempt=1, config={}, at=1.0, cursor=START))
    for seat in range(seats):
        begun = {"worker": f"w{seat}@h", "host": "h", "devices": [str(seat)], "at": 2.0, "queue": "q", "task": seat}
        found.apply(AttemptStarted(trial=ONE, attempt=1, **begun))
    return found


def asked_why(resources: Resources, view: View, *, started_seats: int = 0) -> list[Reason]:
    experiment, definition = experiment_of(started_seats), {"resources": resources.encode()}
    asked = Place("x", None, "redis://h"), experiment, definition, experiment.trials[ONE]
    return Inquiry(*asked, runs=lambda _: [], view=lambda *_: view).reasons()  # type: ignore[arg-type, return-value]


def test_each_seat_is_among_what_runs_with_its_worker_and_its_devices() -> None:
    runs = list(runs_of(experiment_of(3)))

    seats = [("w0@h", "0", "0001"), ("w1@h", "1", "0001~1"), ("w2@h", "2", "0001~2")]
    assert [(run.worker, run.devices, run.trial) for run in runs] == seats


@pytest.mark.parametrize(
    ("held", "busy", "asked", "cause", "text"),
    [
        ({"0001": "gpu-1", "0002~1": "gpu-7"}, [2, 2], Resources(machines=2), "busy", ", for seat 1 of 2: seat 0 is held by gpu-1; all 4 matching slots are busy"),
        ({"0001": "gpu-1", "0001~2": "gpu-2"}, [1, 1], Resources(seats=4), "seats", ", for seats 1, 3 of 4: seat 0 is held by gpu-1, seat 2 is held by gpu-2; slots for the other seats are free and about to take them"),
        ({"0001": "w0@h"}, [0, 2], Resources(machines=2), "busy", ", for seat 1 of 2: seat 0 is held by w0@h; both matching slots are busy"),
        ({"0001": "w0@h"}, [1, 2], Resources(seats=2), "busy", ", for seat 1 of 2: seat 0 is held by w0@h; all 4 matching slots are busy"),
        ({"0001": "w0@h"}, [0, 1, 2], Resources(machines=3), "busy", ", for seats 1, 2 of 3: seat 0 is held by w0@h; 1 of the 4 matching slots are free, but it needs 2 on different workers"),
        ({"0001": "a", "0001~1": "b"}, [0, 0], Resources(seats=2), "starting", ": workers have claimed all of its 2 seats and are starting them"),
        ({}, [1, 2], Resources(machines=2), "busy", ": 1 of the 4 matching slots are free, but it needs 2 on different workers"),
        ({}, [0], Resources(machines=2), "no match", ": no fleet of 2 workers offers a slot with 1 CPU on each: 1 worker with that is connected; connected: w0@h (2 × 1 CPU)"),
        ({"0001": "a"}, [0], Resources(), "starting", ": a worker has claimed it and is starting it"),
    ],
)  # fmt: skip
def test_which_seats_are_missing_is_said_and_who_holds_the_others(
    held: dict[str, str], busy: list[int], asked: Resources, cause: str, text: str
) -> None:
    workers = [
        worker(f"w{number}@h", queue=queue_name(Resources()), slots=2, busy={"t": count})
        for number, count in enumerate(busy)
    ]
    seats = [Unclaimed(TrialId(name), 1, holder) for name, holder in held.items()]

    reason, *_ = asked_why(asked, View(workers, seats))

    assert reason.cause == cause
    assert reason.text.startswith("trial 0001 has been waiting for ")
    assert reason.text.endswith(text)


@pytest.mark.parametrize(
    ("asked", "workers", "cause", "ways_out"),
    [
        (Resources(), [worker("w1", slots=2, version=OTHER)], "no match", ["", "upgrade the older one: docs/installation.md#upgrade-a-fleet"]),
        (
            Resources(), [worker("w1", busy={"t": 1}), worker("w2", slots=2, version=OTHER), worker("w3", experiments="team-*", version=OTHER)], "busy",
            ["see who uses them: mqtune fleet", "upgrade the older one: docs/installation.md#upgrade-a-fleet"],
        ),
        (Resources(cpus=8), [worker("w1", version=OTHER)], "no match", ["start one that does: mqtune worker --help"]),
        (Resources(), [], "no worker", ["start one: mqtune worker"]),
    ],
)  # fmt: skip
def test_slots_of_another_version_that_would_match_are_a_cause_of_their_own(
    asked: Resources, workers: list[WorkerInfo], cause: str, ways_out: list[str]
) -> None:
    first, *others = asked_why(asked, View(workers))

    assert [first.cause, *(other.cause for other in others)] == [cause, *["version"] * (len(ways_out) - 1)]
    assert [first.way_out, *(other.way_out for other in others)] == ways_out
    would = f"2 slots of mqtune {OTHER} would match, but {OTHER} is incompatible with {__version__}"
    assert [other.text for other in others] == [would] * len(others)


def test_each_cause_is_listed_with_its_own_way_out() -> None:
    out = impairment("9 GB of its memory are taken by others")
    full = {"used_memory": 90, "maxmemory": 100}
    view = View([worker("w1", slots=1, busy={"t": 1}, impairments=(out,))], info=full)

    reasons = asked_why(Resources(), view)

    assert [reason.cause for reason in reasons] == ["busy", "impaired", "redis nearly full"]
    assert [reason.way_out for reason in reasons] == [CAUSES[reason.cause].way_out for reason in reasons]
    assert "the only matching slot is busy" in reasons[0].text


def test_a_cause_of_a_service_is_found_by_the_reason_of_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"meaning": "It is Sunday.", "way_out": "wait for Monday, or end it: mqtune end {NAME}"}
    of_service = CAUSES["ended"]._replace(**own, begins="no trial on Sundays")
    monkeypatch.setitem(cast("dict[str, object]", CAUSES), "sunday", of_service)
    view = View([worker("w1", slots=1)], waits="no trial on Sundays: 7 h are left")
    place, definition = Place("x", None, "redis://h"), {"resources": Resources().encode()}
    inquiry = Inquiry(place, experiment_of(0), definition, runs=lambda _: [], view=lambda *_: view)  # type: ignore[arg-type, return-value]

    (reason,) = inquiry.reasons()

    assert (reason.cause, reason.way_out) == ("sunday", "wait for Monday, or end it: mqtune end x")
    assert reason.text.endswith("no trial on Sundays: 7 h are left")
    assert "|`sunday`|It is Sunday.|wait for Monday" in with_tables(PAGE.read_text())


def test_a_full_server_comes_last_if_more_memory_would_not_help() -> None:
    view = View([], info={"used_memory": 120, "maxmemory": 100})

    reasons = asked_why(Resources(), view, started_seats=1)

    assert [reason.cause for reason in reasons] == ["worker gone", "redis full"]


@pytest.mark.parametrize(("used", "causes"), [(120, ["redis full", "starting"]), (10, ["starting"])])
def test_a_full_server_is_the_first_cause(used: int, causes: list[str]) -> None:
    view = View([worker("w1", slots=1)], info={"used_memory": used, "maxmemory": 100})

    assert [reason.cause for reason in asked_why(Resources(), view)] == causes
