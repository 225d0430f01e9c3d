"""When staged attempts are published: those of one filling of slots together, the more of them the longer it takes to send some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mqtune.backends import Offer
from mqtune.core.trial import Attempt, Trial, TrialId
from mqtune.driver import GATHER_S, Publisher


class Broker:
    """A broker that takes some time for each message, and its clock."""

    def __init__(self, takes_s: float) -> None:
        self.now = 0.0
        self.sent: list[list[str]] = []
        self._takes_s = takes_s

    def monotonic(self) -> float:
        return self.now

    def publish_all(self, offers: Sequence[Offer]) -> None:
        self.now += self._takes_s
        self.sent.append([offer.trial for offer in offers])


def staged(number: int) -> Trial:
    trial = Trial(TrialId(f"{number:04d}"), {})
    trial.attempts.append(Attempt(1, staged_at=0.0))
    return trial


@pytest.mark.parametrize(("takes_s", "gathered_s"), [(0.0, GATHER_S), (0.001, GATHER_S), (0.05, 0.5)])
def test_attempts_are_gathered_for_longer_the_longer_it_takes_to_send_some(takes_s: float, gathered_s: float) -> None:
    broker: Any = Broker(takes_s)
    publisher = Publisher(broker, broker)

    with publisher:
        for number in range(60):
            publisher.publish(staged(number))
            broker.now += 0.02

    first, *middle, last = map(len, broker.sent)
    assert first == 1, "the first of a filling never waits"
    assert middle
    assert set(middle) <= {round(gathered_s / 0.02), round(gathered_s / 0.02) + 1}
    assert sum(map(len, broker.sent)) == 60
    assert last <= max(middle)
