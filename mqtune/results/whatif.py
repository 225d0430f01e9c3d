"""Replays: run another scheduler on an experiment's recorded curves, in virtual time."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Final

from mqtune.backends.simulated import Simulated
from mqtune.backends.simulated.reports import Curves, Item
from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import metric_of
from mqtune.core.registry import CLASS, Description, Registered, described
from mqtune.core.trial import AttemptEnd, Config, Trial, TrialId, TrialStatus
from mqtune.driver.driver import Driver
from mqtune.driver.setup.interrupts import Interrupts
from mqtune.driver.setup.options import Failures, RunOptions
from mqtune.driver.setup.own_backend import BackendDeployment
from mqtune.driver.setup.settings import KnownTrainable, Settings
from mqtune.results.curves import Curve, Recorded, recorded_curves, timed_reports
from mqtune.results.experiments import duration
from mqtune.results.results import Results
from mqtune.schedulers.base import Scheduler
from mqtune.schedulers.pbt import PBT
from mqtune.schedulers.policy import PBTReplay
from mqtune.schedulers.stopping.rule import StopRule
from mqtune.search.base import Searcher, searcher_named
from mqtune.search.random import RandomSearcher
from mqtune.search.recorded import InRecordedOrder, NearestRecorded
from mqtune.search.space import AnySpace, Space, space_of

_NAME: Final = "replay"
#: The length of a driver's step in virtual seconds. Each step costs real time.
_STEP_S: Final = 3600.0
_SHOWN: Final = 5


class CurveEnds(Exception):
    """Ends a trial where its recorded curve was cut off."""


class Failed(Exception):
    """Fails a trial as it failed when it was recorded."""


def recorded(config: Config) -> None:
    """Stand in for the trainable. A replay reads reports and never calls it."""
    raise AssertionError(f"a replay called the trainable with {config}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The cost of an experiment as it was recorded or replayed, and its best trial.

    Times are in seconds, and trials have their recorded ids.

    Attributes:
        trials_s: the time of all trials together, each up to its last report.
        took_s: the time from the experiment's beginning to its last report, with breaks.
        value, trial, config: the best value of a single metric, and its trial. None or empty with several metrics.
        found_s: when that value was reported, since the beginning.
        front: with several metrics, the trials on the Pareto front.
        cut: trials that would have continued after the end of their recorded curves. They count as ended there.
        known_s: when the first of them ended, since the beginning.
    """

    scheduler: str
    searcher: str
    slots: int
    trials: int
    stopped: int
    failed: int
    reports: int
    trials_s: float
    took_s: float
    value: float | None
    trial: str
    config: Config | None
    found_s: float | None
    front: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()
    known_s: float | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay, beside the recorded experiment.

    Attributes:
        original: the experiment as it was recorded.
        course: the experiment as it was replayed.
        verdict: the comparison of both in words.
        is_certain: whether no needed curve was cut off or missing.
    """

    original: Course
    course: Course
    verdict: str
    is_certain: bool


class Replay:
    """Runs other schedulers on recorded learning curves, in virtual time and without user code.

    Each trial repeats the recorded reports of its config after the recorded durations, and fails where it failed. The
    experiment's stop rules are applied again. Stop functions are not: a trial that one ended is taken to end there. All
    curves are kept in memory.

    If a trial was stopped, or has not ended, its curve is cut off. If a scheduler would have continued such a trial,
    the trial fails at the end of its curve, and ``Course.cut`` names it.

    The experiment may still be running.

    Raises:
        ConfigurationError: no trial has a curve of its own.
        CopyIncomplete: some entries of the journal could not be written to this machine's copy.
    """

    def __init__(self, results: Results) -> None:
        self._results = results
        self._definition = results.definition
        self._recorded: Recorded = recorded_curves(results, trust_rules=self._recorded_rule() is None)
        if not self._recorded.curves:
            raise ConfigurationError(f"no trial of experiment {results.name!r} has a learning curve of its own")
        self.original = self._recorded_course()

    def run(
        self, scheduler: Scheduler | None = None, *, searcher: Searcher | str | None = None, slots: int | None = None
    ) -> Replayed:
        """Replay the experiment, and return its cost and its best trial.

        Args:
            scheduler: a new scheduler. The default is the recorded one.
            searcher: the order of the recorded configs. By default it is the recorded order, and "random" shuffles it.
                In place of each suggestion of another searcher, the nearest unused config runs, and the searcher learns
                from that one.
            slots: the number of slots. The default is the most that the recorded experiment used at the same time.

        Raises:
            ConfigurationError: the scheduler creates configs, which have no recorded curves; or the searcher doesn't
                fit the space, or the space is not known; or another argument is invalid.
        """
        scheduler = scheduler if scheduler is not None else self._recorded_scheduler()
        if isinstance(scheduler, PBT | PBTReplay) or scheduler.searcher is not None:
            raise ConfigurationError(
                f"{type(scheduler).__name__} creates configs, which have no recorded curves; give a scheduler that "
                "only stops or pauses trials, such as ASHA"
            )
        slots = slots if slots is not None else self.original.slots
        return self._judged(self._replay(scheduler, searcher, slots))

    def _replay(self, scheduler: Scheduler, searcher: Searcher | str | None, slots: int) -> Course:
        curves = Curves([(curve.config, _items(curve)) for curve in self._recorded.curves])
        order, words = self._searcher(searcher)
        simulated = Simulated(curves, slots=slots, checkpoints=self._recorded.saves)
        with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
            results = _run(self._settings(scheduler, order, simulated), Path(folder))
            ids = self._recorded_ids(results, curves)
            return _course_of(results, ids, scheduler=in_words(scheduler), searcher=words, slots=slots)

    @property
    def _seed(self) -> int:
        return int(self._definition.get("seed", 0))

    def _settings(self, scheduler: Scheduler, searcher: Searcher, simulated: Simulated) -> Settings:
        definition = self._definition
        return Settings.of(
            trainable=KnownTrainable.of(recorded),
            space=self._space() if isinstance(searcher, NearestRecorded) else Space({}),
            metric=metric_of(definition),
            mode=definition["mode"],
            max_trials=len(self._recorded.curves),
            searcher=searcher,
            scheduler=scheduler,
            stop=self._recorded_rule(),
            backend=BackendDeployment(simulated),
            name=_NAME,
            seed=self._seed,
            failures=Failures(metric_required="eventually", accept_no_report=True),
            run=RunOptions(progress=False),
        )

    def _recorded_ids(self, results: Results, curves: Curves) -> dict[TrialId, TrialId]:
        numbers = {trial.id: curves.number_of(trial.id, trial.config) for trial in results}
        return {trial: self._recorded.curves[number].trial for trial, number in numbers.items()}

    def _recorded_course(self) -> Course:
        definition = self._definition
        return _course_of(
            self._results,
            {trial: trial for trial in self._results.experiment.trials},
            scheduler=_scheduler_in_words(definition["scheduler"]),
            searcher=str(definition.get("searcher", {}).get(Searcher.role, "")),
            slots=max(1, _most_concurrent(list(self._results.experiment.trials.values()))),
        )

    def _recorded_scheduler(self) -> Scheduler:
        try:
            return Scheduler.rebuild(self._definition["scheduler"])
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}: give the scheduler to replay with") from None

    def _recorded_rule(self) -> StopRule | None:
        described_rule = self._definition.get("stop")
        with contextlib.suppress(ConfigurationError):
            return None if described_rule is None else StopRule.rebuild(described_rule)
        return None

    def _space(self) -> Space:
        space = space_of(self._definition["space"])
        if isinstance(space, AnySpace):
            raise ConfigurationError(
                f"experiment {self._results.name!r} has no search space, which a searcher needs; leave the searcher out"
            )
        return space

    def _searcher(self, given: Searcher | str | None) -> tuple[Searcher, str]:
        configs = [curve.config for curve in self._recorded.curves]
        if given is None:
            return InRecordedOrder(configs), "recorded order"
        searcher = searcher_named(given) if isinstance(given, str) else given
        if searcher is None or isinstance(searcher, RandomSearcher):
            return InRecordedOrder(configs, shuffle=self._seed), "recorded, shuffled"
        name = searcher.kind or type(searcher).__name__
        return NearestRecorded(searcher, configs, self._space()), f"nearest recorded to {name}"

    def _judged(self, course: Course) -> Replayed:
        if left_out := self._recorded.left_out:
            verdict = f"no verdict: {_listed(left_out)} had no learning curve of their own and were left out"
            return Replayed(self.original, course, verdict, is_certain=False)
        outcome = _comparison(self.original, course, self._results.experiment.metric, self._definition["mode"])
        verdict = f"{self._cost(course)}, and {outcome}"
        if course.cut:
            first = "" if course.known_s is None else f", the first after {duration(course.known_s)}"
            verdict = (
                f"as far as the curves go, {verdict}; uncertain: {_listed(course.cut)} would have continued after the "
                f"end of the recorded curve{first}"
            )
        return Replayed(self.original, course, verdict, is_certain=not course.cut)

    def _cost(self, course: Course) -> str:
        """Return the cost as a share of the recorded one, such as ``14% of the trials' time``."""
        # An experiment of another tool may have no times.
        if self.original.trials_s:
            return f"{course.trials_s / self.original.trials_s:.0%} of the trials' time"
        return f"{course.reports / max(1, self.original.reports):.0%} of the reports"


