"""The options of a tuner, in groups, each checked when it is given.

Each option is spelled once, as a field: its default, its check, its name in the experiment's definition, and whether it
may change when the experiment continues. The definition, and what ``Tuner.attach`` makes of it, follow from that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast, get_args

from mqtune.core.callback import Callback
from mqtune.core.checks import flag, one_of, optional_count, optional_seconds, positive, whole_number
from mqtune.core.errors import ConfigurationError
from mqtune.core.experiment import LOST_BUDGET
from mqtune.core.names import OF_GROUPS, KnownArguments
from mqtune.core.priorities import PRIORITIES, Priority
from mqtune.core.timing import Timing
from mqtune.core.trial import checked_notes, checked_tags
from mqtune.driver.retention import Retention
from mqtune.journal.base import LossPolicy
from mqtune.trainable.variables import check_variable

T = TypeVar("T")
#: An experiment as its journal has it, by the names of its options.
Definition = dict[str, Any]
_Check = Callable[[str, Any], object]
_Keep = Callable[[Any], object]

FailFast = Literal[False, True, "raise"]
MetricRequired = Literal["at_first_report", "eventually"]
OnInvalidReport = Literal["warn", "fail"]
#: The trials that lose all their checkpoints at their end.
Deletes = bool | Literal["stopped", "all"]
StartMethod = Literal["fork", "spawn"]
Sync = Literal["stream", "lockstep"]
PassConfig = Literal["arguments", "json"]
#: Where a trial's process runs: in its worker's working directory, or in a folder of its own.
WorkingDir = Literal["code", "trial"]
#: The attempts whose folder is kept.
KeepWorkingDir = Literal["always", "failed", "never"]
#: The handling of an experiment's code that has changed since its begin: a warning, or nothing runs.
CodePolicy = Literal["warn", "strict"]

#: For how long nobody need drive an experiment before its workers apply ``on_driver_loss``: long enough to run a script
#: again, also on another machine.
DRIVER_LOSS_GRACE_S: Final = 600.0
#: How large a journal may be by default, in millions of bytes. Nearly all experiments stay below a tenth of it, and one
#: that loops over ``report()`` without end, some 1 MB/s, leaves a team a quarter of an hour, and a Redis of 2 GB half
#: of its memory.
JOURNAL_MB: Final = 1_000.0


# How an option is spelled.


class _Option(NamedTuple):
    """The properties of an option beside its name, type and default.

    ``key`` is its name in the definition, the field's own if empty and with a dot for a value within a value; None
    keeps it out. ``may_change`` says that an experiment may go on with another value. ``is_later`` says that
    definitions which were written before the option existed lack it; its default counts for them. ``is_rare`` says
    that every definition lacks it while it has its default.
    """

    check: _Check | None = None
    key: str | None = ""
    may_change: bool = False
    is_later: bool = False
    is_rare: bool = False
    keep: _Keep | None = None


_PLAIN: Final = _Option()
#: The metadata of a field that is in no definition as it is.
NOT_KEPT: Final = {"option": _Option(key=None)}


def option(
    default: T,
    check: _Check | None = None,
    *,
    key: str | None = "",
    may_change: bool = False,
    is_later: bool = False,
    is_rare: bool = False,
    keep: _Keep | None = None,
) -> T:
    """Return the field of an option; see ``_Option``."""
    return field(default=default, metadata={"option": _Option(check, key, may_change, is_later, is_rare, keep)})


def _options(group: object) -> Iterator[tuple[Field[Any], _Option, str]]:
    """Yield the options of a group and of its groups, with their names in a definition."""
    for attribute in fields(cast("Any", group)):
        option: _Option = attribute.metadata.get("option", _PLAIN)
        if option.key is not None:
            yield attribute, option, option.key or attribute.name


class Checked(KnownArguments):
    """Checks each of its options when it is made."""

    meant = OF_GROUPS

    def __post_init__(self) -> None:
        for attribute in fields(cast("Any", self)):
            option: _Option = attribute.metadata.get("option", _PLAIN)
            if option.check is not None:
                option.check(attribute.name, getattr(self, attribute.name))


def _flag(name: str, value: object) -> object:
    return flag("", name, value)


def _one_of(*known: object) -> Callable[[str, object], object]:
    return lambda name, value: one_of("", name, value, known)


def count_from(least: int) -> Callable[[str, object], object]:
    """Return the check of an option that is None or a whole number from *least* on."""
    return lambda name, value: optional_count(name, value, least)


def _is_retry_count(name: str, value: object) -> object:
    return whole_number("", name, value, -1)


def _is_place(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str | Path) or not str(value).strip()):
        url = " or a URL such as s3://bucket/folder," if name == "store" else ""
        raise ConfigurationError(f"{name}={value!r}: give a folder,{url} or leave it out")


def _is_environment(_: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise ConfigurationError(f"env={value!r}: give a dict of names and values, both texts")
    for name, text in value.items():
        check_variable(name, text)


def _is_above_zero(name: str, value: object) -> object:
    return positive("", name, value)


# The groups.


@dataclass(frozen=True, kw_only=True)
class Failures(Checked):
    """The handling of failed trials, unreadable reports and a lost driver.

    Args:
        max_failures: how often a trial that fails is run again, from its newest checkpoint; -1: always.
        max_lost: how often in a row a trial is run again whose attempt was lost with its worker, or requeued by it
            before its first report, while it comes no further than before; -1: always.
        fail_fast: the effect of the first trial that finally fails: False: none; True: all others are stopped; "raise":
            ``run`` raises TrialFailed immediately, and the others are requeued.
        metric_required: "at_first_report": a first report without the metric, or one of several, or without the
            scheduler's time, ends the run, as the name must be mistyped; "eventually": such reports may come first.
            Once any report had it, others need not.
        on_invalid_report: the handling of a report whose metric is not a number, or whose time is missing, not a
            number or goes down: "warn": it counts as one without the metric, with one warning for each trial and key;
            "fail": its trial fails.
        accept_no_report: whether a trial that ends without reporting the metric is completed rather than failed.
        on_driver_loss: the policy of a broker's workers after the driver was killed or closed: "continue": running and
            queued trials run; "finish": running trials run on and nothing else starts; "stop": running trials are
            requeued too, with a checkpoint if they can save one. A later driver continues in any case.
        driver_loss_grace_s: how long after that, in seconds; a killed driver counts as gone 20 s after its last sign.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    max_failures: int = option(0, _is_retry_count)
    max_lost: int = option(LOST_BUDGET, _is_retry_count, is_later=True)
    fail_fast: FailFast = option(False, _one_of(False, True, "raise"), may_change=True)
    metric_required: MetricRequired = option(
        "at_first_report", _one_of(*get_args(MetricRequired)), may_change=True, is_later=True
    )
    on_invalid_report: OnInvalidReport = option("warn", _one_of(*get_args(OnInvalidReport)), is_later=True)
    accept_no_report: bool = option(False, _flag)
    on_driver_loss: LossPolicy = option("continue", _one_of(*get_args(LossPolicy)), may_change=True)
    driver_loss_grace_s: float = option(DRIVER_LOSS_GRACE_S, _is_above_zero, may_change=True, keep=float)


