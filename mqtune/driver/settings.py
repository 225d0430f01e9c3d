"""What is tuned, and how: everything that a user says about an experiment, checked when it is said.

Each option is spelled once, as a field below: its default, its check, its name in the experiment's definition, and whether it
may change when the experiment goes on. The definition and what ``Tuner.attach`` makes of it follow from that.
"""

from __future__ import annotations

import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar, cast, get_args

from mqtune.core.callback import Callback
from mqtune.core.checks import flag, one_of, optional_count, optional_seconds, positive, whole_number
from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import CodeDiffers, ConfigurationError, NameTaken
from mqtune.core.events import decode_definition
from mqtune.core.experiment import Experiment
from mqtune.core.keys import is_name
from mqtune.core.objective import Metric, Modes, Objective
from mqtune.core.registry import CLASS, described, differences
from mqtune.core.resources import Resources
from mqtune.core.trial import checked_notes, checked_tags
from mqtune.core.version import __version__
from mqtune.driver.checkpoints import Deletes
from mqtune.driver.retention import Retention
from mqtune.driver.screening import MetricFrom, OnOddReport, Reading
from mqtune.driver.warm_start import WarmStart
from mqtune.journal.base import LossPolicy, OnLoss
from mqtune.schedulers.base import FIFO, Decider, Scheduler
from mqtune.schedulers.stopping.rule import StopRule, as_rule
from mqtune.search.base import SEARCHERS, Searcher, searcher_named
from mqtune.search.points import Nobody, PointsFirst
from mqtune.search.random import RandomSearcher
from mqtune.search.repeater import Repeater
from mqtune.search.space import AnySpace, Space
from mqtune.trainable.class_ import check_reusable
from mqtune.trainable.experiment_code import changed_files, fingerprints, read_code
from mqtune.trainable.spec import AnyTrainable, TrainableSpec

T = TypeVar("T")
#: What the journal says an experiment is, by the names of its options.
Definition = dict[str, Any]
_Check = Callable[[str, Any], object]
_Keep = Callable[[Any], object]

FailFast = Literal[False, True, "raise"]
StartMethod = Literal["fork", "spawn"]
Sync = Literal["stream", "lockstep"]
PassConfig = Literal["arguments", "json"]
#: Where a trial's process runs: in its worker's working directory, or in a folder of its own.
WorkingDir = Literal["code", "trial"]
#: Of which attempts such a folder is kept.
KeepWorkingDir = Literal["always", "failed", "never"]
#: What happens when an experiment's code is not what it was when it began: a warning, or nothing runs.
CodePolicy = Literal["warn", "strict"]

#: For how long nobody need drive an experiment before its workers apply ``on_driver_loss``: long enough to run a script
#: again, also on another machine.
DRIVER_LOSS_GRACE_S: Final = 600.0


# How an option is spelled.


class _Option(NamedTuple):
    """What the field of an option says beside its name, type and default.

    ``key`` is its name in the definition, the field's own if empty and with a dot for a value within a value; None keeps it
    out. ``may_change`` says that an experiment may go on with another value. ``is_later`` says that definitions which were
    written before the option existed lack it; its default counts for them.
    """

    check: _Check | None = None
    key: str | None = ""
    may_change: bool = False
    is_later: bool = False
    keep: _Keep | None = None


_PLAIN: Final = _Option()


def _option(
    default: T,
    check: _Check | None = None,
    *,
    key: str | None = "",
    may_change: bool = False,
    is_later: bool = False,
    keep: _Keep | None = None,
) -> T:
    """Return the field of an option."""
    option = _Option(check, key, may_change, is_later, keep)
    return field(default=default, metadata={"option": option})


def _options(group: object) -> Iterator[tuple[Field[Any], _Option, str]]:
    """Yield the options of a group, and of the groups in it, that a definition has, with their names there."""
    for each in fields(cast("Any", group)):
        option: _Option = each.metadata.get("option", _PLAIN)
        if option.key is not None:
            yield each, option, option.key or each.name


