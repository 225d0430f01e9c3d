"""The errors of mqtune. Each message names the thing, its value and the next step."""

from __future__ import annotations


class MqtuneError(Exception):
    """mqtune can't do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ConfigurationError(MqtuneError, ValueError):
    """An argument is invalid."""


class ReportInvalid(MqtuneError, TypeError):
    """A report has a value that can't be sent, or a name that is not a string."""


class ReportTooLarge(ConfigurationError):
    """A report is too large."""


class ReportingClosed(MqtuneError):
    """A trial's own code has closed the pipe that it reports through."""


class SpaceError(ConfigurationError):
    """A search space, or a value for it, is invalid."""


class TrainableNotFound(ConfigurationError):
    """A worker could not import the trainable by its name."""


class TrainableLost(TrainableNotFound):
    """The process that had the trainable in its memory has ended."""


class CodeDiffers(ConfigurationError):
    """The experiment's code has changed since the experiment began."""


class BrokerUnavailable(MqtuneError, ConnectionError):
    """No Redis server answers at the broker's address."""

    #: Whether the fault may be temporary: the server is down, starting, or failing over.
    may_pass = False


class BrokerFull(BrokerUnavailable):
    """The Redis server's memory is used up (maxmemory)."""


class BrokerRefused(BrokerUnavailable):
    """The Redis server refuses the user or password that the broker URL carries."""


class AccessDenied(MqtuneError):
    """The account in the broker URL lacks a permission."""


class BrokerTooOld(BrokerUnavailable):
    """The Redis server is older than the oldest one that mqtune works with."""


class CodeRefused(MqtuneError):
    """A worker refuses a driver's code: it is damaged or not signed, or the worker takes none."""


class CheckpointGone(MqtuneError):
    """There is no checkpoint of that id: it was deleted, or never saved."""


class CheckpointBroken(MqtuneError):
    """A checkpoint is damaged: a file is missing, truncated or changed."""


class CheckpointExists(MqtuneError):
    """Another checkpoint already has that id, and checkpoints never change."""


class CheckpointVersionError(MqtuneError):
    """A checkpoint was written by a version of mqtune that this one can't read."""


class StoreUnavailable(MqtuneError):
    """A checkpoint store, or the target folder of a copy, can't be reached, read or written."""


class StoreMissing(ConfigurationError):
    """A trial saved a folder as its checkpoint, and the experiment has no store that all workers reach."""


class LogUnavailable(MqtuneError):
    """An attempt's output can't be read from here: its worker is gone, or no longer has it."""


class NoServer(MqtuneError):
    """No broker was given and no Redis server can be started here."""


class NameTaken(MqtuneError):
    """Another experiment, or a living driver, already has this name.

    ``holder`` describes the driver, if it is one. ``left_s`` is the time until its lock expires without a renewal.
    """

    def __init__(self, message: str | None = None, *, holder: str = "", left_s: float = 0.0) -> None:
        super().__init__(message)
        self.holder = holder
        self.left_s = left_s


class CopyIncomplete(MqtuneError):
    """An experiment's local copy is incomplete, because it could not be written."""


class DriverFenced(MqtuneError):
    """Another driver has taken this experiment over; this one may no longer write."""


class JournalGone(MqtuneError):
    """Redis has lost an experiment's journal, or a part of it."""


class JournalBlocked(MqtuneError):
    """Redis accepts no more entries in a journal: one of them has the largest possible id."""


class ChapterUnavailable(MqtuneError):
    """The oldest entries of a journal are in a file that can't be read from here, or is lost or damaged."""


class InsufficientResources(MqtuneError):
    """No connected worker has a slot with the resources that a trial asks for."""


class ExperimentFinished(MqtuneError):
    """An experiment has nothing left to do."""


class NothingResumes(MqtuneError):
    """Only paused trials are left of an experiment, and nothing will resume them."""


class RequestRefused(MqtuneError):
    """The driver refuses a client's request, or a limit allows no more requests for now."""


class InvalidTransition(MqtuneError):
    """A trial's status does not allow the requested change."""


class ImpossibleEvent(InvalidTransition):
    """An event of a journal can't follow the events before it.

    Attributes:
        event: the event.
    """

    def __init__(self, message: str, event: object) -> None:
        super().__init__(message)
        self.event = event


class MessageVersionError(MqtuneError):
    """A message was written by a version of mqtune that this one can't read."""


class NothingToDraw(MqtuneError):
    """The experiment has nothing for this plot, or nothing yet."""


class MetricMissing(MqtuneError):
    """The metric that the experiment optimises does not appear in the reports."""


class TrialFailed(MqtuneError):
    """A trial's attempt ended in an error."""


class UserCodeFailed(MqtuneError):
    """A scheduler, searcher or stop rule raised an error; its cause is that error."""

    @classmethod
    def by(cls, who: object, method: str, place: str, error: Exception) -> UserCodeFailed:
        """Return an error that names the failed method, its place, and the next step."""
        return cls(
            f"{type(who).__name__}.{method} raised {type(error).__name__}: {error} ({place}). The experiment is saved: "
            "correct the code and run the same script again to continue"
        )


class WorkerStartError(MqtuneError):
    """A worker can't start with the settings it has."""


class RunInterrupted(SystemExit):
    """A run was ended by Ctrl-C or SIGTERM.

    If a script does not catch it, it ends with the exit code ``code``: 130 or 143.
    """
