"""Impairments: a worker, or a device of it, is kept from its work.

There is one shape for every cause, and one place that words it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from mqtune.core.codec import Number

#: The causes, for programs: memory of a device that is not free; the operator's health check; attempts that fail at
#: once; a person; attempts that can't be started; logs that can't be written; a refused login of the driver slots'
#: account; a worker that shuts down. A later version may have more.
Kind = Literal["memory", "health_check", "failures", "by_hand", "starts", "logs", "account", "leaving"]
#: The kinds that stop no trial, each with a worker's missing service.
_WITHOUT: Final = {"logs": "keeps no output of trials", "account": "takes no submitted scripts"}
#: The device of an impairment that concerns no single one.
WHOLE_WORKER: Final = ""


class Impairment(NamedTuple):
    """Something keeps a worker, or a device of it, from its work.

    Attributes:
        device: the device; ``WHOLE_WORKER`` where it concerns no single one.
        kind: the cause, for programs.
        text: the cause for people, as the rest of "device 0 is quarantined, …".
        ends: who or what ends it, as the rest of "until …".
        since: since when, in seconds since the epoch by the server's clock.
        retry_at: when the worker tries by itself how it is now, likewise; 0 where that takes no attempt.
    """

    device: str
    kind: str
    text: str
    ends: str
    since: Number
    retry_at: Number = 0.0

    @property
    def stops_trials(self) -> bool:
        """Whether trials that would start there do not; without logs, or without driver slots, they run."""
        return self.kind not in _WITHOUT

    @property
    def reason(self) -> str:
        """The impairment as a text for people; the same text as long as nothing changes."""
        if self.device:
            return f"device {self.device} is quarantined, {self.text}"
        return f"the worker {_WITHOUT.get(self.kind, 'takes no trials')}, {self.text}"
