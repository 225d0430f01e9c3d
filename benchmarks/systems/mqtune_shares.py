"""mqtune's shares of a fleet: the keepers of many drivers, on simulated slots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benchmarks.measurement import Context, Figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fleet.shared import SharedFleetInTime, Wish

__all__ = ["measure"]

#: When the last experiments come; what was before does not count.
_COME_S = 60.0


def measure(context: Context) -> Figures:
    """Measure how fairly slots are shared, for how long anybody has none, and what a look costs."""
    from benchmarks.fleet.shared import alike, fairness, many

    experiments, slots, seconds = (context.sizes[name] for name in ("experiments", "slots", "seconds"))
    begin = time.process_time()
    mixed = _run(slots, many(experiments, slots), seconds)
    took_s = time.process_time() - begin
    figures: Figures = {
        f"jain_{priority}": fairness([each for each in mixed.sharers if each.wish.standing.priority == priority])
        for priority in ("high", "normal", "low")
    }
    one_class = _run(slots, alike(experiments), seconds)
    figures["jain_alike"] = fairness(one_class.sharers)
    figures["jain_patient"] = fairness(_run(slots, alike(experiments, preemptible=False), seconds).sharers)
    figures["longest_without_s"] = max(each.longest_without_s for each in [*mixed.sharers, *one_class.sharers])
    figures["pauses"] = sum(each.pauses for each in mixed.sharers)
    figures["look_us"] = took_s / (experiments * (_COME_S + seconds)) * 1e6
    return figures


def _run(slots: int, wishes: Sequence[Wish], seconds: float) -> SharedFleetInTime:
    from benchmarks.fleet.shared import SharedFleetInTime

    fleet = SharedFleetInTime(slots, wishes)
    fleet.run(_COME_S)
    for each in fleet.sharers:
        each.slot_s = each.without_s = each.longest_without_s = 0.0
    fleet.run(seconds)
    return fleet