def _listed(trials: Sequence[str]) -> str:
    shown = ", ".join(trials[:_SHOWN]) + (", …" if len(trials) > _SHOWN else "")
    return f"{len(trials)} {'trial' if len(trials) == 1 else 'trials'} ({shown})"


def _comparison(original: Course, course: Course, metric: str, mode: str) -> str:
    if course.front or original.front:
        both = len({*course.front} & {*original.front})
        return f"{both} of the {len(original.front)} trials on the Pareto front"
    if original.value is None or course.value is None:
        return "nothing to compare: a best value is missing"
    if course.trial == original.trial and course.value == original.value:
        return f"the same best trial, {course.trial}"
    values = f"{metric}={course.value:.6g} in place of {original.value:.6g}"
    if course.value == original.value:
        return f"as good a trial, {course.trial}"
    is_better = (course.value < original.value) == (mode == "min")
    return f"a {'better' if is_better else 'worse'} trial, {course.trial}: {values}"


def _items(curve: Curve) -> list[Item]:
    items: list[Item] = [*curve.reports]
    if curve.is_cut:
        items.append((0.0, CurveEnds(f"the recorded curve of trial {curve.trial} ends here")))
    elif curve.error:
        items.append((curve.ending_s, Failed(curve.error)))
    return items


def _run(settings: Settings, folder: Path) -> Results:
    deployment = settings.backend
    assert isinstance(deployment, BackendDeployment)  # noqa: S101 - it was made here
    with contextlib.ExitStack() as opened:
        driver = Driver(settings, deployment.open(settings, folder, opened, Interrupts()))
        opened.callback(driver.close)
        driver.begin()
        while not driver.is_finished:
            driver.step(_STEP_S)
            if driver.failure is not None:
                raise driver.failure
        driver.end("finished", driver.over)
        return Results(driver.experiment, folder, driver.reader)


