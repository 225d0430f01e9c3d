"""Taking the driver's lock of an experiment whose last driver may be dead."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from mqtune.core.errors import NameTaken
from mqtune.core.machine import describe_process, is_gone, is_here
from mqtune.journal.base import Journal

logger = logging.getLogger(__name__)

#: By how much a look at another driver's lock comes after the time at which that should have been renewed.
_LOCK_MARGIN_S: Final = 0.5


def take_lock(journal: Journal, holder: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Take the driver's lock; one that died on this machine is replaced at once, on another after its lock has expired.

    Args:
        journal: the experiment's.
        holder: a token that no other driver has.
        sleep: waits for some seconds.

    Raises:
        NameTaken: a living driver has it.
    """
    # In how many seconds the lock should run out at the next look, if nobody keeps it.
    dead, due_s = "", math.inf
    while True:
        try:
            journal.lock(holder, describe_process(), journal.timing.lock_s, dead=dead)
        except NameTaken as taken:
            if is_here(taken.holder):
                if dead or not is_gone(taken.holder):
                    raise
                dead = taken.holder
                continue
            if taken.left_s > due_s:
                # It was kept in between, so its driver lives.
                raise
            logger.warning("%s; if it is dead, its lock runs out in %.0f s", taken, taken.left_s)
            wait_s = min(taken.left_s, journal.timing.keep_lock_s) + _LOCK_MARGIN_S
            due_s = taken.left_s - wait_s + _LOCK_MARGIN_S
            sleep(wait_s)
        else:
            return
