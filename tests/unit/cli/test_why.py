"""The reasons of ``mqtune why`` for a trial that no worker has taken: seats that are missing, and workers of another version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import pytest
from fleets import worker

from mqtune.cli import Inquiry, Place, Reason, runs_of
from mqtune.client import ExperimentState
from mqtune.core.events import START, AttemptStarted, TrialStaged, WorkerInfo
from mqtune.core.experiment import Experiment
from mqtune.core.resources import Resources, queue_name
from mqtune.core.trial import TrialId
from mqtune.core.version import __version__
from mqtune.journal import Unclaimed

ONE = TrialId("0001")
OTHER = "99.3.0"


class View(NamedTuple):
    """A server with these workers and unclaimed seats, and a driver that waits for nothing else."""

    workers: list[WorkerInfo]
    seats: Sequence[Unclaimed] = ()
    info: Mapping[str, object] = MappingProxyType({})
    quotas: tuple[()] = ()

    def state(self) -> ExperimentState:
        return ExperimentState("x", "loss", 1.0, outcome="", is_driven=True, age_s=0.0)

    def unclaimed(self) -> Sequence[Unclaimed]:
        return self.seats


def experiment_of(seats: int) -> Experiment:
    """An experiment with one queued trial; this number of its seats has started."""
    found = Experiment("x", metric="loss", mode="min", max_failures=0)
    found.apply(TrialStaged(trial=ONE, attempt=1, config={}, at=1.0, cursor=START))
    for seat in range(seats):
        begun = {"worker": f"w{seat}@h", "host": "h", "devices": [str(seat)], "at": 2.0, "queue": "q", "seat": seat}
        found.apply(AttemptStarted(trial=ONE, attempt=1, **begun))
    return found


def asked_why(resources: Resources, view: View) -> Reason:
    experiment, definition = experiment_of(0), {"resources": resources.encode()}
    asked = Place("x", None, "redis://h"), experiment, definition, experiment.trials[ONE]
    return Inquiry(*asked, runs=lambda _: [], view=lambda *_: view).reason()  # type: ignore[arg-type, return-value]


def test_each_seat_is_among_what_runs_with_its_worker_and_its_devices() -> None:
    runs = list(runs_of(experiment_of(3)))

    seats = [("w0@h", "0", "0001"), ("w1@h", "1", "0001~1"), ("w2@h", "2", "0001~2")]
    assert [(run.worker, run.devices, run.trial) for run in runs] == seats


@pytest.mark.parametrize(
    ("held", "busy", "asked", "cause", "text"),
    [
        ({"0001": "gpu-1", "0002~1": "gpu-7"}, [2, 2], Resources(machines=2), "busy", ", for seat 1 of 2: seat 0 is held by gpu-1; the 4 slots that fit are all busy"),
        ({"0001": "gpu-1", "0001~2": "gpu-2"}, [1, 1], Resources(seats=4), "seats", ", for seats 1, 3 of 4: seat 0 is held by gpu-1, seat 2 is held by gpu-2; slots for the others are free, and are about to take them"),
        ({"0001": "w0@h"}, [0, 2], Resources(machines=2), "busy", ", for seat 1 of 2: seat 0 is held by w0@h; the 2 slots that fit are all busy"),
        ({"0001": "w0@h"}, [1, 2], Resources(seats=2), "busy", ", for seat 1 of 2: seat 0 is held by w0@h; the 4 slots that fit are all busy"),
        ({"0001": "w0@h"}, [0, 1, 2], Resources(machines=3), "busy", ", for seats 1, 2 of 3: seat 0 is held by w0@h; 1 of the 4 slots that fit are free, and it takes 2 on different workers"),
        ({"0001": "a", "0001~1": "b"}, [0, 0], Resources(seats=2), "starting", ": workers have all of its 2 seats and start them"),
        ({}, [1, 2], Resources(machines=2), "busy", ": 1 of the 4 slots that fit are free, and it takes 2 on different workers"),
        ({}, [0], Resources(machines=2), "no worker", ": no fleet of 2 workers offers a slot with 1 CPU on each: 1 worker with that is connected; connected: w0@h (2 × 1 CPU)"),
        ({"0001": "a"}, [0], Resources(), "starting", ": a worker has it and starts it"),
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

    reason = asked_why(asked, View(workers, seats))

    assert reason.cause == cause
    assert reason.text.startswith("trial 0001 has waited for ")
    assert reason.text.endswith(text)


@pytest.mark.parametrize(
    ("asked", "workers", "cause", "texts", "way_out"),
    [
        (
            Resources(), [worker("w1", slots=2, version=OTHER)], "no worker",
            [f"connected: w1 (2 × 1 CPU, mqtune {OTHER})", f"2 slots of mqtune {OTHER} would fit, and {OTHER} does not meet {__version__}"],
            "upgrade the older one: docs/how-to/upgrade.md",
        ),
        (
            Resources(), [worker("w1", busy={"t": 1}), worker("w2", slots=4, version=OTHER), worker("w3", experiments="team-*", version=OTHER)], "busy",
            [f"the one slot that fits is busy; 4 slots of mqtune {OTHER} would fit, and {OTHER} does not meet"],
            "see them all: mqtune fleet",
        ),
        (Resources(cpus=8), [worker("w1", version=OTHER)], "no worker", [], "start one that fits: mqtune worker --help"),
    ],
)  # fmt: skip
def test_slots_of_another_version_that_would_fit_are_named(
    asked: Resources, workers: list[WorkerInfo], cause: str, texts: list[str], way_out: str
) -> None:
    reason = asked_why(asked, View(workers))

    assert (reason.cause, reason.way_out) == (cause, way_out)
    assert [text for text in texts if text not in reason.text] == []
    assert ("would fit" in reason.text) == bool(texts)
