"""Impairments: reasons why a worker, or a device of it, takes no trials."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from mqtune.core.codec import Number

#: The causes, for programs: occupied memory of a device; the operator's health check; attempts that fail immediately; a
#: person; attempts that can't start; unwritable logs; a refused login of the driver slots' account; a shutdown of the
#: worker. A later version may have more.
Kind = Literal["memory", "health_check", "failures", "by_hand", "starts", "logs", "account", "leaving"]
#: The kinds that stop no trials, with the worker's missing service.
_WITHOUT: Final = {"logs": "keeps no output of trials", "account": "takes no submitted scripts"}
#: The device of an impairment of the whole worker.
WHOLE_WORKER: Final = ""


class Impairment(NamedTuple):
    """A reason why a worker, or a device of it, takes no trials.

    Attributes:
        device: the device, or ``WHOLE_WORKER``.
        kind: the cause, for programs.
        text: the cause for people, to end the sentence "device 0 is quarantined, …".
        ends: the event that ends it, to end the sentence "until …".
        since: the time of its start, in seconds since the epoch by the server's clock.
        retry_at: the time when the worker tries again by an attempt; 0 if it needs no attempt for that.
    """

    device: str
    kind: str
    text: str
    ends: str
    since: Number
    retry_at: Number = 0.0

    @property
    def stops_trials(self) -> bool:
        """Whether it keeps trials from starting. Missing logs or driver slots do not."""
        return self.kind not in _WITHOUT

    @property
    def reason(self) -> str:
        """The impairment as a text for people, which stays the same while nothing changes."""
        if self.device:
            return f"device {self.device} is quarantined, {self.text}"
        return f"the worker {_WITHOUT.get(self.kind, 'takes no trials')}, {self.text}"
