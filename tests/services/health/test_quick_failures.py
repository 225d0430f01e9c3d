"""Quick failures close a device while others do well, and failures everywhere close none."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from bench import Clock
from impaired import reasons

from mqtune.core.timing import Timing
from mqtune.journal import BROKEN_S, MemoryJournal, MemoryServer
from mqtune.services.health.quick_failures import IN_A_ROW, LONGEST_PAUSE_S, QuickFailures
from mqtune.worker import Impairments

TIMING: Final = Timing()
FIRST_PAUSE_S: Final = TIMING.first_probe_s

ECC = "Traceback (most recent call last):\nRuntimeError: CUDA error: uncorrectable ECC error encountered"
BROKEN, OTHER = ("0",), ("1",)


class Worker:
    """A worker with two devices, each of one slot, and their attempts."""

    def __init__(self, server: MemoryServer, clock: Clock, name: str) -> None:
        self.clock, self._server, self._trials = clock, server, map(str, itertools.count(1))
        self.running: list[tuple[str, ...]] = []
        self.impairments = Impairments(lambda: None, monotonic=clock.monotonic)
        running = lambda _: [(each, True) for each in self.running]  # noqa: E731
        self.failures = QuickFailures(name, self.impairments, running, clock=clock)

    def fail(
        self,
        times: int = 1,
        devices: tuple[str, ...] = BROKEN,
        *,
        trial: str = "",
        experiment: str = "x",
        error: str = "E",
    ) -> None:
        journal = MemoryJournal(self._server, experiment)
        for _ in range(times):
            self.clock.now += 0.1
            of = trial or next(self._trials)
            self.failures.note_failed(journal, int(devices[0]), devices, of, error, broken=error == ECC)

    def do_well(self, devices: tuple[str, ...] = OTHER, experiment: str = "x", *, ago_s: float = 0.0) -> None:
        self.clock.now += 0.1
        self.failures.note_well(MemoryJournal(self._server, experiment), devices, self.clock.now - ago_s)

    def closed(self, devices: tuple[str, ...] = BROKEN) -> bool:
        return self.impairments.closes(int(devices[0]), devices)

    def let_pause_pass(self, seconds: float) -> None:
        self.clock.now += seconds
        for look in self.impairments.checks():
            look()
        assert not self.closed(), "a probe may start"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def worker(clock: Clock) -> Iterator[Callable[..., Worker]]:
    """Returns a worker of one fleet."""
    server = MemoryServer(clock.monotonic)
    with contextlib.ExitStack() as made:

        def make(name: str = "w") -> Worker:
            worker = Worker(server, clock, name)
            made.callback(worker.impairments.close)
            return worker

        yield make


#: Events on a device, and whether it is closed then. Attempts fail there with "f", all of one trial with "t" and by a
#: broken device with "ecc"; "well" is one there that does well, and "late" one that had done well before all of it.
#: "other" does well on the other device here, "runs" runs there, "away" does well on another worker, and "y" is one of
#: another experiment that does well on the other device.
STORIES = [
    ("f f other", False),
    ("f f other f", True),
    # The first trials of an experiment take their time: a broken device would take all others until one is through.
    ("runs f f f", True),
    ("runs f f", False),
    ("f away f f", True),
    ("runs t t t t t t t t t t", False),
    ("runs f f well f f well f f", False),
    ("f f f f f f f f f f f f", False),
    ("f f f f f f y f f f f f f", False),
    # Its worker may note late how the attempt before has fared.
    ("other f f late f", True),
    ("other f f f late", True),
    ("other ecc late", True),
    ("other f f f late well", False),
    ("other ecc late well", False),
]


@pytest.mark.parametrize(("story", "is_closed"), STORIES)
def test_failures_in_a_row_close_one_device(worker: Callable[..., Worker], story: str, is_closed: bool) -> None:
    here, there = worker("here"), worker("there")
    steps: dict[str, Callable[[], None]] = {
        "f": here.fail,
        "t": lambda: here.fail(trial="0007"),
        "ecc": lambda: here.fail(error=ECC),
        "well": lambda: here.do_well(BROKEN),
        "late": lambda: here.do_well(BROKEN, ago_s=10.0),
        "other": here.do_well,
        "runs": lambda: here.running.append(OTHER),
        "away": lambda: there.do_well(BROKEN),
        "y": lambda: here.do_well(OTHER, experiment="y"),
    }
    for step in story.split():
        steps[step]()

    assert (here.closed(), here.closed(OTHER), there.closed()) == (is_closed, False, False)
    if story.endswith("f") and is_closed:
        assert reasons(here.impairments) == (
            "device 0 is quarantined, its last 3 attempts failed within seconds, and others elsewhere have not"
        )


def test_a_failed_probe_doubles_the_pause_and_a_good_one_ends_it(worker: Callable[..., Worker], clock: Clock) -> None:
    here = worker()
    here.running = [OTHER]
    here.fail(IN_A_ROW)
    pause_s, pauses = FIRST_PAUSE_S, 0
    while pause_s < LONGEST_PAUSE_S:
        clock.now += pause_s - 1
        assert here.closed()
        here.let_pause_pass(1)
        assert here.impairments.enter(0, BROKEN)
        assert not here.impairments.enter(0, BROKEN), "one attempt is the probe"
        here.do_well()
        here.fail()
        pause_s, pauses = min(2 * pause_s, LONGEST_PAUSE_S), pauses + 1
        assert here.closed()

    here.let_pause_pass(LONGEST_PAUSE_S)
    here.do_well(BROKEN, experiment="y")

    assert reasons(here.impairments) == ""
    assert pauses > 5


def test_a_quarantine_that_was_wrong_makes_its_experiment_prove_more(worker: Callable[..., Worker]) -> None:
    here = worker()
    here.running = [OTHER]
    needed = []
    for _ in range(4):
        failures = 0
        while not here.closed():
            here.fail()
            failures += 1
        needed.append(failures)
        here.do_well(BROKEN, experiment="another team's")

    assert needed == [3, 6, 12, 24]


def test_an_experiment_closes_one_device_alone_and_more_by_rule(worker: Callable[..., Worker], clock: Clock) -> None:
    here, there = worker("here"), worker("there")
    here.fail(error=ECC)
    here.fail(5, devices=OTHER, error=ECC)
    there.fail(5, error=ECC)
    assert (here.closed(), here.closed(OTHER), there.closed()) == (True, False, False)

    there.fail(error=ECC, experiment="y")
    assert there.closed(), "another experiment has a word of its own"
    clock.now += BROKEN_S + 1
    here.fail(devices=OTHER, error=ECC)
    assert here.closed(OTHER)
