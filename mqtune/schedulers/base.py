"""What every scheduler promises, and the simplest one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, NamedTuple

from mqtune.core import checks
from mqtune.core.errors import ConfigurationError
from mqtune.core.registry import Registered
from mqtune.core.trial import CONTINUE, CheckpointId, Config, Decision, Report, Trial, TrialId
from mqtune.search.space import Space

__all__ = [
    "FIFO",
    "METRIC_KEY",
    "START",
    "Choice",
    "Decider",
    "Fork",
    "Release",
    "Resume",
    "Scheduler",
    "Start",
    "Wait",
]


#: What to give where a metric is not a name.
METRIC_KEY: Final = "the key of the metric in the reports"


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


class Decider(Registered):
    """What decides by the metric of one experiment: a scheduler, or a stop rule."""

    #: The name of the experiment's metric and "min" or "max"; empty before :meth:`bind`.
    metric: str = ""
    mode: str = ""

    def bind(self, metric: str, mode: str) -> None:
        """Say which metric counts and whether "min" or "max" of it is best; once, before the first report.

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


class Scheduler(Decider, ABC):
    """Decides after each report how its trial goes on, and what a free slot is used for.

    It reads trials and returns decisions, and touches nothing else. It is deterministic: the same calls in the same
    order give the same decisions, which is how a resumed driver gets it back to the state it had. ``choose`` alone may
    be called any number of times in between, and must change nothing. It decides for one experiment; another one needs
    another scheduler.
    """

    role = "scheduler"
    #: Whether new trials may wait in the queue beyond the free slots; not where a slot may be wanted for a paused trial.
    asks_ahead: bool = False

    @property
    def time_attr(self) -> str:
        """The key, in the reports, of the time that it goes by; empty for none.

        With a key, it is shown only reports that have a finite number there which is not below the one before, within an
        attempt. Of ``training_iteration``, a report without it counts by its sequence number.
        """
        return ""

    def check_space(self, space: Space) -> None:
        """Refuse a search space that it can't work with, before the first trial.

        Raises:
            ConfigurationError: the space lacks something; the message says what.
        """

    def on_stage(self, trial: Trial) -> None:
        """Take note that an attempt of *trial* was staged: its first, a retry, or what ``choose`` wanted.

        ``trial.attempt`` is that attempt, with its config and the checkpoint that it starts from.
        """

    @abstractmethod
    def on_report(self, trial: Trial, report: Report) -> Decision:
        """Return what is to be done with *trial* after this report: CONTINUE, STOP, PAUSE or COMPLETE.

        Each accepted report is shown once, in the journal's order, and none of an attempt after its decision. In a later
        attempt of a trial the time begins behind the checkpoint that it starts from, or anew if there is none.
        """

    def on_trial_pause(self, trial: Trial) -> None:
        """Take note that *trial* is paused now: its process is gone, and ``choose`` may have it resumed."""

    def choose(self, *, can_start: bool) -> Choice:
        """Return what a free slot is to be used for; it changes nothing, and may be asked again at once.

        What comes of it is told by ``on_stage`` and ``on_trial_end``.

        Args:
            can_start: whether there is a config to start a new trial with; without, ``Start`` means ``Wait``.
        """
        return START

    def on_abandon(self, trial: Trial) -> None:
        """Take note that *trial* is given up: from now on, nothing that it reported counts for other trials.

        Told once, before ``on_trial_end``: as soon as somebody abandons it, while its process may still run.
        """

    def on_trial_end(self, trial: Trial) -> None:
        """Take note that *trial* has reached a status that nothing follows; it reports no more."""


class FIFO(Scheduler):
    """Lets every trial run to its own end."""

    kind = "fifo"
    asks_ahead = True

    def on_report(self, trial: Trial, report: Report) -> Decision:
        """Return CONTINUE."""
        return CONTINUE