class _Checked:
    """Checks each of its options when it is made."""

    def __post_init__(self) -> None:
        for each in fields(cast("Any", self)):
            option: _Option = each.metadata.get("option", _PLAIN)
            if option.check is not None:
                option.check(each.name, getattr(self, each.name))


def _flag(name: str, value: object) -> object:
    return flag("", name, value)


def _one_of(*known: object) -> Callable[[str, object], object]:
    return lambda name, value: one_of("", name, value, known)


def _from(least: int) -> Callable[[str, object], object]:
    return lambda name, value: optional_count(name, value, least)


def _is_retry_count(name: str, value: object) -> object:
    return whole_number("", name, value, -1)


def _is_place(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str | Path) or not str(value).strip()):
        raise ConfigurationError(
            f"Checkpoints({name}={value!r}): give a folder, or a URL such as s3://bucket/folder, or leave it out"
        )


def _is_grace(name: str, value: object) -> object:
    return positive("", name, value)


# What users give.


@dataclass(frozen=True, kw_only=True)
class Failures(_Checked):
    """What happens when a trial fails, a report can't be read, or the driver is lost.

    Args:
        max_failures: how often a trial that fails is run again, from its newest checkpoint; -1: always. Attempts that
            are lost with their worker, or requeued by it, have a budget of their own.
        fail_fast: what the first trial that fails for good does: False: nothing; True: all others are stopped; "raise":
            ``run`` raises TrialFailed at once, and the others are requeued.
        metric_from: "first": a first report without the metric, or one of several, or without the time that the scheduler goes by, is a mistyped
            name and ends the run at once; "later": such reports may come first. Once any report had it, others need not.
        on_odd_report: what becomes of a report whose metric is no number, or whose time is missing, no number or goes down:
            "warn": it counts as one without the metric, with one warning for each trial and key; "fail": its trial fails.
        accept_no_report: whether a trial that ends without reporting the metric is completed rather than failed.
        on_driver_loss: what a broker's workers do when nobody drives the experiment any more, because its driver was killed or
            closed: "continue": nothing, running trials and those in queues go on; "finish": running trials go on
            and nothing else starts; "stop": running trials are requeued too, with a checkpoint where they can save one.
            A driver that comes later goes on in any case.
        driver_loss_grace_s: how long after that, in seconds; a killed driver counts as gone 20 s after its last sign.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    max_failures: int = _option(0, _is_retry_count)
    fail_fast: FailFast = _option(False, _one_of(False, True, "raise"), may_change=True)
    metric_from: MetricFrom = _option("first", _one_of(*get_args(MetricFrom)), may_change=True, is_later=True)
    on_odd_report: OnOddReport = _option("warn", _one_of(*get_args(OnOddReport)), is_later=True)
    accept_no_report: bool = _option(False, _flag)
    on_driver_loss: LossPolicy = _option("continue", _one_of(*get_args(LossPolicy)), may_change=True)
    driver_loss_grace_s: float = _option(DRIVER_LOSS_GRACE_S, _is_grace, may_change=True, keep=float)


@dataclass(frozen=True)
class Checkpoints(_Checked):
    """Where checkpoints that are folders are stored, and which are kept.

    Of a trial's checkpoints the *keep_last* newest and the *keep_best* best are kept. The newest is always kept, and so is
    one from which something may still start.

    Args:
        store: folder, or fsspec URL, of the store, which this machine and all workers must reach; by default a folder of
            the experiment's if all runs on this machine, else none: then only dicts can be saved.
        keep_last: how many of the newest, at least 1; None keeps all.
        keep_best: how many of the best.
        score: the metric that says which is best; by default the experiment's. Where that has several, none is the best without it.
        mode: "min" or "max" of *score*; by default the experiment's.
        delete: which trials lose all their checkpoints when they end: False, none; "stopped", those that were
            stopped early, failed or abandoned; True, those that completed too; "all", even the best one, whose
            checkpoints stay otherwise. One that another trial may still start from stays until it has.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    store: str | Path | None = _option(None, _is_place, key=None)
    _: KW_ONLY
    keep_last: int | None = _option(1, key="retention.keep_last", may_change=True)
    keep_best: int = _option(1, key="retention.keep_best", may_change=True)
    score: str = _option("", key="retention.score", may_change=True)
    mode: Literal["min", "max", ""] = _option("", key="retention.mode", may_change=True)
    delete: Deletes = _option(False, _one_of(False, "stopped", True, "all"), key="delete_checkpoints", may_change=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.retention

    @property
    def retention(self) -> Retention:
        """Which of a trial's checkpoints are kept."""
        return Retention(self.keep_last, self.keep_best, self.score, self.mode)


@dataclass(frozen=True, kw_only=True)
class Process(_Checked):
    """How a trial's process runs.

    Args:
        sync: "stream": reports flow, and a decision reaches its trial within milliseconds; "lockstep": each ``report``
            waits for the decision, so that no line of user code runs after a report that stops or pauses its trial.
        start_method: "fork" starts a trial in a millisecond from a process that has imported the trainable's module, or the
            installed packages that a Python script imports first; "spawn" imports them for each trial, for libraries that
            can't be forked. By default "fork", on macOS "spawn".
        reuse: whether a trial's process, with the instance of its class, stays for the next trial in its slot, for classes
            whose ``setup`` takes long: only one with a ``reset_config`` that returns True; see ``mqtune.Trainable``.
        ttl_s: for how long an attempt may run, in seconds; its worker stops it then, and its trial has failed.
        pass_config: how a script gets its config: as "arguments", or as the path of one "json" file.
        pass_checkpoint_dir: whether a script gets ``--st_checkpoint_dir`` too: a folder to start from, if it has something
            in it, and to save to; by default if ``checkpoints`` names a store.
        working_dir: where trials run. "code": where their worker was started (without a broker: where the driver was), which
            all share, so that files they write there under one name overwrite each other. "trial": each attempt in a
            folder of its own, which begins empty and is ``mqtune.get_context().folder``; it then names files in the code's
            folder by an absolute path, such as one from ``__file__``.
        keep_working_dir: of which attempts that folder stays on its worker's machine, beside their output, if there is
            something in it: "always"; "failed", those that failed or were lost; or "never".
        code: what happens when code is not what it was when the experiment began: a worker's copy, or the script's, run again
            after a change. "warn": a warning, and the journal has since when; "strict": such a worker runs none of its
            trials, and ``run`` raises CodeDiffers. While a driver runs, edits change nothing: trials run the code as it was.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    sync: Sync = _option("stream", _one_of(*get_args(Sync)))
    start_method: StartMethod = _option(
        "spawn" if sys.platform == "darwin" else "fork", _one_of(*get_args(StartMethod))
    )
    reuse: bool = _option(False, _flag)
    ttl_s: float | None = _option(None, optional_seconds, may_change=True)
    pass_config: PassConfig = _option("arguments", _one_of(*get_args(PassConfig)))
    pass_checkpoint_dir: bool | None = _option(None, _one_of(None, False, True))
    working_dir: WorkingDir = _option("code", _one_of(*get_args(WorkingDir)), may_change=True, is_later=True)
    keep_working_dir: KeepWorkingDir = _option(
        "always", _one_of(*get_args(KeepWorkingDir)), may_change=True, is_later=True
    )
    code: CodePolicy = _option("warn", _one_of(*get_args(CodePolicy)), may_change=True, is_later=True)


@dataclass(frozen=True, kw_only=True)
class Run(_Checked):
    """What belongs to one run of an experiment rather than to the experiment.

    Args:
        max_concurrent: the most trials at once; by default as many as there are slots.
        queue_trials: whether trials wait for workers that offer what they ask for; else InsufficientResources is raised, as
            it is in any case for what this machine can't give when there is no broker.
        overwrite: whether an experiment that has the name is deleted first, with its results, logs and checkpoints; each run
            of the script then starts from scratch.
        callbacks: who is told what happens.
        progress: whether to show the progress: a table in a terminal, else a line now and then.
        tags: names by which the experiment is found again, with ``mqtune list --tag``; by default those it has.
        notes: a text about it; by default the one it has.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    max_concurrent: int | None = _option(None, _from(1), may_change=True)
    queue_trials: bool = _option(True, _flag, may_change=True)
    overwrite: bool = _option(False, _flag, key=None)
    callbacks: Sequence[Callback] = _option((), key=None)
    progress: bool = _option(True, _flag, key=None)
    tags: Sequence[str] | None = _option(None, lambda _, tags: tags is None or checked_tags(tags), key=None)
    notes: str | None = _option(None, lambda _, notes: notes is None or checked_notes(notes), key=None)


@dataclass(frozen=True)
class Local(_Checked):
    """This machine alone: a server and a worker of its own, which end with the run.

    Args:
        slots: the number of trials at once; by default as many as there is room for.

    Raises:
        ConfigurationError: *slots* is no whole number from 1.
    """

    slots: int | None = _option(None, _from(1))


class KnownTrainable(NamedTuple):
    """A trainable by its name in a definition, with the code root that it is found below."""

    spec: TrainableSpec
    code_root: Path


class HasLocalSlots(Protocol):
    """Where an experiment runs, as far as its definition says so."""

    @property
    def local_slots(self) -> int | None:
        """The number of slots asked for on this machine, without a broker."""


@dataclass(frozen=True, kw_only=True)
class Settings(_Checked):
    """All that a user says about an experiment: the parameters of ``Tuner``, under the same names."""

    trainable: AnyTrainable | KnownTrainable = field(metadata={"option": _Option(key=None)})
    space: Mapping[str, object] | Space = field(metadata={"option": _Option(key=None)})
    metric: Metric
    mode: Modes
    max_trials: int | None = _option(None, _from(1), may_change=True)
    searcher: Searcher | WarmStart | str | None = _option(None, key=None)
    scheduler: Scheduler | None = _option(None, key=None)
    stop: object = _option(None, key=None)
    resources: Resources | None = _option(None, key=None)
    backend: HasLocalSlots = field(
        metadata={"option": _Option(key="local_slots", may_change=True, keep=lambda place: place.local_slots)}
    )
    name: str | None = _option(None, key=None)
    seed: int | None = _option(None, _from(0))
    failures: Failures = field(default_factory=Failures, metadata={"group": Failures})
    checkpoints: Checkpoints = field(default_factory=Checkpoints, metadata={"group": Checkpoints})
    process: Process = field(default_factory=Process, metadata={"group": Process})
    run: Run = field(default_factory=Run, metadata={"group": Run})

    def __post_init__(self) -> None:
        super().__post_init__()
        for each in fields(self):
            group, value = each.metadata.get("group"), getattr(self, each.name)
            if group is not None and not isinstance(value, group):
                raise ConfigurationError(f"{each.name}={value!r}: give mqtune.{group.__name__}(…)")
        for name, kind, example in _KINDS:
            value = getattr(self, name)
            if name == "searcher" and isinstance(value, WarmStart):
                continue
            is_named = name == "searcher" and isinstance(value, str) and value in SEARCHERS
            if value is not None and not isinstance(value, kind) and not is_named:
                raise ConfigurationError(f"{name}={value!r} is no {kind.__name__}; {example}")

    @classmethod
    def of(
        cls,
        space: Mapping[str, object] | Space | None,
        metric: Metric | None,
        mode: Modes | None,
        failures: Failures,
        **others: Any,
    ) -> Self:
        """Return settings of which space, metric and mode may have been left out: somebody else drives the experiment then.

        Raises:
            ConfigurationError: what goes by one that was left out was given.
        """
        if space is None:
            _refuse("a space", others, "searcher", "max_trials")
            space, others["searcher"] = AnySpace(), Nobody()
        elif metric is None:
            raise ConfigurationError("metric=None: give the key, in the reports, of what is optimised over the space")
        if metric is None:
            _refuse("a metric", {"mode": mode, **others}, "mode", "scheduler", "stop")
            metric, mode, failures = "", "min", replace(failures, accept_no_report=True)
        elif mode is None:
            raise ConfigurationError(f"mode=None: give 'min' or 'max', for metric={metric!r}")
        objective = Objective.of(metric, mode)
        return cls(space=space, metric=objective.metric, mode=objective.mode, failures=failures, **others)


def _refuse(lacks: str, given: Mapping[str, object], *names: str) -> None:
    for name in names:
        if given.get(name) is not None:
            raise ConfigurationError(f"{name}={given[name]!r} needs {lacks}; give one, or leave {name} out")


_KINDS: Final[tuple[tuple[str, type, str], ...]] = (
    ("scheduler", Scheduler, "give mqtune.ASHA(…) or leave it out"),
    ("searcher", Searcher, "give one, or the name of one (random, tpe, ax), or leave it out for random search"),
    ("resources", Resources, "give mqtune.Resources(gpus=…, cpus=…)"),
)


# What a definition keeps of it.


def _kept(group: object) -> Definition:
    """Return what a definition keeps of a group of options, and of the groups in it."""
    found: Definition = {}
    for each, option, key in _options(group):
        value = getattr(group, each.name)
        if "group" in each.metadata:
            found |= _kept(value)
            continue
        outer, _, inner = key.partition(".")
        plain = value if option.keep is None or value is None else option.keep(value)
        if inner:
            found.setdefault(outer, {})[inner] = plain
        else:
            found[outer] = plain
    return found


def rebuilt(group: type[T], definition: Definition) -> T:
    """Return a group of options as a definition has it.

    Raises:
        KeyError: the definition lacks one.
        ConfigurationError, TypeError: what it has is invalid.
    """
    arguments = {}
    for each, option, key in _options(group):
        outer, _, inner = key.partition(".")
        if outer in definition or not option.is_later:
            arguments[each.name] = definition[outer][inner] if inner else definition[outer]
    return group(**arguments)


def _changeable(group: object) -> Iterator[str]:
    for each, option, key in _options(group):
        if "group" in each.metadata:
            yield from _changeable(each.metadata["group"])
        elif option.may_change:
            yield key.partition(".")[0]


#: What definitions said before ``TimeLimit`` said it: ``attach`` makes a rule of it.
RETIRED: Final[Mapping[str, Literal["driver", "trials"]]] = {"time_budget_s": "driver", "trial_time_budget_s": "trials"}
#: What may differ when an experiment goes on: how far it goes, how it ends, what is kept, and which mqtune runs it, where.
_MAY_CHANGE: Final = frozenset(_changeable(Settings)) | {"stop", "code_files", "code_root", "version"} | RETIRED.keys()
#: The names of the sources of a ``WarmStart``, and what was learnt from them; only where there is one.
LEARN_FROM: Final = "learn_from"
LEARNT: Final = "learnt"
#: What counts of a definition that was written before it had this, and what must not change.
_BEFORE: Final[Mapping[str, object]] = {"on_odd_report": "warn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far an experiment goes; see ``Tuner``, ``Run``, ``Process`` and ``Failures`` for each."""

    max_trials: int | None = None
    max_concurrent: int | None = None
    ttl_s: float | None = None
    fail_fast: FailFast = False
    rule: StopRule | None = None
    #: Whether trials may be added until somebody says that it has ended.
    is_open: bool = False


class Plan:
    """One experiment as its user wants it: its settings, with all that follows from them.

    Args:
        settings: what the user gave.

    Raises:
        ConfigurationError: an argument is invalid, or some don't go together.
        TrainableNotFound: no worker could import the trainable.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if isinstance(settings.trainable, KnownTrainable):
            self.spec, self.code_root = settings.trainable
        else:
            self.spec, self.code_root = TrainableSpec.of(settings.trainable)
            if settings.process.reuse:
                check_reusable(settings.trainable)
        #: The files of the trainable, once they were read, and those that are not as they were when the experiment began.
        self.sources: dict[str, bytes] = {}
        self.changed: list[str] = []
        #: The URL of the checkpoint store, and of the broker, or empty; known once there is a connection.
        self.store = self.broker = ""
        self.seed = settings.seed
        self.space = settings.space if isinstance(settings.space, Space) else Space(settings.space)
        self.resources = settings.resources if settings.resources is not None else Resources()
        self.name = settings.name if settings.name is not None else _new_name(self.spec)
        self.scheduler = settings.scheduler if settings.scheduler is not None else FIFO()
        if not is_name(self.name):
            raise ConfigurationError(
                f"name={self.name!r} can't name an experiment; use up to 100 letters, digits, dots, dashes and underscores"
            )
        self._learnt: Definition = {}
        self.warm_start = settings.searcher if isinstance(settings.searcher, WarmStart) else None
        self._searcher = self._chosen_searcher()
        self.objective = Objective.of(settings.metric, settings.mode)
        if self.warm_start is not None:
            self.warm_start.check_objective(self.objective)
        if self._searcher is not None:
            self._searcher.check_space(self.space)
            self._searcher.check_objective(self.objective)
            if self._searcher.wants_whole_trials and not isinstance(self.scheduler, FIFO):
                raise ConfigurationError(
                    f"scheduler={type(self.scheduler).__name__}(…): {type(self._searcher).__name__} compares trials that have run to "
                    "their own end; leave the scheduler out, or end trials by rules: stop=…"
                )
        self.scheduler.check_space(self.space)
        is_open = isinstance(self.space, AnySpace)
        if settings.metric or not is_open:
            self._bind(self.scheduler)
        self.limits = self._limits(as_rule(settings.stop), is_open=is_open)
        failures = settings.failures
        self.reading = Reading(failures.metric_from, failures.on_odd_report)
        self.experiment = Experiment(
            self.name,
            metric=settings.metric,
            mode=settings.mode,
            max_failures=failures.max_failures,
            accept_no_report=failures.accept_no_report,
        )

    def _chosen_searcher(self) -> Searcher | None:
        """Return the searcher that was given, or that the scheduler brings; None for random search."""
        given, own = self.settings.searcher, self.scheduler.searcher
        if own is not None and given is not None:
            raise ConfigurationError(
                f"searcher={given!r}: {type(self.scheduler).__name__} proposes the configs itself; leave searcher out"
            )
        if isinstance(given, WarmStart):
            return given.searcher
        return searcher_named(given) if isinstance(given, str) else own or given

    def _bind(self, decider: Decider) -> None:
        """Tell a decider what is optimised."""
        decider.check_objective(self.objective)
        decider.bind(self.objective.metrics[0], self.objective.modes[0])

    def _limits(self, rule: StopRule | None, *, is_open: bool) -> Limits:
        settings = self.settings
        if rule is not None:
            self._bind(rule)
        return Limits(
            max_trials=settings.max_trials if settings.max_trials is not None else self._default_number(),
            max_concurrent=settings.run.max_concurrent,
            ttl_s=settings.process.ttl_s,
            fail_fast=settings.failures.fail_fast,
            rule=rule,
            is_open=is_open,
        )

    def _default_number(self) -> int | None:
        """Return how many trials there are if nobody says so; None for as many as the searcher has."""
        searcher = self._searcher
        if searcher is None:
            return max(self.space.grid_size, 1)
        if isinstance(searcher, PointsFirst | Repeater) and searcher.count is not None:
            return max(self.space.grid_size, searcher.count, 1)
        return None

    @property
    def on_loss(self) -> OnLoss:
        """What workers do when nobody drives the experiment."""
        failures = self.settings.failures
        return OnLoss(failures.on_driver_loss, float(failures.driver_loss_grace_s))

    def searcher(self) -> Searcher:
        """Return the searcher, at its beginning; the seed must be known."""
        seed = self.seed or 0
        if self._searcher is None:
            return RandomSearcher(self.space, seed)
        self._searcher.bind(self.space, seed, metric=self.objective.metrics[0], mode=self.objective.modes[0])
        return self._searcher

    def read_code(self) -> None:
        """Read the trainable's files, as far as they are here: the definition then says what they hold."""
        self.sources = read_code(self.spec, self.code_root)

    def definition(self, kept: bytes | None) -> Definition:
        """Return what the journal says the experiment is: *kept*, if it exists already and is this one, else a new one.

        What may change is as this plan has it. A seed that was left out is drawn, or taken from what was kept.

        Raises:
            NameTaken: an experiment with another definition has the name.
            CodeDiffers: the code has changed, and must not.
            ConfigurationError: a new one can't learn from what it should.
        """
        before = None if kept is None else decode_definition(self.name, kept)
        if before is not None:
            before |= {key: value for key, value in _BEFORE.items() if key not in before}
        if self.seed is None:
            self.seed = before["seed"] if before is not None else secrets.randbits(32)
        now: Definition = decode_value(encode_value(self._describe()))
        if before is None:
            return now | self.learnt()
        fixed = [key for key in dict.fromkeys([*now, LEARN_FROM]) if key not in _MAY_CHANGE]
        pairs = {key: (_same(before.get(key)), _same(now.get(key))) for key in fixed}
        if differing := {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}:
            raise NameTaken(self._what_differs(differing))
        if not self.sources:
            # Where the code isn't, as with ``attach`` on another machine, it is what it was.
            now["code_files"] = before.get("code_files", {})
        self._check_code(now["code_files"], before.get("code_files"))
        return {**before, **{key: value for key, value in now.items() if key in _MAY_CHANGE}}

    def learnt(self) -> Definition:
        """Return what a new experiment's searcher learns, read once from its sources; later drivers take it from the definition.

        Raises:
            ConfigurationError: there is nothing that it could learn.
            BrokerUnavailable: the broker doesn't answer.
        """
        if self.warm_start is not None and not self._learnt:
            found = self.warm_start.read(
                self.space, self.objective.metrics[0], self.objective.modes[0], broker=self.broker
            )
            self._learnt = decode_value(encode_value({LEARNT: found}))
        return self._learnt

    def _check_code(self, now: Mapping[str, str], before: object) -> None:
        self.changed = changed_files(now, before)
        if self.changed and self.settings.process.code == "strict":
            raise CodeDiffers(
                f"experiment {self.name!r} began with other code, and goes on with no other (code='strict'): "
                f"{', '.join(self.changed)} changed. Put that back; or give this one another name; or start from scratch: "
                "run=Run(overwrite=True)"
            )

    def _what_differs(self, differing: Mapping[str, tuple[object, object]]) -> str:
        """Return, line by line, in what another experiment of this name differs, and what can be done."""
        lines = [line for key, (was, is_) in differing.items() for line in differences(key, was, is_)]
        # A searcher that has the space and the seed would say the same once more.
        lines = [line for line in lines if not any(line.startswith(f"searcher.{key}") for key in differing)]
        head = f"experiment {self.name!r} exists, and is another one:"
        ways_out = (
            f"Give this one another name, such as name={f'{self.name}-2'!r}; or go on with the one that exists: "
            f"`mqtune resume {self.name}`; or delete that, with its results, and start from scratch: "
            "run=Run(overwrite=True)"
        )
        return "\n  ".join([head, *lines, ways_out])

    def _describe(self) -> Definition:
        kept, rule = _kept(self.settings), self.limits.rule
        if kept["pass_checkpoint_dir"] is None:
            kept["pass_checkpoint_dir"] = self.settings.checkpoints.store is not None
        return kept | {
            "trainable": self.spec.encode(),
            "space": self.space.describe(),
            "searcher": described(self.searcher()),
            "scheduler": described(self.scheduler),
            "stop": None if rule is None else described(rule),
            "resources": self.resources.encode(),
            "max_trials": self.limits.max_trials,
            "seed": self.seed,
            "store": self.store,
            "code_files": fingerprints(self.spec, self.sources),
            "code_root": str(self.code_root),
            "version": __version__,
            **dict.fromkeys(RETIRED),
            **({} if self.warm_start is None else {LEARN_FROM: self.warm_start.names}),
        }


def _same(value: object) -> object:
    """Return what must be equal; a script may be started from another folder, or a class be imported by another name."""
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if key != CLASS}
        return {**value, "script": Path(value["script"]).name} if "script" in value else value
    return value


def _new_name(spec: TrainableSpec) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]", "-", spec.name)[:60]
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
