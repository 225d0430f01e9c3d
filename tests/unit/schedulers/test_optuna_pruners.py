"""Rules that Optuna has too decide as its pruners do, on histories of trials that run at once."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pytest

import mqtune
from mqtune.core.trial import CONTINUE, Report, Trial, TrialId, TrialStatus
from mqtune.schedulers import p_of_larger

optuna = pytest.importorskip("optuna")
pytestmark = [
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    # All values of a trial are NaN, or a task is missing.
    pytest.mark.filterwarnings("ignore:All-NaN"),
    pytest.mark.filterwarnings("ignore:.*WilcoxonPruner"),
]

#: Histories of each rule; each is drawn from its number.
HISTORIES: Final = 40
EVERY: Final = pytest.mark.parametrize("mode", ["min", "max"])

#: Returns whether a trial that runs stops at a report, and hears of one that has ended.
Stops = Callable[[Trial, Report], bool]
Ends = Callable[[Trial], object]
#: By step, what a trial reports.
Course = Sequence[tuple[int, float]]


class Pair(NamedTuple):
    """A pruner, and what should decide as it does."""

    pruner: Any
    stops: Stops
    ends: Ends


def decisions(pair: Pair, mode: str, courses: Sequence[Course], rng: random.Random, value: Any) -> Iterator[bool]:
    """Yield each decision, which both have taken alike, of trials of which three run at once.

    Args:
        value: returns what a trial that has completed has come to, or None for one that has failed.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="minimize" if mode == "min" else "maximize", pruner=pair.pruner)
    left = [(study.ask(), iter(course), []) for course in courses]
    while left:
        trial, course, seen = running = rng.choice(left[:3])
        name = TrialId(str(trial.number))
        if (step := next(course, None)) is None:
            left.remove(running)
            final = value(seen)
            study.tell(trial, final, state=None if final is not None else optuna.trial.TrialState.FAIL)
            pair.ends(Trial(name, {}, TrialStatus.COMPLETED))
            continue
        seen.append(step)
        trial.report(step[1], step[0])
        metrics = {"training_iteration": len(seen), "step": step[0], "loss": step[1]}
        stops = pair.stops(Trial(name, {}, TrialStatus.RUNNING), Report(name, 1, len(seen), 0.0, metrics))
        assert stops == trial.should_prune(), f"after {seen} of trial {name} of {courses}"
        yield stops
        if stops:
            left.remove(running)
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            pair.ends(Trial(name, {}, TrialStatus.EARLY_STOPPED))


def both(make: Callable[[random.Random], tuple[Pair, list[Course]]], mode: str, value: Any) -> tuple[int, int]:
    """Return how often trials were stopped over all histories, and how often not."""
    taken = [0, 0]
    for number in range(HISTORIES):
        rng = random.Random(number)
        pair, courses = make(rng)
        for stops in decisions(pair, mode, courses, rng, value):
            taken[stops] += 1
    return taken[True], taken[False]


def scheduled(pruner: Any, scheduler: Any, mode: str) -> Pair:
    scheduler.bind("loss", mode)
    return Pair(
        pruner, lambda trial, report: scheduler.on_report(trial, report) is not CONTINUE, scheduler.on_trial_end
    )


def eighths(rng: random.Random, length: int, nan: float = 0.0, first: int = 1) -> Course:
    """Values that often tie, of which a quartile is exact; the first is a number."""
    drawn = [(step, rng.randint(0, 24) / 8) for step in range(first, length + first)]
    return [(step, math.nan if step > first and rng.random() < nan else value) for step, value in drawn]


