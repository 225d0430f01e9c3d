"""Impairments: reasons why a worker, or a device of it, takes no trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from mqtune.core.codec import Number

#: The kinds that stop no trials, with what the worker can't do. They are listed here and not in services, because a
#: reader of the fleet's register knows only the kind.
WITHOUT: Final[Mapping[str, str]] = {"logs": "keeps no output of trials", "account": "takes no submitted scripts"}
#: The device of an impairment of the whole worker.
WHOLE_WORKER: Final = ""


class Impairment(NamedTuple):
    """A reason why a worker, or a device of it, takes no trials.

    Attributes:
        device: the device, or ``WHOLE_WORKER``.
        kind: the cause, for programs. The kernel's are "by_hand", "starts", "logs" and "leaving"; services name theirs.
        text: the cause for people, to end the sentence "device 0 is quarantined, …".
        ends: the event that ends it, to end the sentence "until …".
        since: the time of its start, in seconds since the epoch by the server's clock.
        retry_at: the time from which the worker may test the device by running an attempt; 0 if it never does that.
    """

    device: str
    kind: str
    text: str
    ends: str
    since: Number
    retry_at: Number = 0.0

    @property
    def stops_trials(self) -> bool:
        """Whether the impairment keeps trials from starting. The kinds in ``WITHOUT`` do not."""
        return self.kind not in WITHOUT

    @property
    def reason(self) -> str:
        """The impairment as text for people. It stays the same while nothing changes."""
        if self.device:
            return f"device {self.device} is quarantined, {self.text}"
        return f"the worker {WITHOUT.get(self.kind, 'takes no trials')}, {self.text}"
