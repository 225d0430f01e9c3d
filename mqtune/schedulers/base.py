"""The interface of schedulers, and FIFO, which stops no trial."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, NamedTuple, cast

from mqtune.core import checks
from mqtune.core.entry_points import SCHEDULERS
from mqtune.core.errors import ConfigurationError
from mqtune.core.names import OF_DECIDERS, KnownArguments
from mqtune.core.objective import METRIC_KEY, GoesByObjective, Mode, Objective
from mqtune.core.registry import Registered
from mqtune.core.trial import CONTINUE, CheckpointId, Config, Decision, Report, Trial, TrialId
from mqtune.schedulers.background import BackgroundDecisions
from mqtune.search.base import Searcher
from mqtune.search.space import Space


class Start(NamedTuple):
    """Start a new trial in the free slot: one that a user added, or the searcher's next one."""


class Resume(NamedTuple):
    """Resume a paused trial in the free slot."""

    trial: TrialId
    reason: str = ""
    #: The trial's new config. None: the config stays the same.
    config: Config | None = None
    #: The trial from whose newest checkpoint to start. None: the trial itself.
    source: TrialId | None = None
    #: The checkpoint to start from. If it is empty or no longer exists, the newest one.
    checkpoint: CheckpointId = CheckpointId("")


class Fork(NamedTuple):
    """Start a new trial in the free slot, from the newest checkpoint of *source*."""

    source: TrialId
    config: Config
    reason: str = ""


class Release(NamedTuple):
    """Stop a paused trial early. The slot stays free, and ``choose`` is called again."""

    trial: TrialId
    reason: str


class Wait(NamedTuple):
    """Leave the slot free until the next event."""

    reason: str


START: Final = Start()
Choice = Start | Resume | Fork | Release | Wait


class Decider(KnownArguments, Registered, GoesByObjective):
    """Base class of schedulers and stop rules: decides by the metric of one experiment.

    A constructor raises ConfigurationError if an argument is invalid. The message names the argument and the accepted
    values.
    """

    meant = OF_DECIDERS
    #: The experiment's first metric. Empty before :meth:`bind`.
    metric: str = ""
    #: "min" or "max". Empty before :meth:`bind`.
    mode: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        return () if self.objective is None else self.objective.metrics

    def bind(self, metric: str, mode: str) -> None:
        """Set the metric and its mode, "min" or "max".

        The driver calls this once, before the first report.

        Raises:
            ConfigurationError: an argument is invalid, or this was called before.
        """
        checks.name("", "metric", metric, METRIC_KEY)
        checks.one_of("", "mode", mode, ("min", "max"))
        if self.metric:
            raise ConfigurationError(
                f"this {type(self).__name__} decides on {self.metric!r} for an experiment already; make another one"
            )
        self.metric = metric
        self.mode = mode
        if self.objective is None:
            self.objective = Objective.of(metric, cast("Mode", mode))


class Scheduler(Decider, ABC):
    """Decides after each report whether its trial continues, and how free slots are used.

    A scheduler belongs to one experiment, and has no effect except by its return values. It must be deterministic: the
    same calls give the same decisions. A resumed driver repeats the calls to restore the state. ``choose`` is the
    exception: it may be called any number of times in between, and must not change the state.
    """

    role = "scheduler"
    instead_of_several = "give mqtune.MOASHA(…), or leave the scheduler out"
    group = SCHEDULERS
    #: The searcher, if the scheduler proposes the configs itself.
    searcher: Searcher | None = None
    #: Whether the driver may queue a second new trial for each slot. False if paused trials may need the slots.
    asks_ahead: bool = False
    #: The thread that decides after :meth:`decide_in_background`. None: ``on_report`` decides.
    background: BackgroundDecisions | None = None

    def decide_in_background(self) -> None:
        """Decide in a thread from now on, if decisions take longer than a millisecond.

        Set ``background`` for that. ``on_report`` then returns CONTINUE, and the driver carries out the decisions of
        ``background`` when they come. A resumed driver reads them from the journal. The driver calls this before the
        first trial, but not in virtual time.
        """

    @property
    def time_attr(self) -> str:
        """The reports' key of the time, such as ``training_iteration``.

        Empty if the scheduler uses no time. The scheduler gets only reports with a finite number under this key, and
        the number never decreases within an attempt. If the key is ``training_iteration`` and a report lacks it, the
        report's sequence number counts.
        """
        return ""

    def check_space(self, space: Space) -> None:
        """Check before the first trial that the scheduler can work with the search space.

        Raises:
            ConfigurationError: it can't.
        """

    def on_queue(self, trial: Trial) -> None:
        """Note that an attempt was queued: of a new trial, of a retry, or chosen by ``choose``.

        It is ``trial.attempt``.
        """

    @abstractmethod
    def on_report(self, trial: Trial, report: Report) -> Decision:
        """Return the decision on *trial* after this report: CONTINUE, STOP, PAUSE or COMPLETE.

        The driver calls this once for each report, in the journal's order. Reports after a decision on their attempt
        are left out. The reports of a later attempt continue at the time of its checkpoint, or start again without one.
        """

    def on_trial_pause(self, trial: Trial) -> None:
        """Note that *trial* is paused: its process has ended, and ``choose`` may resume it."""

    def choose(self, *, can_start: bool) -> Choice:
        """Return what to do with a free slot, without changing any state.

        The driver may call this any number of times. If it carries the choice out, it calls ``on_queue`` or, for a
        ``Release``, ``on_trial_end``.

        Args:
            can_start: whether there is a config for a new trial. If not, ``Start`` leaves the slot free.
        """
        return START

    def on_abandon(self, trial: Trial) -> None:
        """Note that *trial* was abandoned: from now on its reports must not affect other trials.

        The driver calls this once, before ``on_trial_end``. The trial's process may still run.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Note that *trial* has reached a terminal status."""


class FIFO(Scheduler):
    """First in, first out: lets every trial run until it ends by itself.

    With *batch*, that many trials form a batch, and the next batch begins when all of them have ended. So the searcher
    knows the results of all earlier batches. Trials that a person adds count. A failed trial has ended when it is not
    retried any more.

    Args:
        batch: number of trials in a batch. By default there are no batches: a trial begins when a slot is free.
    """

    kind = "fifo"
    later: ClassVar = {"batch": ""}
    takes_several = True
    # These are class attributes because a subclass's constructor may not call this one's.
    #: The number of trials in the current batch, and the number of unfinished trials.
    _in_batch = _unfinished = 0
    _batch: int | None = None
    asks_ahead = True

    def __init__(self, *, batch: int | None = None) -> None:
        if batch is not None:
            self._batch = checks.whole_number("FIFO", "batch", batch, 1)
            self.asks_ahead = False

    def on_queue(self, trial: Trial) -> None:
        if trial.attempt.number > 1:
            return
        if self._batch is not None and self._in_batch >= self._batch and not self._unfinished:
            self._in_batch = 0
        self._in_batch += 1
        self._unfinished += 1

    def on_trial_end(self, trial: Trial) -> None:
        self._unfinished -= 1

    def choose(self, *, can_start: bool) -> Choice:
        if self._batch is None or self._in_batch < self._batch or not self._unfinished:
            return START
        return Wait(f"the last of a batch of {self._batch} trials to end")

    def on_report(self, trial: Trial, report: Report) -> Decision:
        return CONTINUE
