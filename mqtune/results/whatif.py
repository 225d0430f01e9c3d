"""What another scheduler would have made of an experiment: its recorded learning curves, run again in virtual time."""

from __future__ import annotations

import contextlib
import copy
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Final, NamedTuple

from mqtune.backends.simulated import Simulated
from mqtune.backends.simulated.reports import Curves, Item
from mqtune.core import checks
from mqtune.core.errors import ConfigurationError
from mqtune.core.objective import metric_of
from mqtune.core.registry import CLASS, Description, Registered, described
from mqtune.core.text import counted
from mqtune.core.trial import AttemptEnd, Config, Metrics, Trial, TrialId, TrialStatus
from mqtune.driver.connect import BackendDeployment
from mqtune.driver.plan import Plan
from mqtune.driver.runner import Runner
from mqtune.driver.settings import Failures, KnownTrainable, RunOptions, Settings
from mqtune.results.beyond import Beyond, best_values, goes_on, most_reports, scaled
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

#: The name of an experiment that is run again.
_NAME: Final = "replay"
#: For how long a step waits at most, in virtual time: each step costs real time.
_STEP_S: Final = 3600.0
#: How many trials a verdict names.
_SHOWN: Final = 5
#: The figures that have bounds where curves were cut off.
_BOUNDED: Final = ("trials_s", "took_s", "reports", "stopped")
#: The percentiles that an interval lies between.
_LOW: Final = 0.05
_HIGH: Final = 0.95


class CurveEnds(Exception):
    """A trial would have gone on where its recorded curve was cut off."""


class Failed(Exception):
    """A trial fails as it did when it was recorded."""


