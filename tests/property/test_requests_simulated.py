"""Requests at any moment, doubled, and drivers that are killed at any call: each request is answered once, and done at most once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from simulation import FOR_EVER_S, MOST_STEPS, Killed, Simulation
from worlds import SCHEDULERS, World, worlds

from mqtune.core.events import (
    AttemptEnded,
    AttemptStarted,
    DriverStarted,
    RequestAnswered,
    Requested,
    Told,
    TrialStaged,
)

#: Those that treat pauses and added trials in different ways.
SOME = pytest.mark.parametrize("name", ["fifo", "asha-2", "promotion", "hyperband", "pbt"])
TRIALS = st.sampled_from(["0001", "0002", "0003", "0004", "0009"])
CONFIGS = st.floats(0, 1, exclude_max=True).map(lambda lr: {"lr": lr})
#: A trial, an action and its arguments.
ASKED = st.one_of(
    st.tuples(
        TRIALS,
        st.sampled_from(["stop", "pause", "complete", "abandon", "fail", "save", "resume", "restart"]),
        st.just({}),
    ),
    st.tuples(TRIALS, st.sampled_from(["resume", "restart"]), CONFIGS.map(lambda config: {"config": config})),
    st.tuples(st.just(""), st.just("add"), CONFIGS.map(lambda config: {"config": config})),
    st.tuples(st.just(""), st.just("add"), st.just({"config": {"lr": 0.5}, "source": "0001"})),
    st.tuples(st.just(""), st.just("ask"), st.just({}) | CONFIGS.map(lambda config: {"config": config})),
    st.tuples(st.just(""), st.just("tell"), CONFIGS.map(lambda config: {"config": config, "metrics": {"loss": 0.5}})),
    st.tuples(
        TRIALS,
        st.just("tell"),
        st.tuples(st.integers(1, 4), st.booleans()).map(
            lambda told: {"metrics": {"loss": 0.5, "training_iteration": told[0]}, "ends": told[1]}
        ),
    ),
    st.tuples(st.just(""), st.just("set"), st.integers(0, 9).map(lambda count: {"max_trials": count})),
    st.tuples(st.just(""), st.just("set"), st.integers(1, 3).map(lambda count: {"max_concurrent": count})),
    st.tuples(st.just(""), st.just("end"), st.booleans().map(lambda now: {"now": now})),
)
#: What is asked for, and after how many steps of drivers.
ASKS = st.lists(st.tuples(st.integers(0, 40), ASKED), max_size=8)


class Played:
    """A simulation whose drivers are killed, one after the other, while somebody makes requests.

    Args:
        world: the fleet and the trainable.
        name: the scheduler.
        asks: the requests; each is made twice, the second time some steps later.
        kills: at which of its calls each driver is killed.
    """

    def __init__(self, world: World, name: str, asks: list[Any], kills: list[int]) -> None:
        self.simulation: Simulation = world.simulation(SCHEDULERS[name], keep_journal=True)
        self.asked = {f"r{number}": asked for number, (_, asked) in enumerate(asks)}
        self.due = sorted(
            (step + again, id_) for id_, (step, _) in zip(self.asked, asks, strict=True) for again in (0, 7)
        )
        self.steps = 0
        for kill_at in [*kills, 0]:
            try:
                self._drive(kill_at)
            except Killed:
                continue
            break

    def _drive(self, kill_at: int) -> None:
        driver = self.simulation.driver(kill_at=kill_at)
        while not driver.is_finished:
            self._ask()
            if "request" in driver.waiting_for or "outside" in driver.waiting_for:
                # Trials are paused by request, or evaluated outside, and nobody asks for them, or tells of them, any more.
                self._append("last", ("", "end", {"now": True}))
            driver.step(FOR_EVER_S)
            self.steps += 1
            assert self.steps < MOST_STEPS
        driver.end("finished", driver.over)

    def _ask(self) -> None:
        while self.due and self.due[0][0] <= self.steps:
            id_ = self.due.pop(0)[1]
            self._append(id_, self.asked[id_])

    def _append(self, id_: str, asked: Any) -> None:
        trial, action, arguments = asked
        request = Requested(id=id_, action=action, trial=trial, arguments=arguments, by="somebody", at=0.0)
        self.simulation.journal.request(request)


def assert_each_was_done_once(played: Played) -> None:
    events = played.simulation.events()
    made = [event for event in events if isinstance(event, Requested)]
    answers = [event for event in events if isinstance(event, RequestAnswered)]
    effects = Counter(request for event in events if (request := getattr(event, "request", "")))

    assert max(Counter(event.id for event in made).values(), default=1) == 1
    assert max(Counter(event.id for event in answers).values(), default=1) == 1
    for answer in answers:
        action = next(request.action for request in made if request.id == answer.id)
        has_event = action not in ("save", "set", "end")
        # What is told again changes nothing.
        least = 1 if answer.done and has_event and action != "tell" else 0
        assert least <= effects.pop(answer.id, 0) <= (1 if answer.done and has_event else 0), (action, answer)
        assert answer.done or answer.reason
    assert not effects
    # What waits for a slot is answered when it has one; all else in the order in which it was asked for.
    waited = {event.id for event in made if event.action == "add"}
    in_order = [event.id for event in made if event.id not in waited]
    assert [event.id for event in answers if event.id not in waited] == [
        id_ for id_ in in_order if id_ in {event.id for event in answers}
    ]
    last = max(place for place, event in enumerate(events) if isinstance(event, DriverStarted))
    early = {event.id for event in events[:last] if isinstance(event, Requested)}
    assert early <= {event.id for event in answers}


@SOME
@settings(max_examples=15)
@given(world=worlds(), asks=ASKS, kills=st.lists(st.integers(1, 60), max_size=3))
def test_whatever_is_asked_for_is_answered_once(name: str, world: World, asks: list[Any], kills: list[int]) -> None:
    # A trial that starts from a completed one's checkpoint has nothing to report: it fails however often it is tried.
    finite = world.but(max_failures=max(0, world.max_failures))
    assert_each_was_done_once(Played(finite, name, asks, kills))


@SOME
@settings(max_examples=15)
@given(world=worlds(), asks=ASKS, kills=st.lists(st.integers(1, 60), max_size=3))
def test_what_is_told_of_an_attempt_is_taken_in_once_in_order_and_only_while_it_is_under_way(
    name: str, world: World, asks: list[Any], kills: list[int]
) -> None:
    played = Played(world.but(max_failures=max(0, world.max_failures)), name, asks, kills)

    sequences: Counter[tuple[str, int]] = Counter()
    outside = {event.trial for event in played.simulation.events() if isinstance(event, TrialStaged) and event.outside}
    ended = set()
    for event in played.simulation.events():
        if isinstance(event, Told):
            attempt = event.trial, event.attempt
            sequences[attempt] += 1
            assert (event.sequence, attempt in ended, event.trial in outside) == (sequences[attempt], False, True)
        elif isinstance(event, AttemptEnded):
            ended.add((event.trial, event.attempt))
        elif isinstance(event, AttemptStarted):
            assert event.trial not in outside
