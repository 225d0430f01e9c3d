"""Reads policies of population-based training from the journal, and replays them.

A policy is the sequence of configs that led to the state of a trial, with the time of each change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from mqtune.core.checks import number
from mqtune.core.errors import ConfigurationError
from mqtune.core.events import CheckpointSaved, Event, Reports, TrialStaged
from mqtune.core.registry import Description
from mqtune.core.trial import ITERATION, Action, Config, Decision, Report, Trial, TrialId, is_number
from mqtune.schedulers.base import START, Choice, Release, Resume, Wait
from mqtune.schedulers.timed import Progress, TimedScheduler, Waiting
from mqtune.search.space import Space
from mqtune.search.values import copy_value, is_same

_WAIT: Final = Wait("no new trial can start, and no trial waits for the next step of the policy")


class PolicyStep(NamedTuple):
    """One config of a policy."""

    #: The time at which training with this config began: that of the checkpoint, 0 for the first step.
    time: float
    config: Config
    #: The trial that was trained with it. It is another trial if its state was copied later.
    trial: TrialId = TrialId("")


class _Origin(NamedTuple):
    """The attempt that saved a checkpoint, and the checkpoint's time."""

    attempt: tuple[TrialId, int]
    time: float


def policy_of(events: Iterable[Event | Report], trial: str, *, time_attr: str = ITERATION) -> list[PolicyStep]:
    """Return the configs that led to the state of *trial*, in order.

    They include the configs of trials whose checkpoints were copied. A trial that copied nothing has one step. Steps
    without training, and resumes with the same config, are left out.

    Args:
        events: the journal's events, in order, for example from ``mqtune.results.experiments.saved_events``.
        trial: the trial's id.
        time_attr: the reports' key of the time. For a report without it, the sequence number counts.

    Raises:
        ConfigurationError: the journal lacks the trial, or a checkpoint that it continued from.
    """
    staged: dict[tuple[str, int], TrialStaged] = {}
    reached: dict[tuple[str, int], float] = {}
    origins: dict[str, _Origin] = {"": _Origin((TrialId(""), 0), 0)}
    last = 0
    for event in _one_by_one(events):
        if isinstance(event, TrialStaged):
            staged[event.trial, event.attempt] = event
            # An attempt begins with the time of its checkpoint.
            origin = origins.get(event.checkpoint)
            reached[event.trial, event.attempt] = origin.time if origin else 0
            last = event.attempt if event.trial == trial else last
        elif isinstance(event, Report):
            time = event.metrics.get(time_attr)
            if not is_number(time) or not math.isfinite(time):
                # A report with an invalid time leaves the trial's time as it was.
                time = event.sequence if time is None else reached.get((event.trial, event.attempt), 0)
            reached[event.trial, event.attempt] = time
            if event.checkpoint:
                origins[event.checkpoint] = _Origin((event.trial, event.attempt), time)
        elif isinstance(event, CheckpointSaved):
            attempt = (event.trial, event.attempt)
            origins.setdefault(event.checkpoint, _Origin(attempt, reached.get(attempt, 0)))
    return _lineage(trial, last, staged, origins)


def _one_by_one(events: Iterable[Event | Report]) -> Iterable[Event | Report]:
    for event in events:
        if isinstance(event, Reports):
            yield from event
        else:
            yield event


def _lineage(
    trial: str, last: int, staged: dict[tuple[str, int], TrialStaged], origins: dict[str, _Origin]
) -> list[PolicyStep]:
    if not last:
        known = ", ".join(sorted({name for name, _ in staged})) or "none"
        raise ConfigurationError(f"the journal has no trial {trial!r}; there are {known}")
    steps: list[PolicyStep] = []
    at: tuple[str, int] = (trial, last)
    while at[1]:
        attempt = staged[at]
        origin = origins.get(attempt.checkpoint)
        if origin is None:
            raise ConfigurationError(
                f"attempt {at[1]} of trial {at[0]} began from checkpoint {attempt.checkpoint!r}, which the journal "
                "lacks"
            )
        # Skip a step without training: the next step began at the same time.
        if not steps or origin.time < steps[-1].time:
            step = PolicyStep(origin.time, attempt.config, TrialId(at[0]))
            if steps and is_same(steps[-1].config, step.config):
                steps.pop()
            steps.append(step)
        at = origin.attempt
    return steps[::-1]


class _ReplayedTrial(Progress):
    __slots__ = ("index", "is_due", "order", "trial")

    def __init__(self, trial: Trial, order: int) -> None:
        super().__init__(math.inf)
        self.trial = trial
        self.order = order
        #: The number of the trial's current step.
        self.index = 0
        #: Whether the trial has been told to pause for the next step.
        self.is_due = False


