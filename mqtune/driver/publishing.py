"""What offers staged attempts to the slots.

Attempts that one filling of slots stages go out together, where that is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Self

from mqtune.backends.base import BackendSession, Offer, PublishesMany
from mqtune.core.clock import Clock
from mqtune.core.errors import BrokerUnavailable, DriverFenced
from mqtune.core.trial import Trial

#: For how long a staged attempt may wait for those that are staged behind it, in seconds: a free slot hardly notices
#: it, and so many are staged meanwhile that what a message costs by itself no longer counts. The first of a filling
#: never waits.
GATHER_S: Final = 0.1
#: How many times as long as it took to send some they wait at least: a server that is busy with the messages of a
#: hundred drivers gets fewer of them, for more attempts each, rather than one for each attempt.
_PAUSE: Final = 10


class Publisher:
    """Publishes attempts, each as soon as it is staged or, while it is entered as a context, some together.

    What is journaled and not published yet when the driver dies is published by the next one, as it begins. One thread
    uses it.
    """

    def __init__(self, backend: BackendSession, clock: Clock) -> None:
        self._backend = backend
        # Asked once: to look for a protocol's methods takes longer than to call one.
        self._many = backend if isinstance(backend, PublishesMany) else None
        self._clock = clock
        self._gathers = False
        #: Trials with the numbers of the attempts that wait to be published.
        self._waiting: list[tuple[Trial, int]] = []
        #: Before then those that are staged are gathered.
        self._send_from = -math.inf

    def __enter__(self) -> Self:
        self._gathers = True
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._gathers = False
        # A server that is away was waited for already, and another driver publishes what its predecessor has staged.
        if self._many is not None and self._waiting and not isinstance(error, BrokerUnavailable | DriverFenced):
            self._send(self._many)
        self._waiting.clear()

    def publish(self, trial: Trial) -> None:
        """Publish the attempt of a trial that was just staged, now or soon.

        Raises:
            BrokerUnavailable: no server answers; some that were staged before it may not be published either.
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
        # What was stopped meanwhile needs no slot.
        many.publish_all([_offer(trial) for trial, number in waiting if _is_wanted(trial, number)])
        now = self._clock.monotonic()
        self._send_from = now + max(GATHER_S, _PAUSE * (now - begin))


def publish_all(backend: BackendSession, trials: Iterable[Trial]) -> None:
    """Publish the newest attempts of trials.

    Raises:
        BrokerUnavailable: no server answers; some may be published.
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
