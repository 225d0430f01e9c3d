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
    """Fill the slot with a new config of the searcher's."""


class Resume(NamedTuple):
    """Fill the slot with a paused trial, from its newest checkpoint, or from that of the trial *source*.

    With a *config*, the trial has that from now on. With a *checkpoint* of the source's, it begins from that one, if it
    still exists when the trial is staged.
    """

    trial: TrialId
    reason: str = ""
    config: Config | None = None
    source: TrialId | None = None
    checkpoint: CheckpointId = CheckpointId("")


class Fork(NamedTuple):
    """Fill the slot with a new trial of this config, from the newest checkpoint of the trial *source*."""

    source: TrialId
    config: Config
    reason: str = ""


class Release(NamedTuple):
    """Stop a paused trial early, where it is: it will not be resumed. The slot is still free, and asked about again."""

    trial: TrialId
    reason: str


class Wait(NamedTuple):
    """Leave the slot free until something happens."""

    reason: str


START: Final = Start()
Choice = Start | Resume | Fork | Release | Wait


class Decider(KnownArguments, Registered, GoesByObjective):
    """Decides by the metric of one experiment: the common base of schedulers and stop rules.

    The constructor of each raises ConfigurationError for an invalid argument; the error names it and what is accepted.
    """

    meant = OF_DECIDERS
    #: The name of the experiment's metric, of several the first, and "min" or "max"; empty before :meth:`bind`.
    metric: str = ""
    mode: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that the experiment optimises; empty before :meth:`bind`."""
        return () if self.objective is None else self.objective.metrics

    def bind(self, metric: str, mode: str) -> None:
        """Set the metric to decide by, and its mode "min" or "max"; called once, before the first report.

        Raises:
            ConfigurationError: *metric* is not a name, *mode* is neither, or this was called before.
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
    """Decides after each report how its trial continues, and chooses what to do with a free slot.

    It reads trials and returns decisions; it changes nothing else. It is deterministic: the same calls in the same order
    give the same decisions, so that a driver that resumes brings it to its earlier state by repeating the calls. Only
    ``choose`` may be called any number of times in between, and must not change the scheduler's state. A scheduler
    belongs to one experiment.
    """

    role = "scheduler"
    instead_of_several = "give mqtune.MOASHA(…), or leave the scheduler out"
    group = SCHEDULERS
    #: What proposes the configs, where the scheduler itself does; the experiment then has no other searcher.
    searcher: Searcher | None = None
    #: Whether more new trials may be queued than slots are free; not if a slot may be needed for a paused trial.
    asks_ahead: bool = False
    #: What decides in a thread, once it was told to by :meth:`decide_in_background`; None for nothing.
    background: BackgroundDecisions | None = None

    def decide_in_background(self) -> None:
        """Have ``background`` decide, and ``on_report`` return CONTINUE, if decisions take longer than a millisecond.

        Called before the first trial, and not where time is virtual. The driver carries out what ``background`` decides as
        soon as it has; one that resumes has these decisions from the journal.
        """

    @property
    def time_attr(self) -> str:
        """The key of the time in the reports; empty if it does not use time.

        With a key, it is shown only reports that have a finite number there which is not below the one before, within an
        attempt. Of ``training_iteration``, a report without it counts by its sequence number.
        """
        return ""

    def check_space(self, space: Space) -> None:
        """Refuse a search space that does not suit it, before the first trial.

        Raises:
            ConfigurationError: the space lacks something; the message says what.
        """

    def on_stage(self, trial: Trial) -> None:
        """Hear that an attempt of *trial* was staged: its first, a retry, or one that ``choose`` asked for.

        ``trial.attempt`` is that attempt, with its config and the checkpoint that it starts from.
        """

    @abstractmethod
    def on_report(self, trial: Trial, report: Report) -> Decision:
        """Return the decision on *trial* after this report: CONTINUE, STOP, PAUSE or COMPLETE.

        Called once for each accepted report, in the journal's order, and not for reports of an attempt after its decision.
        In a later attempt of a trial the time goes on after that of its checkpoint, or from the start if there is none.
        """

    def on_trial_pause(self, trial: Trial) -> None:
        """Hear that *trial* is paused: its process has ended, and ``choose`` may resume it."""

    def choose(self, *, can_start: bool) -> Choice:
        """Return what to do with a free slot, without changing any state; it may be called again at once.

        ``on_stage`` and ``on_trial_end`` tell of the result.

        Args:
            can_start: whether there is a config for a new trial; if not, ``Start`` means ``Wait``.
        """
        return START

    def on_abandon(self, trial: Trial) -> None:
        """Hear that *trial* was abandoned: its reports no longer count for other trials.

        Called once, before ``on_trial_end``, as soon as it is abandoned; its process may still run.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Hear that *trial* has reached a terminal status; there are no more reports of it."""


class FIFO(Scheduler):
    """First in, first out: lets every trial run until it ends by itself.

    With *batch* that many trials begin, and the next ones once all of these have ended, so that a searcher proposes
    them by the results of all before them; those of one batch it proposes by the same results, if there are slots for
    all. A trial that a person adds is one of a batch, and so is one that fails, which has ended once no retry is left.

    Args:
        batch: how many trials begin together; None for as many as there are slots, each as one is free.
    """

    kind = "fifo"
    later: ClassVar = {"batch": ""}
    takes_several = True
    #: How many trials are in the batch, and how many trials have not ended; here, as a class of a user's may have a constructor of its own.
    _in_batch = _open = 0
    _batch: int | None = None
    asks_ahead = True

    def __init__(self, *, batch: int | None = None) -> None:
        if batch is not None:
            self._batch = checks.whole_number("FIFO", "batch", batch, 1)
            self.asks_ahead = False

    def on_stage(self, trial: Trial) -> None:
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