def recorded(config: Config) -> None:
    """Stand for the trainable of an experiment that is run again: its recorded curves are what runs, and nobody calls this."""
    raise AssertionError(f"{config} was to be trained, and not looked up")


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What an experiment took, and what it found.

    ``trials_s`` is the time of all trials together up to the last report of each, ``took_s`` that from the experiment's beginning to
    its last report; of the recorded one with its breaks, and whatever else it waited for. ``value``, ``config``, ``trial`` and ``found_s``,
    from the beginning, are of the best report, of one metric; trials have the ids that they were recorded with. ``front`` are the
    trials on the Pareto front of several. ``cut`` are the trials that would have gone on where their curves were cut off, which
    happened first at ``known_s``; all figures are those of an end there. Reports took ``time_scale`` times as long as recorded.
    """

    scheduler: str
    searcher: str
    slots: int
    time_scale: float = 1.0
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


class Bounds(NamedTuple):
    """A figure where curves were cut off: the least and the most of three cases, and in between that of trials that stay as they were.

    All three are the same where no curve was cut off.
    """

    least: float
    stays: float
    most: float


@dataclass(frozen=True, slots=True)
class Replayed:
    """An experiment as it was recorded, as it would have been, and what that says: nothing certain where *is_certain* is false.

    ``bounds`` are of ``trials_s``, ``took_s``, ``reports`` and ``stopped``. There are none where they can't be known.
    """

    original: Course
    course: Course
    verdict: str
    is_certain: bool
    bounds: Mapping[str, Bounds]


class Spread(NamedTuple):
    """How a figure differs between orders: its median, and its 5th and 95th percentiles.

    Where curves were cut off, ``low`` is of the lower bounds, ``high`` of the upper ones, and the median of those in between.
    """

    low: float
    median: float
    high: float


@dataclass(frozen=True, slots=True)
class Repeats:
    """Replays of one scheduler in several orders of the configs, and what they say together.

    ``spreads`` are of ``trials_s``, ``took_s``, ``reports`` and ``stopped``, and of ``value`` and ``found_s``; a figure that some replay
    lacks is not there. ``same_best`` counts the orders in which the best trial is that of the recorded experiment.
    """

    replays: tuple[Replayed, ...]
    spreads: Mapping[str, Spread]
    same_best: int
    verdict: str
    is_certain: bool


class _Wanted(NamedTuple):
    """A replay that somebody wants."""

    scheduler: Scheduler
    searcher: Searcher | str | None
    slots: int
    time_scale: float
    seed: int


class Replay:
    """Runs other schedulers over the learning curves that an experiment has recorded, in virtual time and without its code.

    Each trial reports what was recorded of its config, after the same time, and fails where it did. What stop rules the experiment had
    count again, save functions: these are taken to end a trial where they did. All curves are kept in memory.

    A trial that was stopped, or had not ended, has a curve that is cut off: where a scheduler would have it go on, nothing is known of it
    any more. There are three replays then, for bounds. In the first, whose figures the course has, such a trial ends there, as failed.
    In the second it stays at its last values, and each report takes as long as its reports did on average. In the third it is as good as
    the best report of all trials, and each report takes as long as its longest. In these two it goes on until the scheduler ends it;
    but it makes no more reports than the longest trial if that has ended by itself, or the scheduler has no *max_t*. No case is a
    proof: in the truth other trials may be ahead at a rung than in any of them.

    Args:
        results: the experiment's, which may still run.

    Raises:
        ConfigurationError: no trial has a curve.
        CopyIncomplete: some entries of the journal could not be written to this machine's copy.
    """

    def __init__(self, results: Results) -> None:
        self._results = results
        self._definition = results.definition
        self._recorded: Recorded = recorded_curves(results, trust_rules=self._recorded_rule() is None)
        if not self._recorded.curves:
            raise ConfigurationError(f"no trial of experiment {results.name!r} has a learning curve of its own")
        #: The experiment as it was recorded.
        self.original = self._original()

    def run(
        self,
        scheduler: Scheduler | None = None,
        *,
        searcher: Searcher | str | None = None,
        slots: int | None = None,
        time_scale: float = 1.0,
    ) -> Replayed:
        """Run the experiment again and return what it would have taken and found.

        Args:
            scheduler: the other scheduler, new; by default the one that it had.
            searcher: by default configs come in the order in which they were recorded. "random" is another order. Of any other
                searcher each suggestion is replaced by the nearest recorded config that was not tried yet, of which it learns.
            slots: how many trials run at once; by default as many as ran at once when it was recorded.
            time_scale: how many times as long as recorded each report takes, above 0; ``time_total_s`` grows with it.

        Raises:
            ConfigurationError: the scheduler changes configs, of which nothing is recorded, or the searcher doesn't go with the
                experiment's space, or that is not known; or one of them can't be copied, for more than one replay; or another
                argument is invalid.
        """
        return self._replayed(self._wanted(scheduler, searcher, slots, time_scale))

    def repeat(
        self,
        times: int,
        scheduler: Scheduler | None = None,
        *,
        searcher: Searcher | str | None = None,
        slots: int | None = None,
        time_scale: float = 1.0,
    ) -> Repeats:
        """Run the experiment again in so many orders, and return what it would have taken and found in each, and in all.

        The orders are random, drawn from the experiment's seed: the n-th is the same for each scheduler. Under another searcher
        each has another seed.

        Args:
            times: how many, at least 1.
            scheduler: as for ``run``, which has the errors, too.
            searcher: by default "random".
            slots: as for ``run``.
            time_scale: as for ``run``.
        """
        times = checks.whole_number("", "times", times, 1)
        wanted = self._wanted(scheduler, "random" if searcher is None else searcher, slots, time_scale)
        return self._together(
            [self._replayed(_copied(wanted)._replace(seed=wanted.seed + number)) for number in range(times)]
        )

    def _wanted(
        self, scheduler: Scheduler | None, searcher: Searcher | str | None, slots: int | None, time_scale: float
    ) -> _Wanted:
        scheduler = scheduler if scheduler is not None else self._recorded_scheduler()
        if isinstance(scheduler, PBT | PBTReplay) or scheduler.searcher is not None:
            raise ConfigurationError(
                f"{type(scheduler).__name__} makes configs of its own, of which no curves are recorded; a replay needs one that stops "
                "or pauses trials, such as ASHA"
            )
        return _Wanted(
            scheduler,
            searcher,
            slots if slots is not None else self.original.slots,
            float(checks.positive("", "time_scale", time_scale)),
            self._definition.get("seed", 0),
        )

    def _replayed(self, wanted: _Wanted) -> Replayed:
        curves = [scaled(curve, wanted.time_scale) for curve in self._recorded.curves]
        # Whoever gave a scheduler or a searcher may look at it afterwards: the first replay has that itself.
        again = _copied(wanted)
        course = self._course(wanted, [(each.config, _items(each)) for each in curves])
        if not course.cut or self._recorded.left_out:
            return self._said([course])
        beyond = self._beyond(curves, again.scheduler)
        return self._said([course, *(self._course(_copied(again), items) for items in beyond)])

    def _beyond(self, curves: Sequence[Curve], scheduler: Scheduler) -> Iterator[list[tuple[Config, Iterable[Item]]]]:
        """Yield what trials report that go on, for each case in which they do."""
        most = most_reports(curves, scheduler)
        best = best_values(curves, self._results.experiment.objective)
        cases: list[tuple[Metrics, Callable[[Iterable[float]], float]]] = [({}, statistics.fmean), (best, max)]
        for values, duration_of in cases:
            yield [
                (
                    each.config,
                    Beyond(each, values, duration_of, scheduler.time_attr, most) if goes_on(each) else _items(each),
                )
                for each in curves
            ]

    def _course(self, wanted: _Wanted, items: Iterable[tuple[Config, Iterable[Item]]]) -> Course:
        """Run the experiment once more, with these items of each config."""
        curves = Curves(items)
        order, words = self._searcher(wanted.searcher, wanted.seed)
        simulated = Simulated(curves, slots=wanted.slots, checkpoints=self._recorded.saves)
        with tempfile.TemporaryDirectory(prefix="mqtune-") as folder:
            results = _run(self._settings(wanted.scheduler, order, simulated, wanted.seed), Path(folder))
            ids = self._recorded_ids(results, curves)
            course = _course(results, ids, scheduler=in_words(wanted.scheduler), searcher=words, slots=wanted.slots)
        return replace(course, time_scale=wanted.time_scale)

    def _settings(self, scheduler: Scheduler, searcher: Searcher, simulated: Simulated, seed: int) -> Settings:
        definition = self._definition
        return Settings(
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
            seed=seed,
            failures=Failures(metric_from="later", accept_no_report=True),
            run=RunOptions(progress=False),
        )

    def _recorded_ids(self, results: Results, curves: Curves) -> dict[TrialId, TrialId]:
        numbers = {trial.id: curves.number_of(trial.id, trial.config) for trial in results}
        return {trial: self._recorded.curves[number].trial for trial, number in numbers.items()}

    def _original(self) -> Course:
        definition = self._definition
        return _course(
            self._results,
            {trial: trial for trial in self._results.experiment.trials},
            scheduler=_scheduler_in_words(definition["scheduler"]),
            searcher=str(definition.get("searcher", {}).get(Searcher.role, "")),
            slots=max(1, _most_at_once(list(self._results.experiment.trials.values()))),
        )

    def _recorded_scheduler(self) -> Scheduler:
        try:
            return Scheduler.rebuild(self._definition["scheduler"])
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}: say which scheduler is to be tried") from None

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

    def _searcher(self, given: Searcher | str | None, seed: int) -> tuple[Searcher, str]:
        configs = [curve.config for curve in self._recorded.curves]
        if given is None:
            return InRecordedOrder(configs), "recorded order"
        searcher = searcher_named(given) if isinstance(given, str) else given
        if searcher is None or isinstance(searcher, RandomSearcher):
            return InRecordedOrder(configs, shuffle=seed), "recorded, shuffled"
        name = searcher.kind or type(searcher).__name__
        return NearestRecorded(searcher, configs, self._space()), f"nearest recorded to {name}"

    def _said(self, cases: Sequence[Course]) -> Replayed:
        """Return what a replay says: the course in which trials end where curves were cut off, and the bounds that all cases give."""
        course, *guesses = cases
        unknown = {trial for each in guesses for trial in each.cut}
        if left_out := self._recorded.left_out:
            verdict = f"no verdict: left out are {_trials(left_out)}, without a learning curve of their own"
        elif unknown:
            verdict = f"no verdict: {_trials(sorted(unknown))} would have gone on, of which no report is recorded"
        if left_out or unknown:
            return Replayed(self.original, course, verdict, is_certain=False, bounds={})
        figures = {name: [getattr(each, name) for each in cases] for name in _BOUNDED}
        bounds = {name: Bounds(min(values), values[1 % len(values)], max(values)) for name, values in figures.items()}
        least, stays, most = map(self._share, bounds[self._measure])
        found = _found(self.original, course, self._results.experiment.metric, self._definition["mode"])
        verdict = f"{stays} of {self._what}, and {found}"
        if course.cut:
            first = "" if course.known_s is None else f", the first after {duration(course.known_s)}"
            verdict = (
                f"between {least} and {most} of {self._what}, and as far as the curves go {found}; {_trials(course.cut)} would have gone "
                f"on where the curve was cut off{first}: {stays} if they stay at their last values"
            )
        return Replayed(self.original, course, verdict, not course.cut, bounds)

    def _together(self, replays: Sequence[Replayed]) -> Repeats:
        """Return what replays in several orders say."""
        unbounded = sum(not each.bounds for each in replays)
        spreads = {name: _spread([each.bounds[name] for each in replays]) for name in _BOUNDED if not unbounded}
        for name in ("value", "found_s"):
            values = [getattr(each.course, name) for each in replays]
            if None not in values:
                spreads[name] = _spread([Bounds(value, value, value) for value in values])
        has_best = self.original.value is not None
        same = sum(has_best and each.course.trial == self.original.trial for each in replays)
        of_all = f"of {counted(len(replays), 'order')}"
        if unbounded:
            reason = next(each.verdict for each in replays if not each.bounds)
            return Repeats(tuple(replays), spreads, same, f"in {unbounded} {of_all}, {reason}", is_certain=False)
        low, median, high = map(self._share, spreads[self._measure])
        verdict = f"{median} of {self._what} by the median, between {low} and {high} in 90% {of_all}"
        if has_best:
            verdict += f"; the same best trial, {self.original.trial}, in {same}"
        if cut := sum(bool(each.course.cut) for each in replays):
            verdict += f", as far as the curves go, which were cut off in {cut}"
        return Repeats(tuple(replays), spreads, same, verdict, not cut)

    # An experiment of another tool may have no times.

    @property
    def _measure(self) -> str:
        """The figure that tells what a replay costs."""
        return "trials_s" if self.original.trials_s else "reports"

    @property
    def _what(self) -> str:
        return "the trials' time" if self.original.trials_s else "the reports"

    def _share(self, cost: float) -> str:
        """Return the part of what the experiment cost, such as ``14%``."""
        return f"{cost / (self.original.trials_s or max(1, self.original.reports)):.0%}"


def _copied(wanted: _Wanted) -> _Wanted:
    """Return what is to be replayed once more, with a scheduler and a searcher at their beginnings."""
    try:
        return copy.deepcopy(wanted)
    except (TypeError, copy.Error) as error:
        raise ConfigurationError(
            f"{type(wanted.scheduler).__name__}, or the searcher, can't be copied, which a replay needs: {error}"
        ) from None


def _trials(trials: Sequence[str]) -> str:
    shown = ", ".join(trials[:_SHOWN]) + (", …" if len(trials) > _SHOWN else "")
    return f"{len(trials)} {'trial' if len(trials) == 1 else 'trials'} ({shown})"


def _found(original: Course, course: Course, metric: str, mode: str) -> str:
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
        items.append((0.0, CurveEnds(f"what trial {curve.trial} would have reported next is not recorded")))
    elif curve.error:
        items.append((curve.ending_s, Failed(curve.error)))
    return items


def _spread(bounds: Sequence[Bounds]) -> Spread:
    least, stays, most = (sorted(each) for each in zip(*bounds, strict=True))
    return Spread(_quantile(least, _LOW), statistics.median(stays), _quantile(most, _HIGH))


def _quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, between two of them interpolated linearly."""
    place = (len(values) - 1) * share
    below = int(place)
    rest = place - below
    # Without a difference of infinite values.
    return values[below] if not rest else values[below] * (1 - rest) + values[below + 1] * rest


