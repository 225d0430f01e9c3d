"""The checker itself: a good journal passes, and one that was broken on purpose for a promise is caught."""

from __future__ import annotations

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
    observed: Observed

    def violations(self) -> list[Violation]:
        packed = [(id_, msgpack.packb([1, kind, body]) if kind else b"\xc1") for id_, kind, body in self.entries]
        self.observed.entries = packed
        return check(self.observed)

    def body(self, id_: str) -> Any:
        return next(body for other, _, body in self.entries if other == id_)

    def write(self, id_: str, kind: str, body: Any) -> None:
        """Put an entry where its id belongs."""
        self.entries.append((id_, kind, body))
        self.entries.sort(key=lambda entry: place_of(entry[0]))


def staged(trial: str, attempt: int, cursor: list[Any], **more: Any) -> dict[str, Any]:
    return {"trial": trial, "attempt": attempt, "config": CONFIGS[trial], "cursor": cursor, "by": "driver", **more}


def started(trial: str, attempt: int, worker: str) -> dict[str, Any]:
    return {"trial": trial, "attempt": attempt, "worker": f"{worker}@here"}


def decided(trial: str, attempt: int, sequence: int, action: str, cursor: list[Any]) -> dict[str, Any]:
    whose = {"trial": trial, "attempt": attempt, "sequence": sequence}
    return {**whose, "action": action, "intent": action, "by": "scheduler", "cursor": cursor}


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


CALLS = """
stage 0001 1; stage 0002 1; report 0001 1 1 continue; report 0002 1 1 continue; report 0001 1 2 continue;
report 0002 1 2 pause; pause 0002; stage 0001 2; stage 0002 2; report 0001 2 1 stop; report 0002 2 1 continue;
end 0001 EARLY_STOPPED; end 0002 COMPLETED
"""


def told(count: int, begin: float, step: float) -> list[list[Any]]:
    """Return what a scheduler was told by so many of the calls; numbers of attempts and reports have one digit."""
    calls = [[int(word) if len(word) == 1 else word for word in call.split()] for call in CALLS.split(";")]
    return [[begin + step * n, *call] for n, call in enumerate(calls[:count], 1)]


def result(status: str, attempts: list[str], checkpoint: str) -> dict[str, Any]:
    return {"status": status, "reports": 3, "attempts": attempts, "checkpoints": [checkpoint]}


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
        told=[told(7, 1, 1.0), told(13, 13, 0.1)],
        results={
            "0001": result("EARLY_STOPPED", ["lost", "stopped"], "m-0001-1-1"),
            "0002": result("COMPLETED", ["paused", "completed"], SAVED),
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
            "checkpoints": {"m-0001-1-1": msgpack.packb([1, 0, msgpack.packb([state("0001", 1), {}])])},
        },
        store=tmp_path,
    )
    return Run(good_entries(), observed)


Break = Callable[[Run], object]


def drop(number: int) -> Break:
    return lambda run: run.entries.pop(number - 1)


def put(after: int, kind: str, body: Any) -> Break:
    return lambda run: run.write(f"{after}000-1", kind, body)


def change(id_: str, **fields: Any) -> Break:
    return lambda run: run.body(id_).update(fields)


def observe(**fields: Any) -> Break:
    return lambda run: vars(run.observed).update(fields)


def alive(key: tuple[str, int, int], first: float, last: float) -> Break:
    return lambda run: run.observed.beats.update({key: (first, last)})


def hold(**keys: Any) -> Break:
    return lambda run: run.observed.keys.update(keys)


def plain(run: Run) -> None: ...


def ask(run: Run) -> None:
    """Have the decision on trial 0001 be what somebody has asked for, and was told."""
    run.body("19000-0")["request"] = "r1"
    run.write("18000-1", "requested", request("r1", "stop", "0001"))
    run.write("19000-1", "answered", answer("r1", ["18000-1", 0], "0001"))
    run.observed.said = [{"id": "r1", "done": True, "trial": "0001"}, {"id": "r1", "error": "BrokerUnavailable"}]


def request(id_: str, action: str, trial: str = "", **arguments: Any) -> dict[str, Any]:
    return {"id": id_, "action": action, "trial": trial, "arguments": arguments}


def answer(id_: str, cursor: list[Any], trial: str = "") -> dict[str, Any]:
    return {"id": id_, "done": True, "reason": "", "trial": trial, "cursor": cursor}


def want_more(run: Run) -> None:
    """Have somebody ask for a third trial, and be told that it is done."""
    run.write("19100-0", "requested", request("r2", "set", max_trials=3))
    run.write("19200-0", "answered", answer("r2", ["19100-0", 0]))


def as_gang(run: Run) -> None:
    """Have each attempt have two seats, on different workers."""
    run.observed.seats, run.observed.are_apart = 2, True
    for id_, kind, body in list(run.entries):
        if kind == "started":
            run.write(f"{id_[:-1]}1", kind, {**body, "worker": f"{body['worker'][:2]}-b@here", "seat": 1})
    beats = run.observed.beats
    beats |= {(f"{trial}~1", attempt, pid + 100): life for (trial, attempt, pid), life in beats.items()}


