"""The option groups of a tuner, such as ``Failures`` and ``Checkpoints``.

Each option is one dataclass field. Its metadata have its check, its name in the experiment's definition, and whether it
may change when the experiment continues. Definitions are written and read by these metadata.
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
from mqtune.core.labels import checked_notes, checked_tags
from mqtune.core.names import OF_GROUPS, KnownArguments
from mqtune.core.priorities import PRIORITIES, Priority
from mqtune.core.timing import Timing
from mqtune.driver.setup.retention import Retention
from mqtune.journal.base import LossPolicy
from mqtune.trainable.variables import check_variable

T = TypeVar("T")
#: An experiment's definition in its journal: a dict of options by name.
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

#: Seconds without a driver after which workers apply ``on_driver_loss``. It is long enough to run a script again, even
#: on another machine.
DRIVER_LOSS_GRACE_S: Final = 600.0
#: Default size limit of a journal, in millions of bytes. Nearly all experiments stay below a tenth of it. An experiment
#: that reports in an endless loop writes about 1 MB/s, so its users have a quarter of an hour to stop it. The limit
#: leaves half the memory of a Redis with 2 GB.
JOURNAL_MB: Final = 1_000.0


# The metadata of an option.


class _Option(NamedTuple):
    """The properties of an option beside its name, type and default."""

    #: Raises if a value is invalid. Gets the option's name and the value.
    check: _Check | None = None
    #: The option's name in the definition. If empty, the field's name. With a dot, the value is inside another dict.
    #: None: the definition does not have the option.
    key: str | None = ""
    #: Whether an experiment may continue with another value.
    may_change: bool = False
    #: Whether older definitions lack the option, because it is newer. Then its default counts.
    is_later: bool = False
    #: Whether every definition lacks the option while it has its default.
    is_rare: bool = False
    #: Converts a value for the definition.
    keep: _Keep | None = None


#: Options of ``RunOptions`` that a request may change.
SETTABLE: Final = ("max_concurrent", "priority", "share", "preemptible", "journal_mb")
_PLAIN: Final = _Option()
#: The metadata of a field that is not written to the definition in this form.
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
    """Return the dataclass field of an option. ``_Option`` explains the parameters."""
    return field(default=default, metadata={"option": _Option(check, key, may_change, is_later, is_rare, keep)})


def _options(group: object) -> Iterator[tuple[Field[Any], _Option, str]]:
    """Yield the fields of a group that a definition has, with their metadata and keys there."""
    for attribute in fields(cast("Any", group)):
        option: _Option = attribute.metadata.get("option", _PLAIN)
        if option.key is not None:
            yield attribute, option, option.key or attribute.name


class Checked(KnownArguments):
    """A group of options that checks each value when it is created."""

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
    """Return a check for an option that is None or a whole number of at least *least*."""
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
        max_failures: how often a failed trial runs again, from its newest checkpoint. -1: without a limit.
        max_lost: how often in a row a trial runs again after attempts that made no progress and were lost with their
            worker, or requeued before their first report. -1: without a limit.
        fail_fast: the effect of the first trial that fails and does not run again. False: the run continues. True: all
            other trials are stopped. "raise": ``run`` raises TrialFailed immediately, and the other trials are
            requeued.
        metric_required: "at_first_report": the run ends if the experiment's first report lacks a metric or the
            scheduler's time, because the name is probably mistyped. "eventually": first reports may lack them. After a
            report that has them, later reports may lack them in both cases.
        on_invalid_report: the handling of a report whose metric is not a number, or whose time is missing, not a number
            or lower than before. "warn": the metric is ignored, and a warning is logged once for each trial and key.
            "fail": the trial fails.
        accept_no_report: whether a trial that ends without reporting the metric is COMPLETED. Otherwise it is FAILED.
        on_driver_loss: the policy of a broker's workers after the driver was killed or closed. "continue": running and
            queued trials run. "finish": running trials finish, and no other trial starts. "stop": no trial starts, and
            running trials are requeued, with a checkpoint if they can save one. A later driver continues the experiment
            in any case.
        driver_loss_grace_s: seconds from the driver's loss until workers apply that policy. A killed driver counts as
            lost 20 s after its last heartbeat.

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
    """Where folder checkpoints are stored, and which checkpoints are kept.

    Of a trial's checkpoints, the *keep_last* newest and the *keep_best* best are kept. A checkpoint from which a trial
    may still start is always kept.

    Args:
        store: folder or fsspec URL of the store. This machine and all workers must reach it. By default, a run on this
            machine has a store in the experiment's folder, and a run on a broker has no store: then trials can only
            save dicts.
        keep_last: number of newest checkpoints to keep, at least 1. None keeps all.
        keep_best: number of best checkpoints to keep.
        score: the metric by which checkpoints are the best. By default the experiment's metric; if it has several
            metrics, no checkpoint is the best by default.
        mode: "min" or "max" of *score*. Give both or neither.
        delete: which trials lose all their checkpoints at their end. False: none. "stopped": trials that were stopped
            early, failed or abandoned. True: completed trials too. In these two cases the best trial keeps its
            checkpoints. "all": every trial, even the best. A checkpoint from which another trial may still start is
            kept until that trial has started.
        keep_trials: number of best trials that keep their checkpoints in spite of *delete*, at least 1. Trials count
            from their ends on. More than 1 needs an experiment with one metric, and ``delete="stopped"`` or
            ``delete=True``.

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
                f"Checkpoints(keep_trials={self.keep_trials}, delete={self.delete!r}): keep_trials above 1 needs "
                f"delete='stopped' or delete=True, which spare the best trials"
            )

    @property
    def retention(self) -> Retention:
        """The rule which of a trial's checkpoints are kept."""
        return Retention(self.keep_last, self.keep_best, self.score, self.mode)


