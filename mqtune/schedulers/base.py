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
    """Fill the slot with a new config of the searcher."""


class Resume(NamedTuple):
    """Fill the slot with a paused trial, from its newest checkpoint, or from that of *source*.

    With a *config*, the trial has that from now on. With a *checkpoint* of the source, it starts from that one, if it
    still exists when the trial is queued.
    """

    trial: TrialId
    reason: str = ""
    config: Config | None = None
    source: TrialId | None = None
    checkpoint: CheckpointId = CheckpointId("")


class Fork(NamedTuple):
    """Fill the slot with a new trial of this config, from the newest checkpoint of *source*."""

    source: TrialId
    config: Config
    reason: str = ""


class Release(NamedTuple):
    """Stop a paused trial early. The slot stays free, and ``choose`` is called again."""

    trial: TrialId
    reason: str


class Wait(NamedTuple):
    """Leave the slot free until something happens."""

    reason: str


START: Final = Start()
Choice = Start | Resume | Fork | Release | Wait


class Decider(KnownArguments, Registered, GoesByObjective):
    """Decides by the metric of one experiment: the base of schedulers and stop rules.

    Constructors raise ConfigurationError for an invalid argument. The error names it and the accepted values.
    """

    meant = OF_DECIDERS
    #: The experiment's first metric, and "min" or "max". Empty before :meth:`bind`.
    metric: str = ""
    mode: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        return () if self.objective is None else self.objective.metrics

    def bind(self, metric: str, mode: str) -> None:
        """Set the metric and its mode, "min" or "max". Called once, before the first report.

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
    """Decides after each report how its trial continues, and how free slots are used.

    It changes nothing but itself, and belongs to one experiment. It is deterministic: the same calls give the same
    decisions, so a resumed driver repeats the calls. Only ``choose`` may be called any number of times in between, and
    must not change the state.
    """

    role = "scheduler"
    instead_of_several = "give mqtune.MOASHA(…), or leave the scheduler out"
    group = SCHEDULERS
    #: The searcher, if the scheduler proposes the configs itself.
    searcher: Searcher | None = None
    #: Whether more new trials may be queued than slots are free. Not if paused trials may need a slot.
    asks_ahead: bool = False
    #: Decides in a thread, once :meth:`decide_in_background` was called.
    background: BackgroundDecisions | None = None

    def decide_in_background(self) -> None:
        """Have ``background`` decide if decisions take longer than a millisecond.

        ``on_report`` then returns CONTINUE, and the driver applies ``background``'s decisions when they come. A resumed
        driver reads them from the journal. Called before the first trial, and not in virtual time.
        """

    @property
    def time_attr(self) -> str:
        """The reports' key of the time, or empty if the scheduler uses no time.

        It receives only reports with a finite number there, which does not go down within an attempt. A report without
        ``training_iteration`` counts by its sequence number.
        """
        return ""

    def check_space(self, space: Space) -> None:
        """Check the search space, before the first trial.

        Raises:
            ConfigurationError: the space is unsuitable.
        """

    def on_queue(self, trial: Trial) -> None:
        """Learn that ``trial.attempt`` was queued: the first, a retry, or a choice of ``choose``."""

    @abstractmethod
    def on_report(self, trial: Trial, report: Report) -> Decision:
        """Return the decision on *trial* after this report: CONTINUE, STOP, PAUSE or COMPLETE.

        Called once for each accepted report, in the journal's order, and not after a decision on the attempt. A later
        attempt continues with the time of its checkpoint, without one from the start.
        """

    def on_trial_pause(self, trial: Trial) -> None:
        """Learn that *trial* is paused: its process has ended, and ``choose`` may resume it."""

    def choose(self, *, can_start: bool) -> Choice:
        """Return the use of a free slot, without changing any state.

        It may be called again immediately. ``on_queue`` and ``on_trial_end`` report the result.

        Args:
            can_start: whether there is a config for a new trial. If not, ``Start`` means ``Wait``.
        """
        return START

    def on_abandon(self, trial: Trial) -> None:
        """Learn that *trial* was abandoned: its reports no longer count for other trials.

        Called once, before ``on_trial_end``. Its process may still run.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Learn that *trial* has reached a terminal status."""


class FIFO(Scheduler):
    """First in, first out: lets every trial run until it ends by itself.

    With *batch*, that many trials begin together, and the next batch begins when all have ended. So a searcher proposes
    a batch with the results of all before it. Trials that a person adds count. A failed trial ends with its last retry.

    Args:
        batch: the number of trials that begin together. By default each begins when a slot is free.
    """

    kind = "fifo"
    later: ClassVar = {"batch": ""}
    takes_several = True
    #: Trials of the batch, and unfinished trials. Class attributes, as a subclass may have its own constructor.
    _in_batch = _open = 0
    _batch: int | None = None
    asks_ahead = True

    def __init__(self, *, batch: int | None = None) -> None:
        if batch is not None:
            self._batch = checks.whole_number("FIFO", "batch", batch, 1)
            self.asks_ahead = False

    def on_queue(self, trial: Trial) -> None:
        if trial.attempt.number > 1:
            return
        if self._batch is not None and self._in_batch >= self._batch and not self._open:
            self._in_batch = 0
        self._in_batch += 1
        self._open += 1

    def on_trial_end(self, trial: Trial) -> None:
        self._open -= 1

    def choose(self, *, can_start: bool) -> Choice:
        if self._batch is None or self._in_batch < self._batch or not self._open:
            return START
        return Wait(f"the last of a batch of {self._batch} trials to end")

    def on_report(self, trial: Trial, report: Report) -> Decision:
        return CONTINUE