def _course_of(
    results: Results, ids: Mapping[TrialId, TrialId], *, scheduler: str, searcher: str, slots: int
) -> Course:
    experiment, best = results.experiment, results.experiment.best
    began = experiment.created_at or 0.0
    trials_s, reports, last, found_s = 0.0, 0, began, None
    for report, seconds in timed_reports(results):
        trials_s += seconds
        reports += 1
        last = max(last, report.timestamp)
        if found_s is None and best is not None and report.trial == best.id and not report.late:
            is_best = report.metrics.get(experiment.metric) == best.best_value
            found_s = report.timestamp - began if is_best and experiment.objective.is_feasible(report.metrics) else None
    cut = [trial for trial in experiment.trials.values() if _is_cut(trial)]
    ends = [trial.attempt.ended_at - began for trial in cut if trial.attempt.ended_at is not None]
    return Course(
        scheduler=scheduler,
        searcher=searcher,
        slots=slots,
        trials=len(experiment.trials),
        stopped=experiment.counts[TrialStatus.EARLY_STOPPED],
        failed=experiment.counts[TrialStatus.FAILED] - len(cut),
        reports=reports,
        trials_s=trials_s,
        took_s=last - began,
        value=None if best is None else best.best_value,
        trial="" if best is None else ids[best.id],
        config=None if best is None else best.config,
        found_s=found_s,
        front=tuple(sorted(ids[trial.id] for trial in experiment.pareto_front)) if best is None else (),
        cut=tuple(sorted(ids[trial.id] for trial in cut)),
        known_s=min(ends, default=None),
    )


def _is_cut(trial: Trial) -> bool:
    return trial.status is TrialStatus.FAILED and trial.attempt.error_type == CurveEnds.__name__


def _most_concurrent(trials: Sequence[Trial]) -> int:
    steps = sorted(step for trial in trials for step in _steps(trial))
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


def _steps(trial: Trial) -> Iterator[tuple[float, int]]:
    for attempt in trial.attempts:
        # The recorded end of a lost attempt is when its loss was noticed. Its slot may have been reused before.
        if attempt.started_at is not None and attempt.end is not AttemptEnd.LOST:
            yield attempt.started_at, 1
            if attempt.ended_at is not None:
                yield attempt.ended_at, -1


def in_words(decider: Registered) -> str:
    """Return a scheduler or searcher as Python code, without default arguments."""
    defaults = {name: parameter.default for name, parameter in signature(type(decider)).parameters.items()}
    given = {
        name: value
        for name, value in described(decider).items()
        if name in defaults and value != ("" if defaults[name] is None else defaults[name])
    }
    return f"{type(decider).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _scheduler_in_words(description: Description) -> str:
    with contextlib.suppress(ConfigurationError):
        return in_words(Scheduler.rebuild(description))
    return str(description.get(CLASS) or description[Scheduler.role])
