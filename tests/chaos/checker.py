"""Holds what happened in a run against mqtune's promises, from the journal's bytes and with rules of its own.

Nothing here is mqtune's code: what reads the journal for a driver must not be what says that the driver read it well.
Only how a report's sum comes about is shared with the trainable (see counting).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgpack
import xxhash
from claims import Claims, State
from course import Course
from observed import (
    CLOCKS_S,
    SET_BACK_S,
    Entry,
    Found,
    Observed,
    Violation,
    decoded,
    in_drivers_order,
    place_of,
    seat_of,
    written_at,
)

#: How long a process of a fenced attempt may go on once its worker can hear of it: a heartbeat, the kill, a loaded machine.
FENCED_S: Final = 8.0
#: With what the id begins of a request that a worker makes for an attempt whose task Celery was told to revoke.
_REVOKE: Final = "revoke/"
#: Actions that an answer alone carries out.
_WITHOUT_EVENT: Final = frozenset({"save", "set", "end"})
#: What of a driver's own record are calls of its scheduler.
_CALLS: Final = frozenset({"stage", "report", "pause", "end"})


def check(observed: Observed) -> list[Violation]:
    """Return every promise that was broken, and by what."""
    found = Found()
    entries = decoded(observed.entries, found)
    journal = Claims(found, observed)
    for entry in entries:
        journal.take(entry)
    journal.check_end()
    ordered = list(in_drivers_order(entries, found))
    fold = Course(found, observed)
    for entry in ordered:
        fold.take(entry)
    fold.check_end()
    _check_told(observed, fold, found)
    _check_results(observed, fold, found)
    _check_processes(observed, journal, found)
    _check_keys(observed, fold, journal, found)
    _check_store(observed, fold, journal, found)
    _check_requests(observed, entries, found)
    return found


def _check_told(observed: Observed, fold: Course, found: Found) -> None:
    """Each driver's scheduler was told the same, from the beginning; decided the same; and that stands in the journal."""
    begins = [next((line[0] for line in log if line[1] in _CALLS), None) for log in observed.told]
    decisions: dict[tuple[str, int, int], str] = {}
    for number, log in enumerate(observed.told, 1):
        first = begins[number - 1]
        later = [at for at in begins if at is not None and first is not None and at > first]
        # A driver that was replaced may read on until it writes, but what it makes of it goes nowhere.
        replaced_at = min(later, default=math.inf)
        # Nor does what Redis has forgotten, and another driver has gone on without, before this one could put it back.
        forgot_at = min((begin for begin, _ in observed.forgot if begin < replaced_at), default=math.inf)
        if later:
            replaced_at = min(replaced_at, forgot_at - SET_BACK_S - CLOCKS_S)
        calls = [line for line in log if line[1] in _CALLS and line[0] < replaced_at]
        for place, (line, expected) in enumerate(zip(calls, fold.calls, strict=False)):
            said = tuple(line[1:5] if line[1] == "report" else line[1:])
            if said != expected:
                found.wrong("3", f"driver {number}: call {place} of its scheduler was {said}, and not {expected}")
                break
        for more in calls[len(fold.calls) :][:1]:
            found.wrong("3", f"driver {number}: its scheduler was told {more}, which the journal doesn't have")
        for line in calls:
            if line[1] == "report":
                report, decision = (line[2], line[3], line[4]), line[5]
                if decisions.setdefault(report, decision) != decision:
                    found.wrong("12", f"driver {number}: {report} got {decision}, before {decisions[report]}")
    last = [line for line in observed.told[-1] if line[1] in _CALLS]
    for missed in fold.calls[len(last) :][:1]:
        found.wrong("6", f"the last replay ends after {len(last)} calls, before {missed}")
    ended = {report for report, decision in decisions.items() if decision != "continue"}
    for report in sorted(ended - fold.decided):
        found.wrong("6", f"the scheduler ended {report}, which the journal doesn't have")
    for report in sorted(fold.decided - ended):
        found.wrong("6", f"the journal has a decision on {report} that no scheduler has taken")


def _check_results(observed: Observed, fold: Course, found: Found) -> None:
    for id_ in sorted(fold.trials.keys() | observed.results.keys()):
        if id_ not in observed.results or id_ not in fold.trials:
            found.wrong("results", f"trial {id_} is in the results or in the journal, and not in both")
            continue
        trial, result = fold.trials[id_], observed.results[id_]
        mine = {
            "status": trial.status,
            "reports": trial.shown,
            "attempts": trial.ends,
            "checkpoints": [*trial.checkpoints],
        }
        for what, value in mine.items():
            if result[what] != value:
                found.wrong("results", f"trial {id_}: {what} is {result[what]}, and {value} by the journal")