def _run(settings: Settings, folder: Path) -> Results:
    deployment = settings.backend
    assert isinstance(deployment, BackendDeployment)  # noqa: S101 - it was made here
    with contextlib.closing(Runner(Plan(settings), deployment, folder)) as runner:
        while not runner.is_finished:
            runner.step(_STEP_S)
        return runner.results()


# What became of it.


def _course(results: Results, ids: Mapping[TrialId, TrialId], *, scheduler: str, searcher: str, slots: int) -> Course:
    """Return what an experiment took and found, its trials by other *ids*."""
    experiment, best = results.experiment, results.experiment.best
    began = experiment.created_at or 0.0
    trials_s, reports, last, found = 0.0, 0, began, None
    for report, seconds in timed_reports(results):
        trials_s += seconds
        reports += 1
        last = max(last, report.timestamp)
        if found is None and best is not None and report.trial == best.id and not report.late:
            is_it = report.metrics.get(experiment.metric) == best.best_value
            found = report.timestamp - began if is_it and experiment.objective.is_feasible(report.metrics) else None
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
        found_s=found,
        front=tuple(sorted(ids[trial.id] for trial in experiment.pareto_front)) if best is None else (),
        cut=tuple(sorted(ids[trial.id] for trial in cut)),
        known_s=min(ends, default=None),
    )


