"""What holds in the order in which a driver takes events in: what becomes of trials, and what its scheduler is told."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from counting import BLAMES
from observed import Entry, Found, Observed, Row, cursor_of, written_at

#: How long after the answer that all is stopped a trial may still come to its own end, in seconds, on a loaded machine.
_STOPPED_S: Final = 8.0
#: Attempts in a row of a trial that may be lost, or requeued before a report, without coming further, before it counts as failed.
_LOST_BUDGET: Final = 5
_TERMINAL: Final = frozenset({"COMPLETED", "EARLY_STOPPED", "FAILED", "ABANDONED"})
#: The intents that end an attempt so that its trial runs again.
_TAKES_BACK: Final = frozenset({"hand_back", "give_way"})
_AFTER_DECISION: Final = {
    "stop": "EARLY_STOPPED",
    "pause": "PAUSED",
    "complete": "COMPLETED",
    "abandon": "ABANDONED",
    "fail": "FAILED",
}


class _Trial:
    def __init__(self) -> None:
        self.status = "CANDIDATE"
        self.ends: list[str | None] = []
        self.intent = self.decision = ""
        #: Where each attempt has run, and where its device was broken.
        self.places: dict[int, tuple[str, ...]] = {}
        self.broken: set[tuple[str, ...]] = set()
        self.blames = False
        self.failures = self.gone = 0
        self.iteration = self.reached = 0
        self.shown = self.last_shown = 0
        self.checkpoint = ""
        self.checkpoints: dict[str, None] = {}


class Course:
    """What becomes of trials, and what a scheduler must have been told."""

    def __init__(self, found: Found, observed: Observed) -> None:
        self._found = found
        self._observed = observed
        self.trials: dict[str, _Trial] = defaultdict(_Trial)
        #: The calls that a scheduler must have had, in this order.
        self.calls: list[tuple[Any, ...]] = []
        #: Reports for which the scheduler ended an attempt.
        self.decided: set[tuple[str, int, int]] = set()
        #: Trials that somebody has asked for.
        self.added: set[str] = set()
        self._dropped: set[str] = set()
        #: Checkpoints that trials did not go on from, as they were lost, until the journal says so.
        self._must_be_lost: dict[str, str] = {}
        self._last: Entry | None = None
        self._outcome = ""
        #: The requests that change what is in force once they are answered: their actions and arguments.
        self._asked: dict[str, tuple[str, dict[str, Any]]] = {}
        #: How many trials there were to be, at each time.
        self._limits = [observed.max_trials]
        #: The answer to the request by which the experiment ends, and what is then stopped.
        self._ending: Entry | None = None
        self._ends_now = self._was_ended = False

    def _wrong(self, promise: str, entry: Entry, what: str) -> None:
        self._found.wrong(promise, what, entry)

    def take(self, entry: Entry) -> None:
        body = entry.body
        match entry.kind:
            case "report":
                self._report(entry, body)
            case "staged":
                self._stage(entry, body)
            case "started":
                trial = self.trials[body["trial"]]
                trial.places[body["attempt"]] = (body["worker"], *body.get("devices", []))
                if body["attempt"] == len(trial.ends) and trial.ends[-1] is None:
                    self._become(entry, body["trial"], "RUNNING")
            case "decided":
                self._decide(entry, body)
            case "ended":
                self._end(entry, body)
            case "saved":
                trial = self.trials[body["trial"]]
                if body["attempt"] == len(trial.ends) and trial.ends[-1] is None:
                    self._keep(trial, body["checkpoint"])
            case "dropped":
                self._drop(entry, body)
            case "trial_closed":
                self._become(entry, body["trial"], body["status"].upper())
                self._tell(body["trial"])
            case "requested":
                self._asked.setdefault(body["id"], (body["action"], body["arguments"]))
            case "answered" if body["done"]:
                self._put_in_force(entry, *self._asked.get(body["id"], ("", {})))
            case "closed":
                self._close(entry, body["outcome"])
        if cursor_of(entry) is None:
            self._last = entry

    def _put_in_force(self, entry: Entry, action: str, arguments: dict[str, Any]) -> None:
        if action == "set" and "max_trials" in arguments:
            self._limits.append(arguments["max_trials"])
        elif action == "end":
            self._ends_now = bool(arguments.get("now"))
            self._ending = entry

    def _close(self, entry: Entry, outcome: str) -> None:
        self._outcome = outcome
        if outcome != "finished":
            return
        for id_, trial in self.trials.items():
            if trial.status not in _TERMINAL:
                self._wrong("terminal", entry, f"the experiment is finished, and trial {id_} is {trial.status}")
        self._was_ended = self._ending is not None
        self._ending = None

    def _become(self, entry: Entry, trial: str, status: str) -> None:
        before = self.trials[trial].status
        if before in _TERMINAL:
            self._wrong("terminal", entry, f"trial {trial} is {before}, and becomes {status}")
        self.trials[trial].status = status

    def _tell(self, trial: str) -> None:
        status = self.trials[trial].status
        if status in _TERMINAL:
            self.calls.append(("end", trial, status))
        elif status == "PAUSED":
            self.calls.append(("pause", trial))

    @staticmethod
    def _keep(trial: _Trial, checkpoint: str) -> None:
        trial.checkpoint = checkpoint
        trial.checkpoints[checkpoint] = None

    def _report(self, entry: Entry, row: Row) -> None:
        trial = self.trials[row.trial]
        is_current = row.attempt == len(trial.ends) and trial.ends[-1] is None
        if row.checkpoint and is_current:
            self._keep(trial, row.checkpoint)
        if is_current and not trial.decision:
            trial.shown += 1
            trial.last_shown = row.sequence
            trial.iteration = row.metrics.get("training_iteration", trial.shown)
            self.calls.append(("report", row.trial, row.attempt, row.sequence))
        elif not is_current and not trial.decision and trial.intent not in _TAKES_BACK:
            self._wrong("3", entry, f"{row[:3]} is accepted, and never shown")

    def _stage(self, entry: Entry, body: dict[str, Any]) -> None:
        trial = self.trials[body["trial"]]
        checkpoint = body.get("checkpoint", "")
        if checkpoint in self._dropped:
            self._wrong("9", entry, f"it goes on from {checkpoint}, which was given up")
        if trial.ends and body.get("by") == "driver" and checkpoint != trial.checkpoint:
            if self._observed.forgot and trial.checkpoint.startswith("m-"):
                # Its driver has just put the journal back, which says further on that this is lost.
                self._must_be_lost[trial.checkpoint] = body["trial"]
            else:
                self._wrong("7", entry, f"it goes on from {checkpoint!r}, and not {trial.checkpoint!r}")
        if self._ending is not None:
            self._wrong("end", entry, "it is staged, and the experiment was to end")
        if body["attempt"] == 1 and body.get("request"):
            self.added.add(body["trial"])
        self._become(entry, body["trial"], "QUEUED")
        trial.blames = body["config"].get("mischief") == BLAMES
        trial.ends.append(None)
        trial.intent = trial.decision = ""
        trial.last_shown = 0
        trial.checkpoint = checkpoint
        self.calls.append(("stage", body["trial"], body["attempt"]))

    def _decide(self, entry: Entry, body: dict[str, Any]) -> None:
        trial = self.trials[body["trial"]]
        if body["attempt"] != len(trial.ends):
            return
        is_asked_for = self._ends_now or body.get("request") or trial.status != "RUNNING"
        if self._ending is not None and body.get("by") == "user" and not is_asked_for:
            self._wrong("end", entry, "it is stopped, and was to run to its end")
        trial.intent = body["intent"]
        if body["intent"] not in _TAKES_BACK:
            trial.decision = body["action"]
        if body.get("by") != "scheduler":
            return
        self.decided.add((body["trial"], body["attempt"], body["sequence"]))
        row = self._last.body if self._last is not None and self._last.kind == "report" else None
        if row is None or (row.trial, row.attempt, row.sequence) != (body["trial"], body["attempt"], body["sequence"]):
            self._wrong("3", entry, f"it is told to {body['action']} for a report that is not the last shown")

    def _end(self, entry: Entry, body: dict[str, Any]) -> None:
        trial = self.trials[body["trial"]]
        if body["attempt"] > len(trial.ends) or trial.ends[body["attempt"] - 1] is not None:
            return
        trial.ends[body["attempt"] - 1] = end = body["end"]
        self._check_stopped(entry, trial, end)
        if body["attempt"] == len(trial.ends):
            is_broken = body.get("error_type") == "DeviceBroken"
            place = trial.places.get(body["attempt"], ()) if is_broken else ()
            status = self._status_after(trial, end, place)
            if status == "FAILED" and is_broken and not trial.blames:
                self._wrong("device", entry, "it is given up, and its devices were broken")
            self._become(entry, body["trial"], status)
            self._tell(body["trial"])

    def _check_stopped(self, entry: Entry, trial: _Trial, end: str) -> None:
        """A trial that was to be stopped does not run to its end, unless its driver may have been held up."""
        if self._ending is None or not self._ends_now or self._observed.may_be_undriven:
            return
        if end == "completed" and not trial.decision and written_at(entry) > written_at(self._ending) + _STOPPED_S:
            self._wrong("end", entry, "it runs to its end, and all was to be stopped")

    def _status_after(self, trial: _Trial, end: str, broken: tuple[str, ...]) -> str:
        """Return what becomes of a trial when its attempt has ended; *broken* is where, if its device was broken."""
        elsewhere = bool(broken) and bool(trial.broken - {broken})
        if broken:
            trial.broken.add(broken)
        gone = end == "lost" or (end == "handed_back" and (broken or not trial.last_shown))
        if trial.decision:
            trial.reached = trial.gone = 0
            return _AFTER_DECISION[trial.decision]
        if end == "completed":
            return "COMPLETED"
        if trial.intent in _TAKES_BACK:
            return "QUEUED"
        if end == "stopped":
            return "EARLY_STOPPED"
        if end == "failed" or elsewhere:
            trial.failures += 1
            self._set_back(trial)
            return "FAILED" if trial.failures > self._observed.max_failures else "QUEUED"
        if gone:
            self._set_back(trial)
            trial.gone += 1
        return "FAILED" if trial.gone > _LOST_BUDGET else "QUEUED"

    @staticmethod
    def _set_back(trial: _Trial) -> None:
        if trial.iteration > trial.reached:
            trial.reached, trial.gone = trial.iteration, 0

    def _drop(self, entry: Entry, body: dict[str, Any]) -> None:
        for checkpoint in body["checkpoints"]:
            self._dropped.add(checkpoint)
            self._must_be_lost.pop(checkpoint, None)
            for id_, trial in self.trials.items():
                trial.checkpoints.pop(checkpoint, None)
                if trial.checkpoint != checkpoint:
                    continue
                trial.checkpoint = next(reversed(trial.checkpoints), "")
                was_lost = self._observed.forgot and checkpoint.startswith("m-")
                if trial.status not in _TERMINAL and not was_lost:
                    self._wrong("9", entry, f"checkpoint {checkpoint} is given up, and trial {id_} would go on from it")

    @property
    def kept(self) -> set[str]:
        """The checkpoints that there must be in the end."""
        return {checkpoint for trial in self.trials.values() for checkpoint in trial.checkpoints}

    def check_end(self) -> None:
        """Hold what is left at the end against what must be."""
        for checkpoint, id_ in self._must_be_lost.items():
            self._found.wrong("7", f"trial {id_} did not go on from {checkpoint}, which was not lost")
        for id_, trial in self.trials.items():
            if trial.status not in _TERMINAL:
                self._found.wrong("terminal", f"trial {id_} is {trial.status} in the end")
        # Some may have begun before a lower limit came; and one that was ended needs none at all.
        fewest = 0 if self._was_ended else self._limits[-1]
        if not fewest <= len(self.trials) - len(self.added) <= max(self._limits):
            self._found.wrong(
                "terminal",
                f"there are {len(self.trials)} trials, and not {self._limits[-1]} and {len(self.added)} that were added",
            )
        if self._outcome != "finished":
            self._found.wrong("terminal", f"the experiment has ended as {self._outcome!r}")
