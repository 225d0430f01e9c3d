"""Attempts with several seats, as commands show them: who has which seat, and which is missing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import fleets
import pytest
from rich.console import Console

from mqtune.cli import why
from mqtune.cli.describe import described_trial
from mqtune.cli.fleet import runs_of
from mqtune.cli.show import _attempts_table
from mqtune.core.events import START, AttemptStarted, TrialStaged
from mqtune.core.experiment import Experiment
from mqtune.core.resources import Resources, queue_name
from mqtune.core.trial import TrialId
from mqtune.journal import Unclaimed

ONE = TrialId("0001")


def an_experiment(*, runs: bool) -> Experiment:
    found = Experiment("x", metric="loss", mode="min", max_failures=0)
    found.apply(TrialStaged(trial=ONE, attempt=1, config={}, at=1.0, cursor=START))
    for seat in (0, 1, 2) if runs else ():
        devices = [str(seat)]
        found.apply(
            AttemptStarted(
                trial=ONE, attempt=1, worker=f"w{seat}@h", host="h", devices=devices, at=2.0, queue="q", seat=seat
            )
        )
    return found


def test_each_seat_is_among_what_runs_with_its_worker_and_its_devices() -> None:
    runs = list(runs_of(an_experiment(runs=True)))

    assert [(run.worker, run.devices, run.trial) for run in runs] == [
        ("w0@h", "0", "0001"),
        ("w1@h", "1", "0001~1"),
        ("w2@h", "2", "0001~2"),
    ]


def test_a_trial_is_shown_with_the_further_seats_of_each_attempt() -> None:
    trial = an_experiment(runs=True).trials[ONE]
    console = Console(record=True, width=120)
    console.print(_attempts_table(trial.attempts, 3.0))
    (attempt,) = described_trial(trial)["attempts"]  # type: ignore[misc]

    lines = [line.split()[:4] for line in console.export_text().splitlines()[1:]]
    assert lines[1:] == [["seat", "1", "w1@h", "1"], ["seat", "2", "w2@h", "2"]]
    assert [(seat["seat"], seat["worker"], seat["devices"]) for seat in attempt["seats"]] == [
        (1, "w1@h", ["1"]),
        (2, "w2@h", ["2"]),
    ]


def asked_why(
    monkeypatch: pytest.MonkeyPatch, held: dict[str, str], busy: list[int], resources: Resources
) -> why.Reason:
    """Ask why a staged trial waits, on workers with two slots each, of which so many are busy."""
    place: Any = SimpleNamespace(name="x", folder=None, broker="redis://h")
    experiment = an_experiment(runs=False)
    asking = why.Inquiry(
        place, experiment, {"resources": resources.encode()}, experiment.trials[ONE], runs=lambda _: []
    )
    seats = [Unclaimed(TrialId(name), 1, worker) for name, worker in held.items()]
    workers = [
        fleets.worker(f"w{number}@h", queue=queue_name(Resources()), slots=2, busy={"t": count})
        for number, count in enumerate(busy)
    ]
    monkeypatch.setattr(asking, "_held", lambda: seats)
    monkeypatch.setattr(why.Inquiry, "_workers", workers)
    monkeypatch.setattr(why.Inquiry, "_quotas", [])
    asking._url = "redis://h"
    return asking._staged(experiment.trials[ONE])


@pytest.mark.parametrize(
    ("held", "busy", "asked", "cause", "text"),
    [
        (
            {"0001": "gpu-1", "0002~1": "gpu-7"},
            [2, 2],
            Resources(machines=2),
            "busy",
            ", for seat 1 of 2: seat 0 is held by gpu-1; the 4 slots that fit are all busy",
        ),
        (
            {"0001": "gpu-1", "0001~2": "gpu-2"},
            [1, 1],
            Resources(seats=4),
            "seats",
            ", for seats 1, 3 of 4: seat 0 is held by gpu-1, seat 2 is held by gpu-2; slots for the others are free, and are about to take them",
        ),
        (
            {"0001": "w0@h"},
            [0, 2],
            Resources(machines=2),
            "busy",
            ", for seat 1 of 2: seat 0 is held by w0@h; the 2 slots that fit are all busy",
        ),
        (
            {"0001": "w0@h"},
            [1, 2],
            Resources(seats=2),
            "busy",
            ", for seat 1 of 2: seat 0 is held by w0@h; the 4 slots that fit are all busy",
        ),
        (
            {"0001": "w0@h"},
            [0, 1, 2],
            Resources(machines=3),
            "busy",
            ", for seats 1, 2 of 3: seat 0 is held by w0@h; 1 of the 4 slots that fit are free, and it takes 2 on different workers",
        ),
        (
            {"0001": "a", "0001~1": "b"},
            [0, 0],
            Resources(seats=2),
            "starting",
            ": workers have all of its 2 seats and start them",
        ),
        (
            {},
            [1, 2],
            Resources(machines=2),
            "busy",
            ": 1 of the 4 slots that fit are free, and it takes 2 on different workers",
        ),
        (
            {},
            [0],
            Resources(machines=2),
            "no worker",
            ": no fleet of 2 workers offers a slot with 1 CPU on each: 1 worker with that is connected; connected: w0@h (2 × 1 CPU)",
        ),
        ({"0001": "a"}, [0], Resources(), "starting", ": a worker has it and starts it"),
    ],
)
def test_which_seats_are_missing_is_said_and_who_holds_the_others(
    monkeypatch: pytest.MonkeyPatch, held: dict[str, str], busy: list[int], asked: Resources, cause: str, text: str
) -> None:
    reason = asked_why(monkeypatch, held, busy, asked)

    assert reason.cause == cause
    assert reason.text.startswith("trial 0001 has waited for ")
    assert reason.text.endswith(text)