#: What is broken of a run, in which promise, with what text.
BROKEN: dict[str, tuple[Callable[[Run], None], str, str, *tuple[Break, ...]]] = {
    "an attempt is claimed twice": (plain, "1", "second time", put(5, "started", started("0001", 1, "w2"))),
    "an attempt reports after its end": (plain, "1", "has ended", put(13, "reports", [report("0001", 1, 3)])),
    "a worker ends what it never claimed": (
        plain,
        "1",
        "never claimed",
        put(3, "ended", ended("0001", 1, "completed")),
    ),
    "two attempts of a trial run at once": (plain, "1", "ran on", alive(("0001", 1, 101), 4.1, 17.5)),
    "an entry comes before an earlier one": (
        plain,
        "2",
        "not come behind",
        lambda run: run.entries.insert(3, run.entries.pop(4)),
    ),
    "a report is lost": (plain, "3", "not ('report', '0002', 1, 2)", drop(7)),
    "a scheduler is not shown a report": (plain, "3", "call 2", lambda run: run.observed.told[1].pop(2)),
    "a decision is not on the last report": (plain, "3", "not the last shown", change("9000-0", cursor=["7000-0", 1])),
    "a process outlives its journaled end": (plain, "4", "after its jour", alive(("0001", 2, 103), 16.1, 20.5)),
    "an attempt is stopped by nobody": (plain, "5", "nobody had journaled", drop(19)),
    "an attempt is handed back against the policy": (
        plain,
        "5",
        "nobody had journaled",
        change("21000-0", end="handed_back", error=NOBODY_DRIVES),
        observe(on_loss="finish"),
    ),
    "an attempt reports although nobody drives": (
        plain,
        "loss",
        "for want of a driver",
        observe(on_loss="stop", only_drivers=True, undriven=[(13.5, 19.0)]),
    ),
    "a driver writes ahead of what it has read": (
        plain,
        "6",
        "not behind it",
        change("19000-0", cursor=["21000-0", 0]),
    ),
    "the last replay ends early": (plain, "6", "last replay ends", lambda run: run.observed.told[1].pop()),
    "an attempt is lost, and nothing was touched": (plain, "6", "trial was touched", observe(may_lose=False)),
    "a trial goes on from an older checkpoint": (plain, "7", "not 'm-0001-1-1'", change("14000-0", checkpoint="")),
    "a process is left": (plain, "7", "left behind", observe(left=["process 4711"])),
    "a trial goes on from what was given up": (plain, "9", "was given up", change("15000-0", checkpoint="p-0002-1-1")),
    "a checkpoint is not in Redis": (plain, "9", "not in Redis", hold(checkpoints={})),
    "a checkpoint has two contents": (
        plain,
        "9",
        "which is (2,",
        put(18, "reports", [report("0002", 2, 2, began=2, checkpoint=SAVED)]),
    ),
    "an attempt finds its checkpoint's id taken": (
        plain,
        "9",
        "a second time",
        change("12000-0", error_type="CheckpointExists"),
    ),
    "an entry is no message": (plain, "10", "can't be read", lambda run: run.entries.append(("99000-0", None, None))),
    "a lease is left": (plain, "keys", "leases", hold(leases=[b"0001"])),
    "a request is made twice": (
        ask,
        "request",
        "is requested twice",
        put(20, "requested", request("r1", "stop", "0001")),
    ),
    "a request is done, and refused": (ask, "request", "whose answer is False", change("19000-1", done=False)),
    "a request is not done, and said to be": (ask, "request", "has the effects []", change("19000-0", request="")),
    "an answer is not in the journal": (ask, "request", "no answer", observe(said=[{"id": "r3", "done": False}])),
    "more trials are wanted, and not begun": (ask, "terminal", "and not 3", want_more),
    "an operator is refused": (
        ask,
        "account",
        "may not",
        observe(said=[{"id": "r1", "error": "AccessDenied: may not"}]),
    ),
    "the last start lacks a seat": (
        as_gang,
        "gang",
        "trial 0002 attempt 2 seat 1 does not start",
        lambda run: run.write("22100-0", "started", started("0002", 2, "w1")),
    ),
    "two seats are on one worker": (as_gang, "gang", "two seats on worker w1", change("4000-1", worker="w1@here")),
    "a seat outlives the loss of its gang": (as_gang, "gang", "after its end", alive(("0001~1", 1, 201), 4.1, 23.5)),
    "a seat stays in Redis": (as_gang, "keys", "trial 0002~1 stays in Redis for ever", hold(lasting=["0002~1"])),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_run_is_caught_and_a_good_one_passes(run: Run, how: str) -> None:
    prepare, promise, text, *breaks = BROKEN[how]
    prepare(run)
    assert run.violations() == []

    for break_it in breaks:
        break_it(run)

    assert [each for each in run.violations() if each.promise == promise and text in each.what], run.violations()
