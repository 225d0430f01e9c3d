"""A driver, its slots and its trials in one small game, to see what a scheduler does with events in any order."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, NamedTuple

from hypothesis import strategies as st

from mqtune.core.events import START, Event, TrialStaged
from mqtune.core.trial import (
    CONTINUE,
    Action,
    Attempt,
    CheckpointId,
    Config,
    Decision,
    Metrics,
    Report,
    SavedCheckpoint,
    Trial,
    TrialId,
    TrialStatus,
    checkpoint_id,
)
from mqtune.schedulers import Choice, Release, Resume, Scheduler, Start, Wait

#: The metrics that a config reports at an iteration; None when it has ended by itself before, an error when it failed.
Curve = Callable[[Config, int], Metrics | Exception | None]

#: A trial with that many attempts is neither lost nor paused by hand: without checkpoints it might never come further.
MAX_LUCKLESS = 8

#: More steps than any game of these tests takes; one that takes more goes round in circles.
MAX_STEPS = 20_000


@dataclass
class Run:
    """An attempt under way: the config of each iteration so far, and the decision that it doesn't know of yet."""

    history: list[Config]
    sequence: int = 0
    ending: Decision | None = None

    @property
    def time(self) -> int:
        return len(self.history)


class Call(NamedTuple):
    """What the scheduler was told (nothing: only a trial changed), and what it said to that and then wanted."""

    method: str
    trial: Trial
    report: Report | None
    answer: Decision | None
    choices: tuple[Choice, Choice]


@dataclass
class Faults:
    """How likely each of these is, whenever a trial is about to do something."""

    fail: float = 0.0
    lose: float = 0.0
    abandon: float = 0.0
    pause: float = 0.0
    resume: float = 0.0
    late: float = 0.0


#: Sources of chance; with one of hypothesis's own a game would ask more of it than it has.
rngs = st.integers(0, 2**32).map(random.Random)

#: Things that go wrong, some of them at once.
some_faults = st.builds(
    Faults,
    fail=st.sampled_from([0, 0.05]),
    lose=st.sampled_from([0, 0.1]),
    abandon=st.sampled_from([0, 0.05]),
    pause=st.sampled_from([0, 0.1]),
    resume=st.sampled_from([0, 0.1]),
    late=st.sampled_from([0, 0.5]),
)