def _is_cut(trial: Trial) -> bool:
    return trial.status is TrialStatus.FAILED and trial.attempt.error_type == CurveEnds.__name__


def _most_at_once(trials: Sequence[Trial]) -> int:
    """Return how many attempts ran at once at most."""
    steps = sorted(step for trial in trials for step in _steps(trial))
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


def _steps(trial: Trial) -> Iterator[tuple[float, int]]:
    for attempt in trial.attempts:
        # The end of a lost one is when that was seen: its slot had long been another's.
        if attempt.started_at is not None and attempt.end is not AttemptEnd.LOST:
            yield attempt.started_at, 1
            if attempt.ended_at is not None:
                yield attempt.ended_at, -1


def in_words(thing: Registered) -> str:
    """Return a scheduler or searcher as it would be written, without arguments that are as they are by default."""
    defaults = {name: each.default for name, each in signature(type(thing)).parameters.items()}
    given = {
        name: value
        for name, value in described(thing).items()
        if name in defaults and value != ("" if defaults[name] is None else defaults[name])
    }
    return f"{type(thing).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


def _scheduler_in_words(description: Description) -> str:
    with contextlib.suppress(ConfigurationError):
        return in_words(Scheduler.rebuild(description))
    return str(description.get(CLASS) or description[Scheduler.role])