@dataclass(frozen=True)
class Checkpoints(Checked):
    """Where checkpoints that are folders are stored, and which are kept.

    Of a trial's checkpoints the *keep_last* newest and the *keep_best* best are kept. The newest is always kept, and so
    is one from which something may still start.

    Args:
        store: folder, or fsspec URL, of the store, which this machine and all workers must reach; by default a folder
            of the experiment's if all runs on this machine, else none: then only dicts can be saved.
        keep_last: how many of the newest, at least 1; None keeps all.
        keep_best: how many of the best.
        score: the metric that says which is best; by default the experiment's. Where that has several, none is the best
            without it.
        mode: "min" or "max" of *score*; by default the experiment's.
        delete: the trials that lose all their checkpoints when they end: False: none; "stopped": trials that were
            stopped early, failed or abandoned; True: completed trials too; "all": even the best one, whose checkpoints
            stay otherwise. A checkpoint from which another trial may still start stays until then.
        keep_trials: how many of the best trials *delete* spares, at least 1. More than 1 goes with one metric, and with
            ``delete="stopped"`` or ``delete=True``. A trial counts from its end on.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    store: str | Path | None = option(None, _is_place, key=None)
    _: KW_ONLY
    keep_last: int | None = option(1, key="retention.keep_last", may_change=True)
    keep_best: int = option(1, key="retention.keep_best", may_change=True)
    score: str = option("", key="retention.score", may_change=True)
    mode: Literal["min", "max", ""] = option("", key="retention.mode", may_change=True)
    delete: Deletes = option(False, _one_of(False, "stopped", True, "all"), key="delete_checkpoints", may_change=True)
    keep_trials: int = option(1, key="keep_checkpoints_of", may_change=True, is_rare=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.retention
        whole_number("Checkpoints", "keep_trials", self.keep_trials, 1)
        if self.keep_trials > 1 and self.delete in (False, "all"):
            raise ConfigurationError(
                f"Checkpoints(keep_trials={self.keep_trials}, delete={self.delete!r}): it needs delete='stopped' or "
                f"delete=True, which spare the best trials"
            )

    @property
    def retention(self) -> Retention:
        """Which of a trial's checkpoints are kept."""
        return Retention(self.keep_last, self.keep_best, self.score, self.mode)


