"""The checker itself: a good journal passes, and one that was broken on purpose for a promise is caught."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import pytest
import xxhash
from checker import check
from claims import NOBODY_DRIVES
from counting import row, term
from observed import Observed, Violation, place_of

CONFIGS = {"0001": {"x": 0.25}, "0002": {"x": 0.5}}
SAVED = "p-0002-1-2"


#: The process of each attempt.
PIDS = {("0001", 1): 101, ("0002", 1): 102, ("0001", 2): 103, ("0002", 2): 104}


def state(trial: str, step: int, attempt: int = 1) -> dict[str, int]:
    total = sum(term(CONFIGS[trial], each) for each in range(1, step + 1))
    return {"step": step, "total": total, "pid": PIDS[trial, attempt] if step else 0}


def report(trial: str, attempt: int, sequence: int, *, began: int = 0, checkpoint: str = "", **more: Any) -> list[Any]:
    """A segment of one report."""
    metrics = row(CONFIGS[trial], state(trial, began + sequence, attempt), state(trial, began), trial, attempt) | more
    return [trial, attempt, sequence, [[10.0 * attempt + sequence, metrics, *([checkpoint] if checkpoint else [])]]]


@dataclass
class Run:
    """A run whose parts can be broken; entry *n* of the journal has the id ``n000-0``, and was written at second n."""

    entries: list[tuple[str, str, Any]]
    told: list[list[Any]]
    observed: Observed

    def violations(self) -> list[Violation]:
        self.observed.entries = [(id_, msgpack.packb([1, kind, body])) for id_, kind, body in self.entries]
        return check(self.observed)

    def body(self, number: int) -> Any:
        return self.entries[number - 1][2]

    def insert(self, after: int, kind: str, body: Any) -> None:
        """Put an entry behind entry *after*."""
        self.entries.insert(after, (f"{after}000-1", kind, body))


def staged(trial: str, attempt: int, cursor: list[Any], **more: Any) -> dict[str, Any]:
    return {"trial": trial, "attempt": attempt, "config": CONFIGS[trial], "cursor": cursor, "by": "driver", **more}


def started(trial: str, attempt: int, worker: str) -> dict[str, Any]:
    return {"trial": trial, "attempt": attempt, "worker": f"{worker}@here"}


def decided(trial: str, attempt: int, sequence: int, action: str, cursor: list[Any]) -> dict[str, Any]:
    return {
        "trial": trial,
        "attempt": attempt,
        "sequence": sequence,
        "action": action,
        "intent": action,
        "by": "scheduler",
        "cursor": cursor,
    }


def ended(trial: str, attempt: int, end: str, **more: Any) -> dict[str, Any]:
    return {"trial": trial, "attempt": attempt, "end": end, **more}


def good_entries() -> list[tuple[str, str, Any]]:
    """Trial 0001 is lost with its worker, goes on elsewhere and is stopped; 0002 is paused, resumed and completes."""
    events: list[tuple[str, Any]] = [
        ("created", {"name": "good"}),
        ("staged", staged("0001", 1, ["0-0", 0], by="searcher")),
        ("staged", staged("0002", 1, ["0-0", 0], by="searcher")),
        ("started", started("0001", 1, "w1")),
        ("started", started("0002", 1, "w2")),
        ("reports", [report("0001", 1, 1, checkpoint="m-0001-1-1"), report("0002", 1, 1, checkpoint="p-0002-1-1")]),
        ("reports", [report("0001", 1, 2)]),
        ("reports", [report("0002", 1, 2, checkpoint=SAVED)]),
        ("decided", decided("0002", 1, 2, "pause", ["8000-0", 1])),
        ("dropped", {"checkpoints": ["p-0002-1-1"], "cursor": ["8000-0", 1]}),
        # What comes behind a decision is journaled, and not shown.
        ("reports", [report("0002", 1, 3)]),
        ("ended", ended("0002", 1, "paused")),
        ("ended", ended("0001", 1, "lost", cursor=["12000-0", 0])),
        ("staged", staged("0001", 2, ["12000-0", 0], checkpoint="m-0001-1-1")),
        ("staged", staged("0002", 2, ["12000-0", 0], checkpoint=SAVED, by="scheduler")),
        ("started", started("0001", 2, "w2")),
        ("started", started("0002", 2, "w2")),
        ("reports", [report("0001", 2, 1, began=1), report("0002", 2, 1, began=2)]),
        ("decided", decided("0001", 2, 1, "stop", ["18000-0", 1])),
        ("ended", ended("0001", 2, "stopped")),
        ("ended", ended("0002", 2, "completed")),
        ("closed", {"outcome": "finished", "cursor": ["21000-0", 0]}),
    ]
    return [(f"{number}000-0", kind, body) for number, (kind, body) in enumerate(events, 1)]


CALLS = [
    ["stage", "0001", 1],
    ["stage", "0002", 1],
    ["report", "0001", 1, 1, "continue"],
    ["report", "0002", 1, 1, "continue"],
    ["report", "0001", 1, 2, "continue"],
    ["report", "0002", 1, 2, "pause"],
    ["pause", "0002"],
    ["stage", "0001", 2],
    ["stage", "0002", 2],
    ["report", "0001", 2, 1, "stop"],
    ["report", "0002", 2, 1, "continue"],
    ["end", "0001", "EARLY_STOPPED"],
    ["end", "0002", "COMPLETED"],
]


def told(calls: list[list[Any]], begin: float, step: float = 1.0) -> list[list[Any]]:
    return [[begin, "begin", 4711], *([begin + step * n, *call] for n, call in enumerate(calls, 1))]


def held(**more: int) -> bytes:
    """The checkpoint that trial 0001 has in Redis."""
    return msgpack.packb([1, 0, msgpack.packb([state("0001", 1) | more, {}])])


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A good run: two drivers, of which the first was killed after its seventh call."""
    folder = tmp_path / SAVED
    (folder / "files").mkdir(parents=True)
    data = json.dumps(state("0002", 2)).encode()
    (folder / "files" / "state.json").write_bytes(data)
    file = {"path": "state.json", "size": len(data), "xxh3": xxhash.xxh3_128(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({"checkpoint": {"content": "files", "files": [file]}}))
    observed = Observed(
        entries=[],
        max_trials=2,
        max_failures=1,
        told=[told(CALLS[:7], 1), told(copy.deepcopy(CALLS), 13, 0.1)],
        results={
            "0001": {
                "status": "EARLY_STOPPED",
                "reports": 3,
                "attempts": ["lost", "stopped"],
                "checkpoints": ["m-0001-1-1"],
            },
            "0002": {"status": "COMPLETED", "reports": 3, "attempts": ["paused", "completed"], "checkpoints": [SAVED]},
        },
        beats={
            ("0001", 1, 101): (4.1, 8.0),
            ("0002", 1, 102): (5.1, 11.9),
            ("0001", 2, 103): (16.1, 19.9),
            ("0002", 2, 104): (17.1, 20.9),
        },
        keys={
            "leases": [],
            "staged": [],
            "trials": {"0001": "ended", "0002": "ended"},
            "checkpoints": {"m-0001-1-1": held()},
        },
        store=tmp_path,
    )
    return Run(good_entries(), observed.told[1], observed)


def test_a_good_run_passes(run: Run) -> None:
    assert run.violations() == []


def drop(number: int) -> Callable[[Run], None]:
    return lambda run: run.entries.pop(number - 1) and None


def put(after: int, kind: str, body: Any) -> Callable[[Run], None]:
    return lambda run: run.insert(after, kind, body)


def change(number: int, **fields: Any) -> Callable[[Run], None]:
    return lambda run: run.body(number).update(fields)


def observe(**fields: Any) -> Callable[[Run], None]:
    return lambda run: [setattr(run.observed, name, value) for name, value in fields.items()] and None


def both(first: Callable[[Run], None], second: Callable[[Run], None]) -> Callable[[Run], None]:
    def broken(run: Run) -> None:
        first(run)
        second(run)

    return broken


def alive(key: tuple[str, int, int], first: float, last: float) -> Callable[[Run], None]:
    return lambda run: run.observed.beats.update({key: (first, last)})


def tell(driver: int, call: int, *what: Any) -> Callable[[Run], None]:
    """Have a scheduler's call be another."""

    def broken(run: Run) -> None:
        log = run.observed.told[driver - 1]
        log[call] = [log[call][0], *what]

    return broken


def hold(**keys: Any) -> Callable[[Run], None]:
    return lambda run: run.observed.keys.update(keys)


def spoil(name: str, text: str) -> Callable[[Run], None]:
    return lambda run: (run.observed.store / SAVED / name).write_text(text) and None  # type: ignore[operator]


BROKEN: dict[str, tuple[Callable[[Run], None], str, str]] = {
    "an attempt is claimed twice": (put(5, "started", started("0001", 1, "w2")), "1", "second time"),
    "an attempt reports after its end": (put(13, "reports", [report("0001", 1, 3)]), "1", "has ended"),
    "a worker ends what it never claimed": (put(3, "ended", ended("0001", 1, "completed")), "1", "never claimed"),
    "two attempts of a trial run at once": (alive(("0001", 1, 101), 4.1, 17.5), "1", "ran on"),
    "a report is lost": (drop(7), "3", "not ('report', '0002', 1, 2)"),
    "a scheduler is not shown a report": (lambda run: run.told.pop(3) and None, "3", "call 2"),
    "a decision is on a report that was not the last": (change(9, cursor=["7000-0", 1]), "3", "not the last shown"),
    "a process outlives its journaled end": (alive(("0001", 2, 103), 16.1, 20.5), "4", "after its journaled end"),
    "an attempt is stopped by nobody": (drop(19), "5", "nobody had journaled"),
    "an attempt is handed back against the policy": (
        both(change(21, end="handed_back", error=NOBODY_DRIVES), observe(on_loss="finish")),
        "5",
        "nobody had journaled",
    ),
    "an attempt reports although nobody drives": (
        observe(on_loss="stop", only_drivers=True, undriven=[(13.5, 19.0)]),
        "loss",
        "for want of a driver",
    ),
    "a driver writes ahead of what it has read": (change(19, cursor=["21000-0", 0]), "6", "not behind it"),
    "the last replay ends early": (lambda run: run.told.pop() and None, "6", "last replay ends"),
    "an attempt is lost though no worker was touched": (observe(may_lose=False), "6", "no worker or trial was touched"),
    "a trial goes on from an older checkpoint": (change(14, checkpoint=""), "7", "not 'm-0001-1-1'"),
    "a process is left": (observe(left=["process 4711"]), "7", "left behind"),
    "a trial goes on from what was given up": (change(15, checkpoint="p-0002-1-1"), "9", "was given up"),
    "a checkpoint is not in Redis": (hold(checkpoints={}), "9", "not in Redis"),
    "a checkpoint has two contents": (
        put(18, "reports", [report("0002", 2, 2, began=2, checkpoint=SAVED)]),
        "9",
        "which is (2,",
    ),
    "an attempt that runs a second time finds its checkpoint's id taken": (
        change(12, error_type="CheckpointExists"),
        "9",
        "a second time",
    ),
    "a lease is left": (hold(leases=[b"0001"]), "keys", "leases"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_run_is_caught(run: Run, how: str) -> None:
    break_it, promise, text = BROKEN[how]

    break_it(run)

    assert [each for each in run.violations() if each.promise == promise and text in each.what], run.violations()


def test_an_entry_that_is_no_message_is_caught(run: Run) -> None:
    run.violations()
    run.observed.entries.append(("99000-0", b"\xc1"))

    assert [each for each in check(run.observed) if each.promise == "10"]


ASKED = {"id": "r1", "action": "stop", "trial": "0001", "arguments": {}}
ANSWER = {"id": "r1", "done": True, "reason": "", "trial": "0001", "cursor": ["18000-1", 0]}


def ask(run: Run) -> None:
    """Have the decision on trial 0001 be what somebody has asked for, and was told."""
    run.body(19)["request"] = "r1"
    run.insert(19, "answered", dict(ANSWER))
    run.insert(18, "requested", dict(ASKED))
    run.observed.said = [{"id": "r1", "done": True, "trial": "0001"}, {"id": "r1", "error": "BrokerUnavailable"}]


#: By entry: 19 is the request, 20 the decision, 21 the answer.
BROKEN_REQUESTS: dict[str, tuple[Callable[[Run], None], str]] = {
    "made twice": (put(20, "requested", ASKED), "made twice"),
    "done, and refused": (change(21, done=False), "whose answer is False"),
    "not done, and said to be": (change(20, request=""), "has the effects []"),
    "an answer that the journal doesn't have": (observe(said=[{"id": "r3", "done": False}]), "no answer"),
    "more trials wanted, and not begun": (lambda run: want_more(run), "and not 3"),
    "refused to an operator": (observe(said=[{"id": "r1", "error": "AccessDenied: the account may not"}]), "may not"),
}


def request(id_: str, action: str, trial: str = "", **arguments: Any) -> dict[str, Any]:
    return {"id": id_, "action": action, "trial": trial, "arguments": arguments}


def answer(id_: str, cursor: list[Any], trial: str = "") -> dict[str, Any]:
    return {"id": id_, "done": True, "reason": "", "trial": trial, "cursor": cursor}


def write(run: Run, id_: str, kind: str, body: dict[str, Any]) -> None:
    """Put an entry where its id belongs."""
    run.entries.append((id_, kind, body))
    run.entries.sort(key=lambda entry: place_of(entry[0]))


def entry(run: Run, id_: str) -> Any:
    """Return the body of an entry, by its id."""
    return next(body for other, _, body in run.entries if other == id_)


def want_more(run: Run) -> None:
    """Have somebody ask for a third trial, and be told that it is done."""
    write(run, "19100-0", "requested", request("r2", "set", max_trials=3))
    write(run, "19200-0", "answered", answer("r2", ["19100-0", 0]))


@pytest.mark.parametrize("how", BROKEN_REQUESTS)
def test_a_broken_promise_about_requests_is_caught(run: Run, how: str) -> None:
    breaks, expected = BROKEN_REQUESTS[how]
    ask(run)
    assert run.violations() == []
    breaks(run)

    assert [each for each in run.violations() if expected in each.what], run.violations()


def as_gang(run: Run) -> None:
    """Have each attempt have two seats, on different workers."""
    run.observed.seats, run.observed.are_apart = 2, True
    for id_, kind, body in list(run.entries):
        if kind == "started":
            write(run, f"{id_[:-1]}1", kind, {**body, "worker": f"{body['worker'][:2]}-b@here", "seat": 1})
    beats = run.observed.beats
    beats |= {(f"{trial}~1", attempt, pid + 100): life for (trial, attempt, pid), life in beats.items()}


def without(id_: str) -> Callable[[Run], None]:
    return lambda run: run.entries.remove(next(each for each in run.entries if each[0] == id_))


#: The starts of trial 0001 are 4000-0 and 4000-1.
BROKEN_GANGS: dict[str, tuple[Callable[[Run], None], str, str]] = {
    "the last start lacks a seat": (
        lambda run: write(run, "22100-0", "started", started("0002", 2, "w1")),
        "gang",
        "trial 0002 attempt 2 seat 1 does not start",
    ),
    "two seats are on one worker": (
        lambda run: entry(run, "4000-1").update(worker="w1@here"),
        "gang",
        "has two seats on worker w1",
    ),
    "a seat outlives the loss of its gang": (alive(("0001~1", 1, 201), 4.1, 23.5), "gang", "after its end"),
    "a seat stays in Redis": (hold(lasting=["0002~1"]), "keys", "trial 0002~1 stays in Redis for ever"),
}


def test_a_good_run_of_gangs_passes(run: Run) -> None:
    as_gang(run)
    assert run.violations() == []


@pytest.mark.parametrize("how", BROKEN_GANGS)
def test_a_broken_promise_about_gangs_is_caught(run: Run, how: str) -> None:
    break_it, promise, text = BROKEN_GANGS[how]
    as_gang(run)

    break_it(run)

    assert [each for each in run.violations() if each.promise == promise and text in each.what], run.violations()