@dataclass
class Play:
    """Plays one experiment: whose turn it is, and what goes wrong, is drawn from *rng*."""

    scheduler: Scheduler
    curve: Curve
    slots: int = 1
    trials: int = 10
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    configs: Callable[[int], Config] = lambda number: {"number": number}
    faults: Faults = field(default_factory=Faults)
    checkpoints: bool = True
    #: Whether to note down what the scheduler was told, for a replay.
    keeps_calls: bool = False
    known: dict[TrialId, Trial] = field(default_factory=dict)
    runs: dict[TrialId, Run] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    #: Each decision and each choice but Wait, in words.
    log: list[str] = field(default_factory=list)
    by_hand: set[TrialId] = field(default_factory=set)
    #: What each checkpoint holds, which is the config of each iteration that led there, and what each trial came to.
    states: dict[CheckpointId, list[Config]] = field(default_factory=dict)
    histories: dict[TrialId, list[Config]] = field(default_factory=dict)
    events: list[Event | Report] = field(default_factory=list)
    shown: list[Report] = field(default_factory=list)

    def run(self) -> Play:
        """Play to the end, when nothing runs and nothing is left to be chosen."""
        for _ in range(MAX_STEPS):
            self.fill()
            if self.runs:
                self.turn(self.rng.choice(sorted(self.runs)))
            elif self.by_hand:
                # What a person paused goes on in the end.
                self.stage(self.known[min(self.by_hand)])
            else:
                return self
        raise AssertionError(f"the game doesn't end: {self.log[-20:]}")

    @property
    def can_start(self) -> bool:
        return len(self.known) < self.trials

    def fill(self) -> None:
        """Ask for choices as long as a slot is free."""
        while len(self.runs) < self.slots:
            choice = self.choices()[0 if self.can_start else 1]
            match choice:
                case Start() if self.can_start:
                    number = len(self.known)
                    trial = Trial(TrialId(f"{number:03d}"), self.configs(number))
                    self.known[trial.id] = trial
                    self.log.append(f"start {trial.id}")
                    self.stage(trial)
                case Resume(name, _, config, source, checkpoint):
                    assert self.known[name].status is TrialStatus.PAUSED
                    self.log.append(f"resume {name}")
                    self.stage(self.known[name], config, source, checkpoint)
                case Release(name, _):
                    assert self.known[name].status is TrialStatus.PAUSED
                    self.log.append(f"release {name}")
                    self.end(self.known[name], TrialStatus.EARLY_STOPPED)
                case Wait() | Start():
                    return
                case _:
                    raise AssertionError(choice)

    def choices(self) -> tuple[Choice, Choice]:
        """What the scheduler wants with and without a config to start; asking changes nothing."""
        wanted = self.scheduler.choose(can_start=True), self.scheduler.choose(can_start=False)
        assert wanted == (self.scheduler.choose(can_start=True), self.scheduler.choose(can_start=False))
        return wanted

    def turn(self, name: TrialId) -> None:
        """Let something happen to a trial that is under way."""
        trial, run, faults = self.known[name], self.runs[name], self.faults
        if self.by_hand and self.happens(faults.resume):
            self.stage(self.known[self.rng.choice(sorted(self.by_hand))])
        if self.happens(faults.resume):
            paused = [t for t in self.known.values() if t.status is TrialStatus.PAUSED]
            if paused:
                self.stage(self.rng.choice(paused))
        if self.happens(faults.abandon):
            open_ = [t for t in self.known.values() if not t.status.is_terminal]
            self.end(self.rng.choice(open_), TrialStatus.ABANDONED)
        elif run.ending is not None:
            self.obey(trial, run, run.ending)
        elif self.happens(faults.fail):
            self.end(trial, TrialStatus.FAILED)
        elif self.happens(faults.lose) and len(trial.attempts) < MAX_LUCKLESS:
            del self.runs[name]
            self.stage(trial)
        elif self.happens(faults.pause) and len(trial.attempts) < MAX_LUCKLESS:
            self.pause(trial)
            self.by_hand.add(name)
        else:
            self.report(trial, run)

    def happens(self, likelihood: float) -> bool:
        return likelihood > 0 and self.rng.random() < likelihood

    def stage(
        self, trial: Trial, config: Config | None = None, source: TrialId | None = None, checkpoint: str | None = None
    ) -> None:
        """Begin an attempt, from a checkpoint if there is one."""
        self.by_hand.discard(trial.id)
        if config is not None:
            trial.config = config
        start = CheckpointId(checkpoint or self.known[source or trial.id].checkpoint)
        number = len(trial.attempts) + 1
        trial.attempts.append(Attempt(number, 0.0, config=trial.config, checkpoint=start, source=source))
        trial.status = TrialStatus.RUNNING
        trial.decision = None
        trial.checkpoint = start
        self.runs[trial.id] = Run(list(self.states.get(start, [])))
        came: dict[str, Any] = {"checkpoint": start, "source": source or ""}
        self.events.append(
            TrialStaged(trial=trial.id, attempt=number, config=trial.config, at=0.0, cursor=START, **came)
        )
        self.tell("on_queue", trial)

    def report(self, trial: Trial, run: Run) -> None:
        """Let a trial report once, or end if it has no more to say."""
        if isinstance(self.curve(trial.config, run.time + 1), Exception):
            self.end(trial, TrialStatus.FAILED)
            return
        report = self.next_report(trial, run)
        if report is None:
            self.end(trial, TrialStatus.COMPLETED)
            return
        self.shown.append(report)
        decision = self.tell("on_report", trial, report)
        assert decision is not None
        self.log.append(f"{trial.id} at {run.time}: {decision.action.name}")
        if decision is not CONTINUE:
            run.ending = decision

    def next_report(self, trial: Trial, run: Run) -> Report | None:
        metrics = self.curve(trial.config, run.time + 1)
        if metrics is None or isinstance(metrics, Exception):
            return None
        run.history.append(trial.config)
        run.sequence += 1
        number = trial.attempt.number
        saved = checkpoint_id(trial.id, number, run.sequence, in_memory=True) if self.checkpoints else CheckpointId("")
        metrics = {"training_iteration": run.time, **metrics}
        if saved:
            trial.checkpoint = saved
            trial.checkpoints[saved] = SavedCheckpoint(saved, 0.0, metrics)
            self.states[saved] = list(run.history)
        report = Report(trial.id, number, run.sequence, 0.0, metrics, saved)
        self.events.append(report)
        return report

    def obey(self, trial: Trial, run: Run, decision: Decision) -> None:
        """Let a trial run on for a while, and then do what was decided."""
        while self.happens(self.faults.late) and self.next_report(trial, run) is not None:
            self.tell("", trial)
        if decision.action is Action.PAUSE:
            self.pause(trial)
        else:
            stopped = decision.action is Action.STOP
            self.end(trial, TrialStatus.EARLY_STOPPED if stopped else TrialStatus.COMPLETED)

    def pause(self, trial: Trial) -> None:
        del self.runs[trial.id]
        trial.status = TrialStatus.PAUSED
        self.tell("on_trial_pause", trial)

    def end(self, trial: Trial, status: TrialStatus) -> None:
        run = self.runs.pop(trial.id, None)
        if run is not None:
            self.histories[trial.id] = run.history
        self.by_hand.discard(trial.id)
        trial.status = status
        if status is TrialStatus.ABANDONED:
            self.tell("on_abandon", trial)
        self.tell("on_trial_end", trial)

    def tell(self, method: str, trial: Trial, report: Report | None = None) -> Decision | None:
        """Tell the scheduler, and note down what was told."""
        answer = None
        if method:
            arguments = (trial,) if report is None else (trial, report)
            answer = getattr(self.scheduler, method)(*arguments)
        if self.keeps_calls:
            self.calls.append(Call(method, snapshot(trial), report, answer, self.choices()))
        return answer

    def check_end(self) -> None:
        """Check that nobody was forgotten: each trial that could start did, and has ended."""
        assert len(self.known) == self.trials
        assert all(trial.status.is_terminal for trial in self.known.values()), self.statuses

    @property
    def statuses(self) -> dict[str, str]:
        return {name: trial.status.name for name, trial in self.known.items()}

    def reached(self, name: str) -> int:
        """The latest iteration that a trial has shown."""
        return max((r.metrics["training_iteration"] for r in self.shown if r.trial == name), default=0)