@dataclass(frozen=True, kw_only=True)
class Process(Checked):
    """How a trial's process runs.

    Args:
        sync: "stream": reports flow, and a decision reaches its trial within milliseconds; "lockstep": each ``report``
            waits for the decision, so that no line of user code runs after a report that stops or pauses its trial.
        start_method: "fork" starts a trial in a fork of a process that has imported the installed packages of its
            program; "spawn" starts an interpreter for each trial, for packages that can't be forked. By default "fork",
            on macOS "spawn".
        reuse: whether the process of a trial runs the next trial in its slot too, with its instance, for a class whose
            ``reset_config`` returns True (see ``mqtune.Trainable``). ``attempt.retired`` says why one did not. See
            docs/processes.md.
        timeout_s: for how long an attempt may run, in seconds; its worker stops it then, and its trial has failed.
        pass_config: how a script gets its config: as "arguments", or as the path of one "json" file.
        pass_checkpoint_dir: whether a script gets ``--st_checkpoint_dir`` too: a folder to start from, if it has
            something in it, and to save to; by default if ``checkpoints`` names a store.
        env: variables of the environment of trials, besides their worker's. They are there before the program is
            imported. Variables by which other code would run, such as PYTHONPATH, are refused.
        working_dir: where trials run. "trial": each attempt in a folder of its own, ``mqtune.get_context().folder``, in
            which relative paths read the files of the code's folder, and new files are the attempt's own. "code": all
            in the code's folder, so that files which they write there under one name overwrite each other. See
            docs/processes.md.
        keep_working_dir: the attempts whose new files stay on their worker's machine, beside the output: "always" all;
            "failed" failed and lost ones; or "never".
        code: the handling of code that has changed since the experiment began: a worker's copy, or the script's, run
            again after a change. "warn": a warning, and the journal has the time; "strict": such a worker runs none of
            its trials, and ``run`` raises CodeDiffers. While a driver runs, edits change nothing: trials run the code
            as it was.
        bundle: a folder with the trainable, whose files the driver brings to workers that take code
            (``mqtune worker --accept-code``), such as "."; by default they have the code themselves. See
            docs/workers.md.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    sync: Sync = option("stream", _one_of(*get_args(Sync)))
    start_method: StartMethod = option("spawn" if sys.platform == "darwin" else "fork", _one_of(*get_args(StartMethod)))
    reuse: bool = option(False, _flag)
    timeout_s: float | None = option(None, optional_seconds, may_change=True)
    pass_config: PassConfig = option("arguments", _one_of(*get_args(PassConfig)))
    pass_checkpoint_dir: bool | None = option(None, _one_of(None, False, True))
    env: Mapping[str, str] | None = option(None, _is_environment, may_change=True, is_later=True, keep=dict)
    working_dir: WorkingDir = option("trial", _one_of(*get_args(WorkingDir)), may_change=True, is_later=True)
    keep_working_dir: KeepWorkingDir = option(
        "always", _one_of(*get_args(KeepWorkingDir)), may_change=True, is_later=True
    )
    code: CodePolicy = option("warn", _one_of(*get_args(CodePolicy)), may_change=True, is_later=True)
    bundle: str | Path | None = option(None, _is_place, key=None)


@dataclass(frozen=True, kw_only=True)
class RunOptions(Checked):
    """The options of one run of an experiment, rather than of the experiment.

    Args:
        max_concurrent: the largest number of running trials; by default the number of slots.
        priority: on a fleet that several experiments use, those of a "high" priority have the slots that they want
            before "normal" ones, and these before "low" ones. See docs/how-to/shared-fleet.md.
        share: how many slots it gets against others of its priority: with 2.0 twice as many as with 1.0. What one does
            not use, the others have.
        preemptible: whether trials that have saved a checkpoint are paused where others wait for slots and this
            experiment has had more than its share for a minute; they go on from it by themselves.
        journal_mb: how much of the experiment's journal may be in Redis, in millions of bytes of entries; 1,000 are
            some 5 to 10 million reports. On a broker, with ``Checkpoints(store=…)``, its oldest entries move to the
            store once there are 8 MB, or half of this, which is to be a few MB at least. Once it is full, no trial
            begins, ``report()`` waits as while Redis is away, and a warning says so, until it is raised (``mqtune set
            NAME journal_mb=…``) or the experiment ends. So one experiment can't fill the Redis of all.
        queue_trials: whether trials wait for workers that offer their resources; else InsufficientResources is raised.
            Without a broker it is raised in any case for resources that this machine lacks.
        overwrite: whether an experiment that has the name is deleted first, with its results, logs and checkpoints;
            each run of the script then starts from scratch.
        callbacks: objects that are notified of events.
        progress: whether to show the progress: a table in a terminal, else a line now and then.
        tags: names by which the experiment is found again, with ``mqtune list --tag``; by default those it has.
        notes: a text about it; by default the one it has.
        timing: leases, checks and timeouts of the driver; its workers need the same leases and locks.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    max_concurrent: int | None = option(None, count_from(1), may_change=True)
    priority: Priority = option("normal", _one_of(*PRIORITIES), may_change=True, is_later=True)
    share: float = option(1.0, _is_above_zero, may_change=True, is_later=True, keep=float)
    preemptible: bool = option(False, _flag, may_change=True, is_later=True)
    journal_mb: float = option(JOURNAL_MB, _is_above_zero, may_change=True, is_later=True, keep=float)
    queue_trials: bool = option(True, _flag, may_change=True)
    overwrite: bool = option(False, _flag, key=None)
    callbacks: Sequence[Callback] = option((), key=None)
    progress: bool = option(True, _flag, key=None)
    tags: Sequence[str] | None = option(None, lambda _, tags: tags is None or checked_tags(tags), key=None)
    notes: str | None = option(None, lambda _, notes: notes is None or checked_notes(notes), key=None)
    timing: Timing = option(Timing(), key=None)


