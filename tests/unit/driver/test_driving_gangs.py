"""The driver with trials of several seats: staging, lost attempts and messages, refusals, and the same in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench import Bench
from simulation import simulate

import mqtune
from mqtune.core.codec import decode_value
from mqtune.core.errors import ConfigurationError, InsufficientResources
from mqtune.core.events import AttemptStarted
from mqtune.core.resources import Resources
from mqtune.core.trial import Config, TrialId, TrialStatus
from mqtune.driver import BackendListener, CallbackListener, Limits, ResourcesByConfig, check_gangs
from mqtune.journal import Unclaimed
from mqtune.results.callbacks import CallbackDispatcher
from mqtune.search.space import Space

PAIR = Resources(machines=2)


def play(config: Config) -> Iterator[tuple[float, dict[str, float]]]:
    yield 1.0, {"loss": 1.0}


def trainable(config: Config) -> None:
    """It is named, and never called."""


def tuner(resources: Any, backend: Any, **options: Any) -> mqtune.Tuner:
    run = mqtune.RunOptions(progress=False)
    space = {"width": mqtune.grid_search([1, 2, 3, 4])}
    return mqtune.Tuner(
        trainable, space, metric="loss", mode="min", name="x", resources=resources, backend=backend, run=run, **options
    )


# In virtual time.


@pytest.mark.parametrize(("asked", "seconds"), [(Resources(), 1.0), (PAIR, 2.0), (Resources(seats=4), 4.0)], ids=str)
def test_a_gang_takes_a_simulated_worker_for_each_seat(mqtune_home: Path, asked: Resources, seconds: float) -> None:
    tuned = tuner(asked, mqtune.Simulated(play, slots=5 if asked.seats == 4 else 4))
    results = tuned.run()

    assert [result.status for result in results] == [TrialStatus.COMPLETED] * 4
    ends = [trial.attempt.ended_at or 0.0 for trial in results.experiment.trials.values()]
    assert max(ends) - results.experiment.created_at == pytest.approx(seconds)


def test_a_gang_is_lost_with_any_of_its_workers_and_runs_again_as_a_whole(mqtune_home: Path) -> None:
    lives = iter([10.0, 0.5])
    backend = mqtune.Simulated(play, slots=2, life_s=lambda _: next(lives, 1e6), away_s=3.0)

    results = tuner(PAIR, backend).run()

    first = results.experiment.trials[TrialId("0001")]
    assert [attempt.end.value for attempt in first.attempts if attempt.end] == ["lost", "completed"]
    assert all(result.status is TrialStatus.COMPLETED for result in results)


def test_too_few_simulated_workers_for_a_gang_are_no_slots(mqtune_home: Path) -> None:
    run = mqtune.RunOptions(progress=False, queue_trials=False)
    refused = mqtune.Tuner(
        trainable,
        {"a": 1},
        metric="loss",
        mode="min",
        resources=Resources(seats=3),
        backend=mqtune.Simulated(play, slots=2),
        run=run,
    )

    with pytest.raises(
        InsufficientResources, match=r"no fleet offers 3 slots with 1 CPU each: 2 of 2 simulated workers"
    ):
        refused.run()


def test_trials_of_one_seat_are_simulated_as_ever() -> None:
    done = simulate(lambda config: [(1.0, {"loss": config["lr"]})], trials=5, slots=2)

    assert done.seconds == pytest.approx(3.0)
    assert Limits().resources.seats == 1


# Refusals.


class OneSlotEach:
    """A backend that somebody else has written, and that knows no gangs."""

    def open(self, experiment: str, resources: Resources) -> Any:
        session = mqtune.Simulated(play).open(experiment, resources)
        return _Hidden(session)


class _Hidden:
    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        if name == "takes_gangs":
            raise AttributeError(name)
        return getattr(self._session, name)


def test_a_backend_that_knows_no_gangs_is_refused_for_them(mqtune_home: Path) -> None:
    with pytest.raises(ConfigurationError, match="2 seats, and this backend, _Hidden, runs each trial in one slot"):
        tuner(Resources(seats=2), OneSlotEach()).run()


def test_a_run_on_this_machine_alone_refuses_several_machines_before_it_starts_anything(mqtune_home: Path) -> None:
    said = "machines=2, and this machine alone is one worker: give seats=2 to have 2 slots here, or a broker with several workers"

    with pytest.raises(ConfigurationError, match=said):
        tuner(PAIR, mqtune.Local()).run()
    assert not mqtune_home.exists()
    check_gangs([Resources(seats=2), Resources()])


def test_by_their_configs_all_trials_ask_for_the_same_number_of_seats() -> None:
    space = Space({"width": mqtune.choice([1, 2])})
    with pytest.raises(ConfigurationError, match=r"by_width asks for \d seats? for .*, and for \d before"):
        ResourcesByConfig(by_width, space)
    asks = ResourcesByConfig(same_seats, space)
    assert asks.most == Resources(cpus=2, machines=2)
    with pytest.raises(ConfigurationError, match=r"same_seats asks for 1 seat for .*, and for 2 before"):
        asks({"width": 3})


def by_width(config: Config) -> Resources:
    return Resources(seats=config["width"])


def same_seats(config: Config) -> Resources:
    width = config["width"]
    return Resources() if width > 2 else Resources(cpus=width, seats=2) if width > 1 else PAIR


# Staging, and what is lost.


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, max_trials=1)


def test_what_is_staged_says_how_many_seats_it_has(monkeypatch: pytest.MonkeyPatch, mqtune_home: Path) -> None:
    from mqtune.journal import MemoryJournal

    staged = []
    stage = MemoryJournal.stage

    def noted(self: MemoryJournal, trial: TrialId, attempt: int, assignment: Any, event: bytes) -> bool:
        staged.append(assignment)
        return stage(self, trial, attempt, assignment, event)

    monkeypatch.setattr("mqtune.backends.simulated.backend.SimulatedJournal.stage", noted)
    monkeypatch.setattr("mqtune.backends.simulated.fleet.SimulatedFleet.advance", lambda *_: exit_now())
    with pytest.raises(KeyboardInterrupt):
        tuner(lambda _: Resources(cpus=3, machines=2), mqtune.Simulated(play, slots=2)).run()

    assert {assignment.gang for assignment in staged} == {"2:apart:3 CPUs"}
    assert decode_value(staged[0].encode())["gang"] == "2:apart:3 CPUs"


def exit_now() -> None:
    raise KeyboardInterrupt


def test_a_gang_of_which_a_lease_has_run_out_is_lost_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.step().start()
    monkeypatch.setattr(bench.driver._timers, "_grace_left_s", 0.0)
    names = [TrialId(name) for name in ("0001~1", "0001", "0001~2", "0001~x", "~")]
    monkeypatch.setattr(bench.driver._timers._journal, "expired", lambda: names)

    losses = list(bench.driver._timers._look_at_leases())

    assert [loss.trial.id for loss in losses] == ["0001"]


@pytest.mark.parametrize(
    ("held", "queued", "again"),
    [
        ({}, {"0001", "0001~1"}, 0),
        ({"0001": "w"}, {"0001~1"}, 0),
        ({"0001": "w"}, set(), 1),
        ({}, {"0001"}, 1),
        ({"0001": "w", "0001~1": "v"}, set(), 0),
    ],
)
def test_a_gang_is_published_again_while_a_seat_of_it_is_with_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, held: dict[str, str], queued: set[str], again: int
) -> None:
    bench.step()
    timers, published = bench.driver._timers, []
    seats = [Unclaimed(TrialId(name), 1, held.get(name, "")) for name in ("0001", "0001~1")]
    monkeypatch.setattr(timers._journal, "unclaimed", lambda **_: seats)
    monkeypatch.setattr(timers._backend, "queued", lambda: {(TrialId(name), 1) for name in queued})
    monkeypatch.setattr(timers._backend, "publish", lambda *offer: published.append(offer[:2]))

    timers.publish_lost()

    assert published == [("0001", 1)] * again


def test_a_backend_hears_of_each_seat_that_starts_and_callbacks_of_the_trial_once() -> None:
    heard: list[Any] = []

    class Session:
        def started(self, *what: Any) -> None:
            heard.append(what)

    class Told(mqtune.Callback):
        def on_trial_start(self, trial: Any) -> None:
            heard.append("callback")

    session: Any = Session()
    fold: Any = SimpleNamespace(trials={TrialId("0001"): None})
    callbacks = CallbackListener(fold, CallbackDispatcher([Told()]))
    for seat in (0, 1):
        event = AttemptStarted(
            trial=TrialId("0001"),
            attempt=1,
            worker=f"w{seat}",
            host="h",
            devices=[],
            at=1.0,
            queue=f"q{seat}",
            seat=seat,
        )
        BackendListener(session).hear(event)
        callbacks.hear(event)

    assert heard == [("0001", 1, "q0"), "callback", ("0001~1", 1, "q1")]