def _check_requests(observed: Observed, entries: list[Entry], found: Found) -> None:
    """Each request was made once and answered once, what it asked for was done once or not at all, and that was said."""
    made: dict[str, Entry] = {}
    answers: dict[str, Entry] = {}
    effects: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.kind in ("requested", "answered"):
            if entry.kind == "answered" and entry.body["id"] not in made:
                found.wrong("request", f"entry {entry.id} answers what nobody has asked for")
            there = made if entry.kind == "requested" else answers
            if there.setdefault(entry.body["id"], entry) is not entry:
                found.wrong("request", f"request {entry.body['id']} is {entry.kind} twice", entry)
        elif isinstance(entry.body, dict) and entry.body.get("request"):
            effects[entry.body["request"]].append(entry)
    for id_, entry in made.items():
        action, answer = entry.body["action"], answers.get(id_)
        what = f"request {id_} ({action} {entry.body.get('trial', '')})"
        if answer is None:
            found.wrong("request", f"{what} has no answer")
            continue
        expected = 1 if answer.body["done"] and action not in _WITHOUT_EVENT else 0
        kinds = [f"{each.kind} {each.id}" for each in effects[id_]]
        if len(kinds) != expected:
            found.wrong("request", f"{what}, whose answer is {answer.body['done']}, has the effects {kinds}")
        if action == "add" and kinds and effects[id_][0].body["trial"] != answer.body["trial"]:
            found.wrong("request", f"{what} has made another trial than its answer says")
    for id_ in sorted(effects.keys() - made.keys()):
        found.wrong("request", f"something was done for request {id_}, which nobody has made")
    _check_revoked(observed, made, answers, entries, found)
    for line in observed.said:
        if line.get("error", "").startswith("AccessDenied"):
            found.wrong("account", f"whoever may make requests was refused: {line}")
        answer = answers.get(line["id"])
        # What Redis has forgotten before any driver had read it is as if it was never asked for.
        if answer is None and "done" in line and not observed.forgot:
            found.wrong("request", f"request {line['id']} was answered, and the journal has no answer")
        if answer is not None and answer.body["done"] != line.get("done", answer.body["done"]):
            found.wrong("request", f"{line} was said, and the journal has {answer.body}")


def _check_revoked(
    observed: Observed, made: dict[str, Entry], answers: dict[str, Entry], entries: list[Entry], found: Found
) -> None:
    """A worker asks for what was revoked alone, and no worker runs it any more: neither one that has heard, nor one that joins later."""
    asked = {}
    for id_, entry in made.items():
        if id_.startswith(_REVOKE):
            trial, attempt = id_.removeprefix(_REVOKE).split("/")
            asked[trial, int(attempt)] = entry
            if entry.body["action"] != "stop" or entry.body["trial"] != trial:
                found.wrong("revoke", f"request {id_} asks for {entry.body['action']}")
    for trial, attempt in sorted(asked.keys() - observed.revoked):
        found.wrong("revoke", f"trial {trial} attempt {attempt} is stopped, and nobody has revoked its task")
    answered = [entry for id_, entry in answers.items() if id_.startswith(_REVOKE) and entry.body["done"]]
    over = {(entry.body["trial"], place_of(entry.id)) for entry in answered}
    for entry in entries:
        if entry.kind in ("started", "staged"):
            for trial, place in over:
                if entry.body["trial"] == trial and place_of(entry.id) > place:
                    found.wrong("revoke", "it was revoked", entry)
    for (name, attempt, _), (first, last) in observed.beats.items():
        trial, _ = seat_of(name)
        entry = asked.get((trial, attempt))
        if entry is None or _ran_on_the_past(observed, first, last):
            continue
        late_s = first + observed.clock - written_at(entry)
        if late_s > FENCED_S:
            found.wrong("revoke", f"trial {trial} attempt {attempt} begins {late_s:.1f} s after its task was revoked")


def _check_processes(observed: Observed, journal: Claims, found: Found) -> None:
    for process in observed.left:
        found.wrong("7", f"left behind: {process}")
    lives: dict[str, list[tuple[str, int, float, float]]] = defaultdict(list)
    pids: dict[tuple[str, int], set[int]] = defaultdict(set)
    for (name, attempt, pid), (first, last) in observed.beats.items():
        if _ran_on_the_past(observed, first, last):
            continue
        trial, seat = seat_of(name)
        lives[trial].append((name, attempt, first, last))
        pids[name, attempt].add(pid)
        if seat >= observed.seats:
            found.wrong("gang", f"trial {trial} attempt {attempt} has a seat {seat}")
        _check_life(observed, journal, name, attempt, last, found)
    for (name, attempt), several in pids.items():
        if len(several) > 1:
            found.wrong("1", f"trial {name} attempt {attempt} ran in processes {sorted(several)}")
    # The seats of a gang that was lost with one of them hear of that.
    beside_s = FENCED_S if observed.seats > 1 else 0.0
    for attempts in lives.values():
        for name, attempt, _, last in attempts:
            for _, later, first, _ in attempts:
                is_beside = later > attempt and last > first + beside_s
                if is_beside and not _could_not_hear(observed, journal, name, attempt, first, last):
                    what = f"ran on for {last - first:.2f} s beside attempt {later}"
                    found.wrong("1", f"trial {name} attempt {attempt} {what}")