class PBTReplay(TimedScheduler[_ReplayedTrial]):
    """Repeats a policy of population-based training: trials change configs at its times.

    **The rule.** A trial begins with the policy's first config. At its first report at or after the next step's time it
    is paused, and resumed from its own newest checkpoint with the step's config. Trials end only by themselves or by a
    stop rule. All trials of the experiment follow the policy, for instance with several seeds.

    Give the policy's first config as the space::

        replay = PBTReplay(policy_of(events, "0007"))
        Tuner(train, space=replay.config, scheduler=replay, …)

    - *The metric* doesn't matter, even if it is NaN.
    - *A report that skips steps* leads to the latest step that it has reached.
    - *A late or repeated report* changes nothing, and the trial's last decision is returned.
    - *A trial that fails* and is retried keeps its config.
    - *A trial without a checkpoint* at a step is stopped early, and its reason says so.
    - *By hand*: a trial that a person pauses stays paused until a person resumes it. A trial that a person starts with
      another config than the policy's first never follows the policy.

    **Cost.** A report costs two dict look-ups.

    Args:
        policy: the policy's steps, in order. The first one begins at time 0.
        time_attr: the reports' key of the time, as in the ``PBT`` that found the policy.
    """

    kind = "pbt_replay"
    takes_several = True

    def __init__(self, policy: Sequence[PolicyStep], *, time_attr: str = ITERATION) -> None:
        super().__init__(time_attr)
        self._policy = _checked(policy)
        self._waiting = Waiting()
        self._enrolled = 0

    @property
    def config(self) -> Config:
        config: Config = copy_value(self._policy[0].config)
        return config

    def check_space(self, space: Space) -> None:
        """Check that the policy's first config is in the space."""
        space.check(self.config, partial=False)

    def on_queue(self, trial: Trial) -> None:
        """Let *trial* run to the next step.

        Raises:
            ConfigurationError: the searcher has suggested another config than the policy's first.
        """
        follows = trial.id in self._progress or is_same(trial.attempt.config, self._policy[0].config)
        by_hand = bool(trial.history) and trial.history[0].by == "user"
        if not follows and not by_hand:
            raise ConfigurationError(
                f"PBTReplay: trial {trial.id} begins with {trial.attempt.config!r}, and the policy with "
                f"{self._policy[0].config!r}; give replay.config as the space"
            )
        course = self._queued(trial)
        if course is None:
            return
        if trial.id in self._waiting:
            self._waiting.discard(trial.id)
            course.index += 1
        if not follows:
            course.index = len(self._policy)
        course.is_due = False
        course.next_level = self._time_of(course.index + 1)

    def on_trial_pause(self, trial: Trial) -> None:
        course = self._progress.get(trial.id)
        if course is not None and course.is_due and trial.id not in self._waiting:
            self._waiting.add(trial.id, (course.order,))

    def choose(self, *, can_start: bool) -> Choice:
        """Return the resume of a trial that waits for its next step, else a start."""
        first = self._waiting.first
        if first is None:
            return START if can_start else _WAIT
        course = self._progress[first]
        step = self._policy[course.index + 1]
        if not course.trial.checkpoints:
            return Release(first, f"has no checkpoint to go on from, as the policy wants it at {step.time}")
        return Resume(first, f"step {course.index + 2} of the policy", copy_value(step.config))

    def on_trial_end(self, trial: Trial) -> None:
        super().on_trial_end(trial)
        self._waiting.discard(trial.id)

    def describe(self) -> Description:
        policy = [[step.time, copy_value(step.config)] for step in self._policy]
        return {self.role: self.kind, "policy": policy, "time_attr": self._time_attr}

    @classmethod
    def from_arguments(cls, arguments: Description) -> Self:
        return cls(**arguments | {"policy": [PolicyStep(time, config) for time, config in arguments["policy"]]})

    def _enrol(self, trial: Trial) -> _ReplayedTrial:
        self._enrolled += 1
        return _ReplayedTrial(trial, self._enrolled)

    def _time_of(self, index: int) -> float:
        return self._policy[index].time if index < len(self._policy) else math.inf

    def _reach(self, trial: Trial, report: Report, progress: _ReplayedTrial) -> Decision:
        while progress.time >= self._time_of(progress.index + 2):
            progress.index += 1
        progress.is_due = True
        progress.next_level = math.inf
        return Decision(Action.PAUSE, f"step {progress.index + 2} of the policy begins at {progress.time}")


def _checked(policy: object) -> list[PolicyStep]:
    if isinstance(policy, str) or not isinstance(policy, Sequence) or not policy:
        raise ConfigurationError(f"PBTReplay: policy={policy!r} is not a list of steps; policy_of gives one")
    steps: list[PolicyStep] = []
    for index, step in enumerate(policy):
        if not isinstance(step, PolicyStep) or not isinstance(step.config, dict):
            raise ConfigurationError(f"PBTReplay: policy[{index}]={step!r} is not a PolicyStep(time, config)")
        time = number("PBTReplay", f"policy[{index}].time", step.time)
        if not steps and time != 0:
            raise ConfigurationError(f"PBTReplay: the first step begins at {time!r}; it must begin at 0")
        if steps and time <= steps[-1].time:
            raise ConfigurationError(
                f"PBTReplay: policy[{index}] begins at {time!r}, not after the one before at {steps[-1].time!r}"
            )
        steps.append(PolicyStep(time, copy_value(step.config), step.trial))
    return steps