@dataclass(frozen=True)
class Local(Checked):
    """This machine alone: a server and a worker of its own, which end with the run.

    Args:
        slots: the number of trials that run together; by default as many as fit.

    Raises:
        ConfigurationError: *slots* is no whole number from 1.
    """

    slots: int | None = option(None, count_from(1))


#: Where options stand that somebody may look for among the tuner's arguments.
ELSEWHERE: Final[Mapping[str, str]] = {
    attribute.name: f"{argument}=mqtune.{group.__name__}({attribute.name}=…)"
    for argument, group in (
        ("run", RunOptions),
        ("process", Process),
        ("checkpoints", Checkpoints),
        ("failures", Failures),
    )
    for attribute in fields(group)
}


# The options in a definition.


def kept_options(group: object) -> Definition:
    """Return what a definition keeps of a group of options, and of the groups in it."""
    definition: Definition = {}
    for attribute, option, key in _options(group):
        value = getattr(group, attribute.name)
        if "group" in attribute.metadata:
            definition |= kept_options(value)
            continue
        if option.is_rare and value == attribute.default:
            continue
        outer, _, inner = key.partition(".")
        plain = value if option.keep is None or value is None else option.keep(value)
        if inner:
            definition.setdefault(outer, {})[inner] = plain
        else:
            definition[outer] = plain
    return definition


def rebuilt(group: type[T], definition: Definition) -> T:
    """Return a group of options as a definition has it.

    Raises:
        KeyError: the definition lacks one.
        ConfigurationError, TypeError: its value is invalid.
    """
    arguments = {}
    for attribute, option, key in _options(group):
        outer, _, inner = key.partition(".")
        if outer in definition or not (option.is_later or option.is_rare):
            arguments[attribute.name] = definition[outer][inner] if inner else definition[outer]
    return group(**arguments)


def changeable(group: object) -> Iterator[str]:
    """Yield the names in a definition of the options that may change when an experiment continues."""
    for attribute, option, key in _options(group):
        if "group" in attribute.metadata:
            yield from changeable(attribute.metadata["group"])
        elif option.may_change:
            yield key.partition(".")[0]


#: The keys, with a ``WarmStart``, for the names of its sources and for the trials that it has learnt from.
LEARN_FROM: Final = "learn_from"
LEARNT: Final = "learnt"
