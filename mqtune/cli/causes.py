"""The causes that ``mqtune why`` knows, each with its remedy. docs/cli.md lists them.

The kernel's causes are here. Each service lists its own (``mqtune/services/causes.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mqtune.core.cause import Cause
from mqtune.core.version import UPGRADE
from mqtune.journal.server.room import MAKE_ROOM, way_to_grow
from mqtune.services.causes import causes_of_services

_CONTINUE: Final = "continue it: mqtune drive {NAME}, or run its script again"
#: The kernel's causes, roughly from the start of an experiment to its end.
_OF_KERNEL: Final[Mapping[str, Cause]] = {
    "no driver": Cause("The experiment has no driver, so nothing new starts.", _CONTINUE),
    "no worker": Cause("No worker is connected.", "start one: mqtune worker"),
    "no match": Cause(
        "No connected worker offers the needed resources and tags, and serves this experiment.",
        "start one that does: mqtune worker --help",
    ),
    "version": Cause("Matching workers have an incompatible version of mqtune.", UPGRADE),
    "impaired": Cause(
        "A matching worker or device takes no trials at the moment.",
        "see docs/workers.md#what-keeps-a-worker-from-its-work",
    ),
    "busy": Cause("All matching slots, or their GPU memory, are in use.", "see who uses them: mqtune fleet"),
    "limit": Cause(
        "The experiment runs as many trials as max_concurrent allows.", "raise it: mqtune set {NAME} max_concurrent=N"
    ),
    "driver": Cause("The driver waits for the searcher, the scheduler, or a trial to end."),
    "starting": Cause("A slot is free or reserved, and the trial is about to start."),
    "running": Cause("It is running."),
    "outside": Cause(
        "Somebody is evaluating the trial outside mqtune.",
        "report its result: mqtune tell {NAME} {TRIAL} METRIC=VALUE; or give it up: mqtune stop {NAME} {TRIAL}",
    ),
    "ending": Cause("The trial was told to end, and will end soon."),
    "worker gone": Cause("The worker of the trial is not connected. The driver requeues it within seconds."),
    "retry": Cause("The trial will run again, when a slot is free and its delay has passed."),
    "paused": Cause("The scheduler, a stop rule or the driver has paused the trial, and will resume it."),
    "paused by hand": Cause("A person has paused the trial.", "resume it: mqtune resume {NAME} {TRIAL}"),
    "journal full": Cause("The journal has reached its limit, journal_mb.", way_to_grow("{NAME}")),
    "redis full": Cause("Redis has no memory left.", MAKE_ROOM),
    "redis nearly full": Cause("Redis has less than a fifth of its memory left.", MAKE_ROOM),
    "redis takes no writes": Cause(
        "Redis can't write its file, and so refuses writes.", "free space on its disk; its log has the error"
    ),
    "interrupted": Cause("The experiment's last driver ended before all trials did.", _CONTINUE),
    "ended": Cause("It has ended."),
}
#: All causes, by the word that ``--json`` prints.
CAUSES: Final[Mapping[str, Cause]] = {**_OF_KERNEL, **causes_of_services()}


class Reason(NamedTuple):
    """A reason why a trial, or a whole experiment, waits.

    Attributes:
        cause: a key of ``CAUSES``, for programs.
        text: a sentence, for people.
        since: when it began, in seconds since the epoch, or None if unknown.
        way_out: a remedy, or empty.
    """

    cause: str
    text: str
    since: float | None = None
    way_out: str = ""

    @classmethod
    def of(
        cls, cause: str, text: str, since: float | None = None, *, name: str, trial: str = "", more: str = ""
    ) -> Reason:
        """Return a reason with its cause's way out, in which names are filled in.

        Args:
            trial: the trial, if the way out names one.
            more: the command that gives the experiment more slots, if the way out names one.
        """
        return cls(cause, text, since, CAUSES[cause].way_out.format(NAME=name, TRIAL=trial, MORE=more))