def _check_life(observed: Observed, journal: Claims, name: str, attempt: int, last: float, found: Found) -> None:
    """A process does not outlive its attempt; of a gang that was lost with another seat, not by more than it takes to hear of that."""
    trial, _ = seat_of(name)
    # Its end may be journaled by the driver, for the loss of a seat behind it.
    if observed.seats > 1 and _could_not_hear(observed, journal, name, attempt, last, last):
        return
    last += observed.clock
    ended_at = journal.ended_at.get((trial, attempt), math.inf)
    over_at = journal.over_at.get((trial, attempt), math.inf) if observed.seats > 1 else math.inf
    what = f"trial {name} attempt {attempt} was alive"
    if last > ended_at + CLOCKS_S:
        found.wrong("4", f"{what} {last - ended_at:.2f} s after its journaled end")
    elif last > over_at + FENCED_S:
        found.wrong("gang", f"{what} {last - over_at:.2f} s after its end")


def _ran_on_the_past(observed: Observed, first: float, last: float) -> bool:
    """Whether a process was started by a claim that Redis forgot, or by a Redis that had forgotten and was not mended yet."""
    return any(begin - SET_BACK_S <= first and last <= end + 2 * FENCED_S for begin, end in observed.forgot)


def _could_not_hear(observed: Observed, journal: Claims, name: str, attempt: int, first: float, last: float) -> bool:
    trial, seat = seat_of(name)
    attempts = journal.attempts.get(trial, [])
    worker = attempts[attempt - 1].workers.get(seat, "") if attempt <= len(attempts) else ""
    return any(
        each.worker == worker and each.begin <= first and last <= each.end + FENCED_S for each in observed.isolations
    )


def _check_keys(observed: Observed, fold: Course, journal: Claims, found: Found) -> None:
    """Nothing is left in Redis that should be gone, and what should be there is."""
    for what in ("leases", "staged"):
        if observed.keys[what]:
            found.wrong("keys", f"{what} still has {observed.keys[what]}")
    for trial, state in observed.keys["trials"].items():
        if state != "ended":
            found.wrong("keys", f"trial {trial} is {state} in Redis")
    for trial in observed.keys.get("lasting", []):
        found.wrong("keys", f"trial {trial} stays in Redis for ever")
    held = observed.keys["checkpoints"]
    kept = {name: lambda name=name: _what_is_broken_in_redis(held[name], journal.states.get(name)) for name in held}
    _check_kept("m-", "in Redis", kept, fold, found)


def _check_store(observed: Observed, fold: Course, journal: Claims, found: Found) -> None:
    paths = observed.store.glob("p-*")
    kept = {path.name: lambda path=path: _what_is_broken(path, journal.states[path.name]) for path in paths}
    _check_kept("p-", "in the store", kept, fold, found)


def _check_kept(prefix: str, where: str, kept: dict[str, Callable[[], str]], fold: Course, found: Found) -> None:
    """Each checkpoint that is named is whole, and no other is left; *kept* says what is wrong with each that is there."""
    named = {one for one in fold.kept if one.startswith(prefix)}
    for checkpoint in sorted(named - kept.keys()):
        found.wrong("9", f"checkpoint {checkpoint} is named, and not {where}")
    for checkpoint in sorted(named & kept.keys()):
        if problem := kept[checkpoint]():
            found.wrong("9", f"checkpoint {checkpoint} is named, and {problem}")
    for checkpoint in sorted(kept.keys() - named):
        found.wrong("keys", f"checkpoint {checkpoint} is {where}, and nothing names it")


def _what_is_broken_in_redis(data: bytes, state: State | None) -> str:
    if state is None:
        return ""
    try:
        _, _, body = msgpack.unpackb(data)
        saved, _ = msgpack.unpackb(body)
    except (ValueError, TypeError) as error:
        return f"can't be read: {error!r}"
    return _what_differs(saved, state)


def _what_is_broken(folder: Path, state: State) -> str:
    try:
        stored = json.loads((folder / "manifest.json").read_bytes())["checkpoint"]
        for file in stored["files"]:
            data = (folder / stored["content"] / file["path"]).read_bytes()
            if len(data) != file["size"] or xxhash.xxh3_128(data).hexdigest() != file["xxh3"]:
                return f"its file {file['path']} is not what was saved"
        saved = json.loads((folder / stored["content"] / "state.json").read_bytes())
    except (OSError, ValueError, KeyError) as error:
        return f"can't be read: {error!r}"
    return _what_differs(saved, state)


def _what_differs(saved: dict[str, int], state: State) -> str:
    return "" if (saved["step"], saved["total"], saved["pid"]) == state else f"has {saved}, and not {state}"
