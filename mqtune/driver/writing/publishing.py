"""Publishes staged attempts to the slots' queues, alone or in batches."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Self

from mqtune.backends.base import BackendSession, Offer, PublishesMany
from mqtune.core.clock import Clock
from mqtune.core.errors import BrokerUnavailable, DriverFenced
from mqtune.core.trial import Trial

#: Inside a ``with`` block, attempts that are staged within this many seconds after a message wait for each other, and
#: go into the next message together.
GATHER_S: Final = 0.1
#: The same time as a multiple of the last message's sending time. So a busy server gets fewer, larger messages.
_PAUSE: Final = 10


class Publisher:
    """Publishes each attempt immediately or, inside its ``with`` block, in batches.

    The end of the block publishes the rest. If the driver dies before that, the next driver publishes the staged
    attempts. For use in one thread.
    """

    def __init__(self, backend: BackendSession, clock: Clock) -> None:
        self._backend = backend
        # Checked once: checking a protocol takes longer than a call.
        self._many = backend if isinstance(backend, PublishesMany) else None
        self._clock = clock
        self._gathers = False
        #: Trials and attempt numbers that wait to be published.
        self._waiting: list[tuple[Trial, int]] = []
        #: The monotonic time from which the next message may be sent.
        self._send_from = -math.inf

    def __enter__(self) -> Self:
        self._gathers = True
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._gathers = False
        # After these errors, sending would fail or wait again. The next driver publishes the attempts.
        if self._many is not None and self._waiting and not isinstance(error, BrokerUnavailable | DriverFenced):
            self._send(self._many)
        self._waiting.clear()

    def publish(self, trial: Trial) -> None:
        """Publish a trial's staged attempt: now, or at the latest at the end of the ``with`` block.

        Raises:
            BrokerUnavailable: no server answers. Attempts staged earlier may be unpublished too.
        """
        if self._many is None:
            self._backend.publish(trial.id, trial.attempt.number, trial.config)
            return
        self._waiting.append((trial, trial.attempt.number))
        if not self._gathers or self._clock.monotonic() >= self._send_from:
            self._send(self._many)

    def _send(self, many: PublishesMany) -> None:
        begin = self._clock.monotonic()
        waiting, self._waiting = self._waiting, []
        # Attempts stopped meanwhile need no slot.
        many.publish_all([_offer(trial) for trial, number in waiting if _is_wanted(trial, number)])
        now = self._clock.monotonic()
        self._send_from = now + max(GATHER_S, _PAUSE * (now - begin))


def publish_all(backend: BackendSession, trials: Iterable[Trial]) -> None:
    """Publish the newest attempts of trials.

    Raises:
        BrokerUnavailable: no server answers. Some attempts may be published.
    """
    offers = [_offer(trial) for trial in trials]
    if isinstance(backend, PublishesMany):
        backend.publish_all(offers)
        return
    for offer in offers:
        backend.publish(*offer)


def _offer(trial: Trial) -> Offer:
    return Offer(trial.id, trial.attempt.number, trial.config)


def _is_wanted(trial: Trial, attempt: int) -> bool:
    return trial.attempt.number == attempt and trial.attempt.end is None
