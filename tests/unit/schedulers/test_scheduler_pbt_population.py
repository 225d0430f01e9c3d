"""Populations that take turns on fewer slots, and populations in generations."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from population_table import curve, pbt, starting
from scheduler_play import Faults, Play, rngs, some_faults

from mqtune.core.trial import Attempt, Config, Metrics, trial_of
from mqtune.schedulers import Choice, Resume


@dataclass
class Member:
    """The state of a trial that has not ended."""

    order: int
    due: float
    #: Its rank, and the rank that counts once it has paused.
    rank: tuple[bool, float, int] | None = None
    score: tuple[bool, float, int] | None = None
    #: Its own time, or the time of its source.
    reached: int = 0
    #: How many of the first members it may copy.
    peers: int | None = None
    #: Its possible sources, with their checkpoints.
    copy: dict[str, str] = field(default_factory=dict)
    is_replaced: bool = False
    #: Whether the time of its checkpoint is unknown.
    is_lost: bool = False
    checkpoint: str = ""
    saves: bool = False


class Population:
    """The rule of the docstring in plain dicts: decisions on reports, and uses of free slots."""

    def __init__(self, size: int | None, fraction: float, grace: int = 0) -> None:
        self.size, self.fraction, self.lowest = size, fraction, max(2, grace + grace % 2)
        self.begun = 0
        self.members: dict[str, Member] = {}
        #: Members that a person has paused, and members that no other copies any more.
        self.aside: set[str] = set()
        self.abandoned: set[str] = set()

    def follow(self, play: Play) -> None:
        """Check each decision and each choice of a game."""
        decided: set[str] = set()
        for call in play.calls:
            name = call.trial.id
            if name not in self.members and call.method == "on_queue":
                self.members[name] = Member(self.begun, self.lowest)
                self.begun += 1
                self.enrol(name)
            if (member := self.members.get(name)) is None:
                continue
            member.checkpoint, member.saves = call.trial.checkpoint, bool(call.trial.checkpoints)
            if call.method == "on_queue":
                decided.discard(name)
                self.stage(name, call.trial.attempt, play)
            elif call.method == "on_trial_pause":
                self.pause(name, by_hand=name not in decided)
            elif call.method in ("on_abandon", "on_trial_end"):
                self.abandoned |= {name} if call.method == "on_abandon" else set()
                self.end(name)
            elif call.report is not None and call.answer is not None:
                now, loss = call.report.metrics["training_iteration"], call.report.metrics.get("loss")
                answer = call.answer.action.name, call.answer.source
                assert answer == ("CONTINUE", None) if now < member.due else self.is_right(name, now, loss, *answer)
                decided |= {name} if answer[0] != "CONTINUE" else set()
            for choice, wanted in zip(call.choices, self.wanted(), strict=True):
                assert self.fits(choice, wanted), (choice, wanted)

    def fits(self, choice: Choice, wanted: str | None) -> bool:
        """Whether a choice is to start, to wait, for None, or to resume this member."""
        if not isinstance(choice, Resume):
            return type(choice).__name__ == (wanted or "Wait")
        sources = self.copies_of(choice.trial)
        if choice.source is None:
            return choice.trial == wanted and (not sources or bool(self.abandoned & sources.keys()))
        is_there = choice.source not in self.abandoned
        return choice.trial == wanted and is_there and sources[choice.source] == choice.checkpoint

    def copies_of(self, name: str) -> dict[str, str]:
        return self.members[name].copy

    @property
    def has_room(self) -> bool:
        return self.size is None or len(self.members) - len(self.aside) < self.size

    def after(self, time: float) -> float:
        """The next milestone."""
        return max(self.lowest, time // 2 * 2 + 2)

    def rank_of(self, name: str, loss: float) -> tuple[bool, float, int]:
        return (math.isnan(loss), 0 if math.isnan(loss) else loss, self.members[name].order)

    def ranked(self, names: Iterable[str]) -> tuple[list[str], int]:
        """Return ranked members, the best first, and how many of them copy and are copied."""
        found = [(rank, name) for name in names if (rank := self.members[name].rank) is not None]
        return [name for _, name in sorted(found)], min(max(1, math.floor(len(found) * self.fraction)), len(found) // 2)


class Turns(Population):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        #: When whose turn it is; and whether there was no config to start with.
        self.waiting: dict[str, tuple[int, int]] = {}
        self.has_no_more = False

    def enrol(self, name: str) -> None:
        self.has_no_more = False

    def stage(self, name: str, attempt: Attempt, play: Play) -> None:
        member = self.members[name]
        self.aside.discard(name)
        if self.waiting.pop(name, None):
            self.has_no_more = self.has_room
        if member.copy and attempt.source in member.copy:
            member.is_lost = trial_of(attempt.checkpoint) not in {*self.members, attempt.source}
            member.due = -math.inf if member.is_lost else self.after(len(play.states[attempt.checkpoint]))
        elif member.copy:
            member.is_replaced = False
        member.copy = {}

    def is_right(self, name: str, now: int, loss: float | None, action: str, source: str | None) -> bool:
        member = self.members[name]
        if member.is_lost or loss is None:
            member.due = self.after(now) if member.is_lost else member.due
            member.is_lost = False
            return action == "CONTINUE"
        member.due, member.reached, member.is_replaced = self.after(now), now, False
        member.rank = self.rank_of(name, loss)
        member.peers = member.peers or max(self.begun, self.size or 0)
        ranked, share = self.ranked(self.members)
        sources = [
            other
            for other in ranked[:share]
            if self.members[other].saves
            and not self.members[other].is_replaced
            and self.members[other].order < member.peers
        ]
        if name in ranked[len(ranked) - share :] and sources:
            assert source in sources
            member.copy = {source: self.members[source].checkpoint}
            member.is_replaced, member.reached = True, self.members[source].reached
            return action == "PAUSE"
        others_wait = self.size is not None and (self.waiting or (self.has_room and not self.has_no_more))
        return (action, source) == ("PAUSE" if others_wait else "CONTINUE", None)

    def pause(self, name: str, *, by_hand: bool) -> None:
        member = self.members[name]
        if by_hand:
            self.aside.add(name)
            member.rank = None
        else:
            self.waiting[name] = (member.reached, member.order)

    def end(self, name: str) -> None:
        del self.members[name]
        self.waiting.pop(name, None)
        self.aside.discard(name)

    def wanted(self) -> tuple[str | None, str | None]:
        first = min(self.waiting, key=self.waiting.__getitem__, default=None)
        starts = first is None if self.size is None else self.has_room
        return "Start" if starts else first, first


@dataclass(eq=False)
class Cohort:
    """Members that wait for one another."""

    level: float
    begun: int = 0
    is_filling: bool = True
    generation: int = 1
    reached: int = 0


class Generations(Population):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cohorts: list[Cohort] = []
        self.of: dict[str, Cohort] = {}
        #: Members that resume, by their places.
        self.ready: dict[str, tuple[int, int, int]] = {}

    def enrol(self, name: str) -> None:
        if not self.cohorts or not self.cohorts[-1].is_filling:
            self.cohorts.append(Cohort(self.lowest))
        cohort = self.of[name] = self.cohorts[-1]
        cohort.begun += 1
        cohort.is_filling = cohort.begun < (self.size or 0)

    def is_missing(self, name: str) -> bool:
        return self.members[name].rank is None and name not in self.aside

    def parts(self, cohort: Cohort) -> dict[str, dict[str, str]]:
        """Return the next generation with its possible sources. Empty during a generation."""
        names = [name for name in self.members if self.of[name] is cohort]
        if any(map(self.is_missing, names)):
            return {}
        ranked, share = self.ranked(names)
        sources = {name: self.members[name].checkpoint for name in ranked[:share] if self.members[name].saves}
        copies = {name: sources for name in ranked[len(ranked) - share :] if sources}
        return copies | {name: {} for name in ranked if name not in copies}

    def complete(self, cohort: Cohort) -> None:
        parts = self.parts(cohort)
        cohort.is_filling = False
        cohort.generation += 1
        cohort.level = self.after(max(cohort.level, cohort.reached))
        for place, (name, sources) in enumerate(parts.items()):
            member = self.members[name]
            member.rank, member.score, member.copy = None, None, sources
            self.ready[name] = (self.cohorts.index(cohort), cohort.generation, place)

    def counted_off(self, cohort: Cohort) -> None:
        missing = any(self.is_missing(name) for name in self.members if self.of[name] is cohort)
        if not cohort.is_filling and not missing:
            self.complete(cohort)

    def stage(self, name: str, attempt: Attempt, play: Play) -> None:
        member, cohort = self.members[name], self.of[name]
        if member.rank and cohort.is_filling and next(iter(self.parts(cohort)), "") == name:
            self.complete(cohort)
        member.rank = None
        member.copy = {}
        self.ready.pop(name, None)
        self.aside.discard(name)
        member.due = cohort.level

    def is_right(self, name: str, now: int, loss: float | None, action: str, source: str | None) -> bool:
        if loss is not None:
            member = self.members[name]
            member.due, member.reached, member.score = math.inf, now, self.rank_of(name, loss)
        return (action, source) == ("CONTINUE" if loss is None else "PAUSE", None)

    def pause(self, name: str, *, by_hand: bool) -> None:
        member, cohort = self.members[name], self.of[name]
        if by_hand or member.score is None:
            self.aside.add(name)
        else:
            member.rank = member.score
            cohort.reached = max(cohort.reached, member.reached)
        self.counted_off(cohort)

    def end(self, name: str) -> None:
        was_missing = self.is_missing(name)
        del self.members[name]
        self.ready.pop(name, None)
        self.aside.discard(name)
        if was_missing:
            self.counted_off(self.of[name])

    def copies_of(self, name: str) -> dict[str, str]:
        return self.members[name].copy if name in self.ready else self.parts(self.of[name])[name]

    def wanted(self) -> tuple[str | None, str | None]:
        if self.ready:
            first = min(self.ready, key=self.ready.__getitem__)
            return first, first
        is_open = bool(self.cohorts) and self.cohorts[-1].is_filling
        return "Start" if self.has_room else None, next(iter(self.parts(self.cohorts[-1])), None) if is_open else None


@pytest.mark.parametrize("synchronous", [False, True])
@given(
    rng=rngs,
    slots=st.integers(1, 8),
    trials=st.integers(2, 12),
    fraction=st.sampled_from([0.2, 0.25, 0.5]),
    size=st.sampled_from([None, 2, 3, 5]),
    grace=st.sampled_from([0, 5]),
    faults=some_faults,
    checkpoints=st.sampled_from([True, True, False]),
)
@settings(max_examples=2 * settings.default.max_examples)
def test_every_decision_and_choice_is_the_one_that_the_rule_gives(
    synchronous: bool,
    rng: random.Random,
    slots: int,
    trials: int,
    fraction: float,
    size: int | None,
    grace: int,
    faults: Faults,
    checkpoints: bool,
) -> None:
    size = size or 4 if synchronous else size
    scheduler = pbt(population_size=size, synchronous=synchronous, quantile_fraction=fraction, grace_period=grace)

    play = Play(scheduler, curve, slots, trials, rng, starting, faults, checkpoints, keeps_calls=True).run()

    (Generations if synchronous else Turns)(size, fraction, grace).follow(play)
    play.check_end()


@given(rng=rngs, slots=st.integers(1, 9), fraction=st.sampled_from([0.2, 0.25, 0.5]))
def test_a_generation_decides_the_same_on_any_slots(rng: random.Random, slots: int, fraction: float) -> None:
    def noisy(config: Config, now: int) -> Metrics | None:
        return None if now > 12 else {"loss": random.Random(f"{config['lr']} {now}").random()}

    def configs(slots: int) -> list[list[Config]]:
        scheduler = pbt(population_size=8, synchronous=True, quantile_fraction=fraction)
        play = Play(scheduler, noisy, slots=slots, trials=8, rng=rng, configs=starting).run()
        play.check_end()
        return [play.histories[name] for name in sorted(play.histories)]

    assert configs(slots) == configs(8)