@dataclass(frozen=True, kw_only=True)
class Process(Checked):
    """How a trial's process runs.

    Args:
        sync: "stream": ``report`` returns immediately, and a decision reaches its trial within milliseconds.
            "lockstep": each ``report`` waits for the decision, so no line of user code runs after a report that stops
            or pauses its trial.
        start_method: "fork" starts a trial in a fork of a process that has imported the installed packages of its
            program. "spawn" starts an interpreter for each trial, for packages that can't be forked. By default "fork",
            on macOS "spawn".
        reuse: whether one process runs several trials of its slot in turn with one instance of the trainable class. Its
            ``reset_config`` must return True (see ``mqtune.Trainable``). ``attempt.retired`` says why a process was not
            used again. See docs/processes.md.
        timeout_s: longest time that an attempt may run, in seconds. After it the worker stops the attempt, and the
            trial has failed.
        pass_config: how a script gets its config: as "arguments", or as the path of one "json" file.
        pass_checkpoint_dir: whether a script also gets ``--st_checkpoint_dir``: a folder to save checkpoints to. If the
            trial starts from a checkpoint, the folder has it. By default only if ``checkpoints`` names a store.
        env: environment variables of trials, in addition to the worker's. They are set before the program is imported.
            Variables that could run other code, such as PYTHONPATH, are refused.
        working_dir: the working directory of trials. "trial": each attempt has a folder of its own,
            ``mqtune.get_context().folder``. It shows the files of the code's folder, so relative paths can read them.
            New files belong to the attempt only. "code": all trials run in the code's folder, so they overwrite each
            other's files of the same name. See docs/processes.md.
        keep_working_dir: which attempts' new files stay on the worker's machine: "always" all; "failed" only those of
            failed and lost attempts; "never" none.
        code: the handling of code that has changed since the experiment began, on a worker or in the script's folder.
            "warn": a warning is logged, and the journal has the time of the change. "strict": such a worker runs none
            of the trials, and ``run`` raises CodeDiffers. While a driver runs, edits have no effect: trials run the
            code as it was.
        bundle: a folder with the trainable, such as ".". The driver sends its files to workers that accept code
            (``mqtune worker --accept-code``). By default workers must have the code themselves. See docs/workers.md.

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
    """The options of one run of an experiment. Each run may have others.

    Args:
        max_concurrent: largest number of trials that run at the same time. By default the number of slots.
        priority: "high", "normal" or "low". On a fleet that several experiments share, experiments of a higher priority
            get all the slots that they can use before others. See docs/how-to/shared-fleet.md.
        share: weight by which experiments of the same priority divide the slots: 2.0 gets twice as many slots as 1.0.
            Slots that one experiment doesn't use go to the others.
        preemptible: whether trials may be paused to free slots for waiting experiments, when this one has had more than
            its share for a minute. Only trials with a checkpoint are paused, and they resume from it by themselves.
        journal_mb: largest size of the experiment's journal in Redis, in millions of bytes, at least a few. 1,000 are
            about 5 to 10 million reports. On a broker with ``Checkpoints(store=…)``, the oldest entries move to the
            store when they have 8 MB, or half of this limit. While the journal is full, no trial begins, ``report()``
            waits, and a warning says so. That ends when you raise the limit (``mqtune set NAME journal_mb=…``). So one
            experiment can't fill a Redis that others use too.
        queue_trials: whether trials wait for workers that offer their resources. Otherwise InsufficientResources is
            raised. A run on this machine always raises it if the machine lacks the resources.
        overwrite: whether to delete an existing experiment of this name first, with its results, logs and checkpoints.
            Then each run of the script starts from scratch.
        callbacks: objects that are notified of events.
        progress: whether to show the progress: in a terminal a table, elsewhere a line now and then.
        tags: names by which to find the experiment, for example with ``mqtune list --tag``. None keeps the existing
            ones.
        notes: remarks on the experiment. None keeps the existing ones.
        timing: leases, intervals and time-outs of the driver. Its workers need the same leases and locks.

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
    """A run on this machine alone, with a server and a worker that end with the run.

    Args:
        slots: the number of trials that run at the same time. By default as many as fit on this machine.

    Raises:
        ConfigurationError: *slots* is not a whole number of at least 1.
    """

    slots: int | None = option(None, count_from(1))


#: For each option of a group, how to pass it to ``Tuner``: a hint for users who pass it as an argument of ``Tuner``.
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
    """Return the part of a definition with the options of a group, and of groups inside it."""
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
    """Return a group of options with the values of a definition.

    Raises:
        KeyError: the definition lacks an option.
        ConfigurationError, TypeError: an option's value is invalid.
    """
    arguments = {}
    for attribute, option, key in _options(group):
        outer, _, inner = key.partition(".")
        if outer in definition or not (option.is_later or option.is_rare):
            arguments[attribute.name] = definition[outer][inner] if inner else definition[outer]
    return group(**arguments)


def changeable(group: object) -> Iterator[str]:
    """Yield the definition's keys of options that may change when an experiment continues."""
    for attribute, option, key in _options(group):
        if "group" in attribute.metadata:
            yield from changeable(attribute.metadata["group"])
        elif option.may_change:
            yield key.partition(".")[0]


#: With a ``WarmStart``, the definition's key for the names of the experiments to learn from.
LEARN_FROM: Final = "learn_from"
#: With a ``WarmStart``, the definition's key for the trials of these experiments.
LEARNT: Final = "learnt"
