"""Which experiments of a run have trials of several seats, and what befalls a seat at each step of its way."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import process_faults
import redis
import request_faults
import server_faults
from lone import connected
from observed import seat_of
from world import Experiment

if TYPE_CHECKING:
    from campaign import Campaign as Run

Which = Literal["some", "all", "none"]
#: A seat on each of so many workers, or so many seats on any.
_GANGS: Final[tuple[dict[str, int], ...]] = ({"machines": 2}, {"machines": 3}, {"seats": 2}, {"seats": 3})


def seats_in(plan: dict[str, Any]) -> int:
    """Return how many seats each trial of a plan has."""
    return int(max(plan["gang"].values(), default=1))


def with_gangs(plans: list[dict[str, Any]], seed: int, which: Which) -> list[dict[str, Any]]:
    """Return the plans of a run, in some of which trials have several seats; the seed says in which."""
    # Of a random of its own, as courses of seeds are to stay what they were.
    random = Random(f"{seed} gangs")
    is_drawn = random.random() < 1 / 3
    if which == "none" or not (is_drawn or which == "all"):
        return plans
    # One beside trials of one seat, or all: then two experiments may each hold half of what the other needs.
    number = random.randint(1, len(plans))
    chosen = random.sample(range(len(plans)), number)
    return [_as_gangs(plan, random) if place in chosen else plan for place, plan in enumerate(plans)]


def _as_gangs(plan: dict[str, Any], random: Random) -> dict[str, Any]:
    mischief = [each for each in plan["mischief"] if each != "closes"]
    return plan | {
        "gang": random.choice(_GANGS),
        "mischief": mischief,
        "max_trials": max(4, plan["max_trials"] // 2),
    }


def strikes(seed: int) -> list[str]:
    """Return the strikes at seats of a run with gangs."""
    return ["seat struck"] * Random(f"{seed} strikes").randint(1, 3)


class _Seat(NamedTuple):
    """A seat that is held or runs, and where."""

    experiment: Experiment
    name: str
    attempt: int
    worker: str


def seat_struck(run: Run) -> str:
    """Something befalls a seat, its worker or its trial as soon as a seat is taken, runs, or is about to end."""
    step, how = run.random.choice(("taken", "running", "ending")), run.random.choice(sorted(_HOW))
    deadline = time.monotonic() + 10.0

    def look() -> None:
        if found := list(_seats(run, step)):
            seat = run.random.choice(found)
            run.struck(
                "seat struck",
                f"{seat.experiment.name}: {seat.name} attempt {seat.attempt} on {seat.worker} is {step}: {how}",
            )
            _HOW[how](run, seat)
        elif time.monotonic() < deadline:
            run.later(0.02, look)

    look()
    # It is noted once it comes.
    return ""


def _seats(run: Run, step: str) -> Iterator[_Seat]:
    """Yield the seats of gangs that are at a step: held until the others are taken, running, or running while another is over."""
    gangs = [each for each in run.world.experiments if each.plan["gang"]]
    with contextlib.suppress(redis.RedisError, OSError), connected(run.world.server) as client:
        for experiment in gangs:
            keys = experiment.keys
            names = [*client.zrange(keys.staged, 0, -1), *client.zrange(keys.leases, 0, -1)]
            fields = "attempt", "state", "worker", "orders"
            hashes = {name.decode(): client.hmget(keys.trial(name.decode()), *fields) for name in names}
            size = seats_in(experiment.plan)
            running: dict[str, int] = {}
            for name, (_, state, _, _) in hashes.items():
                running[seat_of(name)[0]] = running.get(seat_of(name)[0], 0) + (state == b"running")
            for name, (attempt, state, worker, orders) in hashes.items():
                is_ending = bool(orders) or running[seat_of(name)[0]] < size
                at = {b"staged": "taken", b"running": "ending" if is_ending else "running"}.get(state or b"")
                if at == step and attempt and worker:
                    yield _Seat(experiment, name, int(attempt), worker.decode().partition("@")[0])


def _at_worker(strike: Callable[..., object], **how: Any) -> Callable[[Run, _Seat], object]:
    def struck(run: Run, seat: _Seat) -> None:
        for worker in run.world.living_workers():
            if worker.name == seat.worker and not worker.is_frozen:
                strike(run, worker, **how)

    return struck


def _at_all(strike: Callable[[Run], object]) -> Callable[[Run, _Seat], object]:
    return lambda run, seat: strike(run)


def _asked(action: str) -> Callable[[Run, _Seat], object]:
    return lambda run, seat: request_faults.ask_of(run, seat.experiment, seat_of(seat.name)[0], action)


_HOW: Final[dict[str, Callable[[Run, _Seat], object]]] = {
    "its worker is killed": _at_worker(process_faults.kill, with_all=False),
    "its machine is killed": _at_worker(process_faults.kill, with_all=True),
    "its worker is frozen": _at_worker(process_faults.freeze, with_all=False),
    "its machine is frozen": _at_worker(process_faults.freeze, with_all=True),
    "its worker is terminated": _at_worker(process_faults.leave, by_operator=False),
    "its worker is drained": _at_worker(process_faults.leave, by_operator=True),
    "its worker's bytes are lost": _at_worker(
        lambda run, worker: server_faults.worker_cut_off(run, "drop", worker.seat)
    ),
    "the driver is killed": _at_all(
        process_faults.at(process_faults.drivers, process_faults.signalled, number=signal.SIGKILL)
    ),
    "clients are killed": _at_all(server_faults.clients_killed),
    "Redis is killed": _at_all(server_faults.redis_killed),
    "it is stopped": _asked("stop"),
    "it is paused": _asked("pause"),
    "its task is revoked": lambda run, seat: request_faults.revoke(run, seat.experiment, seat.name, seat.attempt),
}
