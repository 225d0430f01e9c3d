"""What holds in the order in which Redis took the journal's entries: attempts, claims, reports, ends, cursors."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from counting import BLAMES, ECC, term
from observed import BEGINNING, CLOCKS_S, Entry, Found, Observed, Row, Violation, cursor_of, place_of, rows, written_at

#: What a worker says of an attempt that it hands back by the experiment's policy.
NOBODY_DRIVES: Final = "nobody drives the experiment any more"
#: What it says of a trial that has written what no trial may write.
NOISE: Final = "Noise"
#: How long after that it may still report: a heartbeat, a step, and a machine that does much else, in seconds.
STOPPED_S: Final = 4.0
#: How long after a device was found broken an attempt may start that was on its way to the slot, in seconds.
ON_ITS_WAY_S: Final = 1.0
#: Of a trial, or in a checkpoint: the step, the sum, and the process that has counted so far.
State = tuple[int, int, int]


class _Attempt:
    def __init__(self, staged: dict[str, Any], origin: State) -> None:
        self.config = staged["config"]
        self.checkpoint = staged.get("checkpoint", "")
        #: What it begins with.
        self.origin = self.state = origin
        #: The worker of each seat that has started, and the devices that seat 0 has there.
        self.workers: dict[int, str] = {}
        self.device = ""
        self.reports = 0
        self.is_ended = self.is_decided = False

    @property
    def worker(self) -> str:
        """The worker of seat 0; empty before the claim."""
        return self.workers.get(0, "")


class Claims:
    """Attempts, claims, reports and ends in the order in which Redis took them."""

    def __init__(self, found: Found, observed: Observed) -> None:
        self._found = found
        self._observed = observed
        self.attempts: dict[str, list[_Attempt]] = defaultdict(list)
        #: What is in each checkpoint that there ever was.
        self.states: dict[str, State] = {}
        self.ended_at: dict[tuple[str, int], float] = {}
        #: When each attempt has ended, whoever has said so.
        self.over_at: dict[tuple[str, int], float] = {}
        #: The start that must come next: that of the next seat of a gang.
        self._next_start: tuple[str, int, int] | None = None
        #: When a broken device of a worker was found so, and of which devices the experiment has said it.
        self._found_broken: dict[tuple[str, str], float] = {}
        self._said_broken: set[tuple[str, str]] = set()
        #: Ends that nobody had journaled, and when they were.
        self._undecided: dict[tuple[str, int], tuple[Violation, float]] = {}
        self._times: dict[str, float] = defaultdict(float)
        self._written = BEGINNING
        self._sizes: dict[str, int] = {"0-0": 0}

    def _wrong(self, promise: str, entry: Entry, what: str) -> None:
        self._found.wrong(promise, what, entry)

    def take(self, entry: Entry) -> None:
        self._check_cursor(entry)
        self._check_block(entry)
        body = entry.body
        if entry.kind == "reports":
            reports = list(rows(body))
            by_policy = self._observed.on_loss == "stop" and self._observed.only_drivers
            if by_policy and self._was_undriven(entry, STOPPED_S):
                self._wrong(
                    "loss", entry, f"reports come {STOPPED_S:g} s after workers were to stop for want of a driver"
                )
            self._sizes[entry.id] = len(reports)
            for row in reports:
                self._report(entry, row)
            return
        if cursor_of(entry) is None:
            self._sizes[entry.id] = 0
        match entry.kind:
            case "staged":
                self._stage(entry, body)
            case "started":
                self._start(entry, body)
            case "ended":
                self._end(entry, body)
            case "decided" if attempt := self._current(entry, body["trial"], body["attempt"], "1"):
                attempt.is_decided = True
                self._decided_before(body)
            case "saved" if attempt := self._running(entry, body["trial"], body["attempt"]):
                self.states.setdefault(body["checkpoint"], attempt.state)
            case "trial_closed" if not self.attempts[body["trial"]][-1].is_ended:
                self._wrong("4", entry, "its attempt is under way")

    def _check_cursor(self, entry: Entry) -> None:
        cursor = cursor_of(entry)
        if cursor is None:
            return
        if place_of(cursor[0]) >= place_of(entry.id):
            self._wrong("6", entry, f"its cursor {cursor} is not behind it")
        elif cursor[0] not in self._sizes or cursor[1] > self._sizes[cursor[0]]:
            self._wrong("6", entry, f"its cursor {cursor} names what is not in the journal")
        if (place_of(cursor[0]), cursor[1]) < (place_of(self._written[0]), self._written[1]):
            self._wrong("6", entry, f"its cursor {cursor} is before {self._written}: its driver had been replaced")
        self._written = cursor

    def _check_block(self, entry: Entry) -> None:
        """The starts of all seats of an attempt come behind one another, from seat 0 on, and nothing in between."""
        expected, self._next_start = self._next_start, None
        came = None
        if entry.kind == "started":
            trial, attempt, seat = came = entry.body["trial"], entry.body["attempt"], entry.body.get("seat", 0)
            if seat + 1 < self._observed.seats:
                self._next_start = trial, attempt, seat + 1
        if expected is not None and came != expected:
            self._wrong("gang", entry, f"it stands where trial, attempt and seat {expected} must start")
        elif came is not None and expected is None and came[2]:
            self._wrong("gang", entry, f"seat {came[2]} starts, and not the seats before it")

    def check_end(self) -> None:
        """Hold what is left at the end against what must be."""
        if self._next_start is not None:
            trial, attempt, seat = self._next_start
            self._found.wrong(
                "gang", f"trial {trial} attempt {attempt} seat {seat} does not start, and seat {seat - 1} has"
            )

    def _current(self, entry: Entry, trial: str, number: int, promise: str) -> _Attempt | None:
        attempts = self.attempts[trial]
        if not attempts or number != len(attempts):
            self._wrong(promise, entry, f"of trial {trial} attempt {number}, and the current one is {len(attempts)}")
            return None
        return attempts[-1]

    def _running(self, entry: Entry, trial: str, number: int) -> _Attempt | None:
        attempt = self._current(entry, trial, number, "1")
        if attempt is None or (attempt.worker and not attempt.is_ended):
            return attempt
        how = "has ended" if attempt.is_ended else "is not claimed"
        self._wrong("1", entry, f"trial {trial} attempt {number} {how}")
        return None

    def _stage(self, entry: Entry, body: dict[str, Any]) -> None:
        attempts = self.attempts[body["trial"]]
        if body["attempt"] != len(attempts) + 1:
            self._wrong("1", entry, f"it follows attempt {len(attempts)}")
        if attempts and not attempts[-1].is_ended:
            self._wrong("1", entry, f"attempt {len(attempts)} has not ended")
        checkpoint = body.get("checkpoint", "")
        if checkpoint and checkpoint not in self.states:
            self._wrong("9", entry, f"checkpoint {checkpoint} has never been named before")
        attempts.append(_Attempt(body, self.states.get(checkpoint, (0, 0, 0))))

    def _start(self, entry: Entry, body: dict[str, Any]) -> None:
        attempt = self._current(entry, body["trial"], body["attempt"], "1")
        if attempt is None:
            return
        seat, worker = body.get("seat", 0), body["worker"].partition("@")[0]
        if seat in attempt.workers or attempt.is_ended:
            self._wrong("1", entry, "it is claimed a second time")
        if self._observed.are_apart and worker in attempt.workers.values():
            self._wrong("gang", entry, f"it has two seats on worker {worker}")
        if self._observed.on_loss != "continue" and self._was_undriven(entry, CLOCKS_S):
            self._wrong("loss", entry, "it starts, and nobody drives")
        # Its Celery node name has the host behind it.
        attempt.workers[seat] = worker
        if not seat:
            attempt.device = ",".join(body.get("devices", []))
            self._check_quarantine(entry, attempt)

    def _report(self, entry: Entry, row: Row) -> None:
        attempt = self._running(entry, row.trial, row.attempt)
        if attempt is None:
            return
        where = f"trial {row.trial} attempt {row.attempt} report {row.sequence}"
        if row.sequence != attempt.reports + 1:
            self._wrong("2", entry, f"{where} follows report {attempt.reports}")
        attempt.reports = row.sequence
        if row.timestamp < self._times[row.trial]:
            self._wrong("2", entry, f"{where} is older than one before it")
        self._times[row.trial] = row.timestamp
        step = attempt.origin[0] + row.sequence
        metrics = row.metrics
        state = step, attempt.state[1] + term(attempt.config, step)
        said = metrics.get("step"), metrics.get("total")
        began = metrics.get("from_step"), metrics.get("from_total"), metrics.get("from_pid")
        if began != attempt.origin:
            self._wrong("7", entry, f"{where} went on from {began}, and not from {attempt.origin}")
        if said != state or (metrics.get("trial"), metrics.get("attempt")) != (row.trial, row.attempt):
            self._wrong("2", entry, f"{where} says {metrics}, and not step and sum {state}")
        if attempt.reports > 1 and metrics.get("pid") != attempt.state[2]:
            self._wrong("2", entry, f"{where} is by process {metrics.get('pid')}, and the last by {attempt.state[2]}")
        attempt.state = *state, metrics.get("pid", 0)
        if row.checkpoint and self.states.setdefault(row.checkpoint, attempt.state) != attempt.state:
            self._wrong("9", entry, f"{where} names {row.checkpoint}, which is {self.states[row.checkpoint]}")

    def _end(self, entry: Entry, body: dict[str, Any]) -> None:
        trial, number, end = body["trial"], body["attempt"], body["end"]
        attempt = self._current(entry, trial, number, "1")
        if attempt is None:
            return
        if attempt.is_ended:
            self._wrong("1", entry, "it ends a second time")
        attempt.is_ended = True
        self.over_at[trial, number] = written_at(entry)
        if body.get("error_type") == "CheckpointExists":
            self._wrong("9", entry, "it has a checkpoint's id a second time")
        by_worker = cursor_of(entry) is None
        if by_worker:
            # The end of what Redis has forgotten is no word of its worker, whose process lives until it hears of it.
            if body.get("error_type") != "forgotten":
                # What nobody had read when Redis was set back has come back with ids that follow the last one read.
                was_set_back = self._observed.forgot and "at" in body
                self.ended_at[trial, number] = max(written_at(entry), body["at"] if was_set_back else 0.0)
            # What Redis has lost ends as lost, whether it was claimed or not.
            was_forgotten = end == "lost" and self._observed.forgot
            if not attempt.worker and not was_forgotten:
                self._wrong("1", entry, "it is ended by a worker that never claimed it")
        seen = self._observed
        no_store = seen.store_was_away and body.get("error_type") == "StoreUnavailable"
        may_leave = not seen.leavers.isdisjoint(attempt.workers.values()) or self._is_undriven(body) or no_store
        given_back = self._is_broken(entry, attempt) or (end == "handed_back" and may_leave)
        # A worker ends an attempt whose task is revoked, and tells the driver.
        is_revoked = (trial, number) in seen.revoked
        told = attempt.is_decided or given_back or (is_revoked and end == "stopped")
        if end in ("stopped", "paused", "handed_back") and not told:
            self._wrong("5", entry, f"it is {end}, which nobody had journaled")
            self._undecided[trial, number] = self._found[-1], body.get("at", 0.0)
        # Its worker kills a trial that has written into its pipe.
        by_itself = attempt.config.get("mischief") == "noise" and body.get("error_type") == NOISE
        is_gone = end in ("lost", "handed_back") or (end == "failed" and body.get("signal") and not by_itself)
        may_go = attempt.is_decided or is_revoked or seen.may_lose or self._is_undriven(body)
        if is_gone and not may_go:
            self._wrong("6", entry, f"it is {end}, and no worker or trial was touched")

    def _decided_before(self, body: dict[str, Any]) -> None:
        """Take back that an end was not journaled: a Redis that was set back had lost that, and its driver brought it back after the worker's."""
        wrong, ended_at = self._undecided.pop((body["trial"], body["attempt"]), (None, 0.0))
        if wrong is not None and self._observed.forgot and body["at"] <= ended_at:
            self._found.remove(wrong)

    def _is_broken(self, entry: Entry, attempt: _Attempt) -> bool:
        """Whether an attempt is handed back because its device is broken, or is said to be."""
        body = entry.body
        if ECC not in body.get("error", ""):
            return False
        seat = attempt.worker.removeprefix("w").partition("-")[0]
        at = written_at(entry) - self._observed.clock
        broken = [each for each in self._observed.broken if (str(each.seat), each.device) == (seat, attempt.device)]
        is_broken = any(each.error == ECC and each.begin < at for each in broken)
        if not is_broken and attempt.config.get("mischief") != BLAMES:
            self._wrong("device", entry, f"it has failed on device {attempt.device}, which was whole")
        if body["end"] == "failed":
            self._wrong("device", entry, f"it has failed, and its device {attempt.device} is broken")
        if body["end"] != "handed_back":
            return False
        # An experiment that says so of a second device is taken to be wrong about it.
        self._said_broken.add((attempt.worker, attempt.device))
        if is_broken and len(self._said_broken) == 1:
            self._found_broken.setdefault((attempt.worker, attempt.device), written_at(entry))
        return True

    def _check_quarantine(self, entry: Entry, attempt: _Attempt) -> None:
        """A device that is found broken takes no attempt for a while, but what its slot has already."""
        found_at = self._found_broken.get((attempt.worker, attempt.device))
        if found_at is None:
            return
        late_s = written_at(entry) - found_at
        if ON_ITS_WAY_S < late_s < self._observed.pause_s - CLOCKS_S:
            device = f"device {attempt.device} of {attempt.worker}"
            self._wrong("device", entry, f"it starts on {device} {late_s:.1f} s after that was found broken")

    def _was_undriven(self, entry: Entry, since_s: float) -> bool:
        """Whether nobody had driven the experiment for so long when an entry was written."""
        at = written_at(entry) - self._observed.clock
        return any(begin + since_s < at < end for begin, end in self._observed.undriven)

    def _is_undriven(self, body: dict[str, Any]) -> bool:
        """Whether an attempt ended because nobody drove the experiment, and that may have been so."""
        # One that had failed by itself before its worker could hear of it says that.
        says_so = body.get("error") == NOBODY_DRIVES or bool(body.get("error_type"))
        by_policy = body["end"] == "handed_back" and says_so
        return by_policy and self._observed.on_loss == "stop" and self._observed.may_be_undriven
