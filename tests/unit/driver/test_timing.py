"""The times of a run reach its connection."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest

import mqtune
from mqtune.core.errors import BrokerUnavailable
from mqtune.core.timing import Timing

#: Nobody listens there.
AWAY: Final = "redis://127.0.0.1:1/0"
#: Far less than the minutes for which a driver waits usually, and more than a busy machine needs.
SOON_S: Final = 60.0


def trainable(config: dict[str, float]) -> None:
    """It is named, and never called."""


def begin(run: mqtune.RunOptions) -> object:
    space = {"x": mqtune.uniform(0, 1)}
    return mqtune.Tuner(trainable, space, metric="loss", mode="min", name="away", backend=AWAY, run=run).run()


def attach(run: mqtune.RunOptions) -> object:
    return mqtune.Tuner.attach("away", backend=AWAY, run=run)


@pytest.mark.parametrize("reach", [begin, attach])
def test_a_driver_waits_for_its_server_as_long_as_the_times_of_its_run_say(
    reach: Callable[[mqtune.RunOptions], object],
) -> None:
    began = time.monotonic()

    with pytest.raises(BrokerUnavailable):
        reach(mqtune.RunOptions(progress=False, timing=Timing(patience_s=0.0)))

    assert time.monotonic() - began < SOON_S