@EVERY
def test_median_stopping_against_completed_trials_is_the_median_and_the_percentile_pruner(mode: str) -> None:
    def make(rng: random.Random) -> tuple[Pair, list[Course]]:
        interval, cutoff = rng.randint(1, 3), rng.choice([0.5, 0.25, 0.75])
        grace, startup = interval * rng.randint(0, 2), rng.randint(0, 3)
        # Optuna's steps often begin at 0.
        first = rng.randint(0, 1)
        nan = rng.choice([0.0, 0.2])
        # Optuna's number of values counts NaN.
        samples = 1 if nan else rng.randint(1, 2)
        pruner = optuna.pruners.PercentilePruner(100 * cutoff, startup, grace, interval, n_min_trials=samples)
        if cutoff == 0.5:
            pruner = optuna.pruners.MedianPruner(startup, grace, interval, n_min_trials=samples)
        ours = mqtune.MedianStopping(
            against="completed",
            cutoff=cutoff,
            interval=interval,
            grace_period=grace,
            min_samples=samples,
            min_completed=startup,
            time_attr="step",
        )
        return scheduled(pruner, ours, mode), [eighths(rng, rng.randint(1, 8), nan, first) for _ in range(8)]

    stopped, went_on = both(make, mode, lambda seen: seen[-1][1] if seen[-1][1] == seen[-1][1] else 0.0)

    assert min(stopped, went_on) > HISTORIES


@EVERY
def test_wilcoxon_stopping_is_the_wilcoxon_pruner(mode: str) -> None:
    def make(rng: random.Random) -> tuple[Pair, list[Course]]:
        threshold, samples = rng.choice([0.05, 0.1, 0.3]), rng.randint(2, 4)
        tasks = rng.choice([5, 8, 13, 20]) if rng.random() < 0.97 else 60
        is_coarse = rng.random() < 0.4
        if is_coarse:
            # SciPy takes half a second for the exact test of a dozen differences that tie.
            tasks, samples = rng.choice([(5, samples), (18, 14)])

        def course() -> Course:
            level = rng.random()
            order = rng.sample(range(tasks), rng.randint(tasks // 2, tasks))
            values = [rng.gauss(level, 0.5) for _ in order]
            odd = {rng.randrange(len(order)): rng.choice([math.nan, math.inf])} if rng.random() < 0.05 else {}
            return [
                (task, odd.get(at, round(4 * value) / 4 if is_coarse else value))
                for at, (task, value) in enumerate(zip(order, values, strict=True))
            ]

        pruner = optuna.pruners.WilcoxonPruner(p_threshold=threshold, n_startup_steps=samples)
        ours = mqtune.WilcoxonStopping(p_threshold=threshold, min_samples=samples, paired_by="step")
        return scheduled(pruner, ours, mode), [course() for _ in range(4)]

    def mean(seen: Course) -> float | None:
        found = sum(value for _, value in seen) / len(seen)
        return found if math.isfinite(found) else None

    stopped, went_on = both(make, mode, mean)

    assert stopped > HISTORIES / 4
    assert went_on > HISTORIES


@EVERY
def test_a_plateau_by_min_delta_is_the_patient_pruner(mode: str) -> None:
    def make(rng: random.Random) -> tuple[Pair, list[Course]]:
        patience, delta = rng.randint(0, 3), rng.choice([0.0, 0.25])
        pruner = optuna.pruners.PatientPruner(None, patience, delta)
        rule = mqtune.TrialPlateau(num_results=patience + 1, grace_period=0, min_delta=delta)
        rule.bind("loss", mode)
        pair = Pair(pruner, lambda trial, report: bool(rule.stops_trial(trial, report)), rule.on_trial_end)
        courses = [eighths(rng, rng.randint(1, 9), 0.2) for _ in range(3)]
        return pair, [[(step, math.nan if rng.random() < 0.1 else value) for step, value in each] for each in courses]

    stopped, went_on = both(make, mode, lambda _: 0.0)

    assert min(stopped, went_on) > HISTORIES


@pytest.mark.parametrize("count", [2, 5, 9, 13, 14, 30, 50, 51, 80])
@pytest.mark.parametrize("step", [None, 0.5])
def test_a_p_value_is_that_of_scipy(count: int, step: float | None) -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = random.Random(f"{count} {step}")
    drawn = [rng.gauss(0.2, 1) for _ in range(count)]
    differences = drawn if step is None else [step * round(value / step) for value in drawn]

    p_value = stats.wilcoxon(differences, alternative="greater", zero_method="zsplit").pvalue

    assert p_of_larger(differences) == pytest.approx(p_value, rel=1e-9)