def snapshot(trial: Trial) -> Trial:
    """A trial as it is now."""
    attempts = [replace(attempt) for attempt in trial.attempts]
    return replace(trial, attempts=attempts, checkpoints=dict(trial.checkpoints))


def told(choice: Choice) -> str:
    """Return a choice in words, without its reason."""
    return " ".join([type(choice).__name__, *(choice[:1] if isinstance(choice, Resume | Release) else ())])


def scattered(number: int, time: int, *, values: int = 1000) -> float:
    """A score without any order in it, the same for the same arguments."""
    return random.Random(f"{number} {time}").randrange(values)


def rough(config: dict[str, Any], time: int) -> Metrics:
    """Scores with many ties, and with NaN and infinities among them."""
    value = scattered(config["number"], time, values=6)
    return {"loss": {4: math.nan, 5: math.inf}.get(value, value)}


def partial(config: dict[str, Any], time: int) -> Metrics | None:
    """Rough scores, which some reports lack, of trials that end by themselves."""
    return None if time > 12 else {} if scattered(config["number"], time + 100, values=6) == 0 else rough(config, time)


class Score(float):
    """A score whose comparisons run Python code, so that those inside ``heapq``, ``bisect`` and ``sorted`` are counted too."""

    def __lt__(self, other: float) -> bool:
        return float(self) < float(other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and float(self) == float(other)

    def __hash__(self) -> int:
        return hash(float(self))

    def __neg__(self) -> Score:
        return Score(-float(self))


def counted(kind: type[Any], *arguments: Any, **options: Any) -> Any:
    """Make a scheduler whose comparisons of scores are counted."""

    class Counted(kind):  # type: ignore[misc]
        def _score(self, report: Report, value: object) -> float:
            return Score(super()._score(report, value))

    return Counted(*arguments, **options)


def work(scheduled: Callable[[], object], done: Callable[[], object]) -> int:
    """Return how many steps of bytecode *done* takes after *scheduled*, which load on the machine does not change."""
    steps = 0

    def count(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    scheduled()
    before = sys.gettrace()
    sys.settrace(count)
    try:
        done()
    finally:
        sys.settrace(before)
    return steps
