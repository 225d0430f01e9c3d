"""Every error that mqtune raises on purpose; each message names the thing, the value and the way out."""

from __future__ import annotations

__all__ = [
    "AccessDenied",
    "BrokerRefused",
    "BrokerTooOld",
    "BrokerUnavailable",
    "CheckpointBroken",
    "CheckpointExists",
    "CheckpointGone",
    "CheckpointVersionError",
    "CodeDiffers",
    "ConfigurationError",
    "CopyIncomplete",
    "DriverFenced",
    "ExperimentFinished",
    "InsufficientResources",
    "InvalidTransition",
    "JournalGone",
    "MessageVersionError",
    "MetricMissing",
    "MqtuneError",
    "NameTaken",
    "NoServer",
    "NothingResumes",
    "ReportTooLarge",
    "ReportingClosed",
    "RequestRefused",
    "RunInterrupted",
    "SpaceError",
    "StoreUnavailable",
    "TrainableNotFound",
    "TrialFailed",
    "UserCodeFailed",
    "WorkerStartError",
]


class MqtuneError(Exception):
    """Something that mqtune was asked for can't be done."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ConfigurationError(MqtuneError, ValueError):
    """An argument makes no sense."""


class ReportTooLarge(ConfigurationError):
    """A report has more bytes than one may have."""


class ReportingClosed(MqtuneError):
    """A trial's own code has closed what it reports through."""


class SpaceError(ConfigurationError):
    """A search space, or a value for it, makes no sense."""


class TrainableNotFound(ConfigurationError):
    """A trainable can't be named in a way that a worker can import."""


class CodeDiffers(ConfigurationError):
    """The code of an experiment is not what it was when the experiment began."""


class BrokerUnavailable(MqtuneError, ConnectionError):
    """No Redis server answers at the broker's address."""


class BrokerRefused(BrokerUnavailable):
    """The Redis server refuses the user or password that the broker URL carries."""


class AccessDenied(MqtuneError):
    """The account that the broker URL names may not do what is asked of it."""


class BrokerTooOld(BrokerUnavailable):
    """The Redis server is older than the oldest one that mqtune works with."""


class CheckpointGone(MqtuneError):
    """There is no checkpoint of that id: it was deleted, or never saved."""


class CheckpointBroken(MqtuneError):
    """A checkpoint is not what was saved: something of it is missing, cut short or changed."""


class CheckpointExists(MqtuneError):
    """There is another checkpoint of that id already, and checkpoints never change."""


class CheckpointVersionError(MqtuneError):
    """A checkpoint was written by a version of mqtune that this one can't read."""


class StoreUnavailable(MqtuneError):
    """The store of checkpoints, or the folder that one is copied to, can't be reached, read or written."""


class LogUnavailable(MqtuneError):
    """What a trial printed can't be read from here: its worker is not there, or doesn't have it any more."""


class NoServer(MqtuneError):
    """No broker was given and no Redis server can be started here."""


class NameTaken(MqtuneError):
    """Another experiment, or a living driver, already has this name.

    ``holder`` describes the driver, if it is one, and ``left_s`` says when its lock runs out unless it keeps it.
    """

    def __init__(self, message: str | None = None, *, holder: str = "", left_s: float = 0.0) -> None:
        super().__init__(message)
        self.holder = holder
        self.left_s = left_s


class CopyIncomplete(MqtuneError):
    """An experiment's local copy lacks what could not be written to it."""


class DriverFenced(MqtuneError):
    """Another driver has taken this experiment over; this one may no longer write."""


class JournalGone(MqtuneError):
    """Redis no longer has what was written to an experiment's journal."""


class InsufficientResources(MqtuneError):
    """No worker that is connected has a slot with what a trial asks for."""


class ExperimentFinished(MqtuneError):
    """An experiment has nothing left to do."""


class NothingResumes(MqtuneError):
    """All that is left of an experiment are paused trials, and nothing will resume them."""


class RequestRefused(MqtuneError):
    """The driver refuses what a client has requested."""


class InvalidTransition(MqtuneError):
    """A trial can't go from the status it has to the one that was asked for."""


class MessageVersionError(MqtuneError):
    """A message was written by a version of mqtune that this one can't read."""


class MetricMissing(MqtuneError):
    """The metric that the experiment optimises does not appear in the reports."""


class TrialFailed(MqtuneError):
    """A trial's attempt ended in an error."""


class UserCodeFailed(MqtuneError):
    """A scheduler, searcher or stop rule raised an error; its cause is that error."""


class WorkerStartError(MqtuneError):
    """A worker can't start with the settings it has."""


class RunInterrupted(SystemExit):
    """A run was ended by Ctrl-C or SIGTERM; ``code`` is 130 or 143, with which a script that does not catch it ends."""
