"""Takes the driver's lock of an experiment whose last driver may be dead."""

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

#: Seconds after the expected renewal of another driver's lock, when the lock is checked again.
_LOCK_MARGIN_S: Final = 0.5


def take_lock(journal: Journal, holder: str, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Take the driver's lock. A dead driver on this machine is replaced immediately.

    On another machine, a dead driver is replaced after its lock has expired.

    Args:
        holder: a unique token of this driver.
        sleep: called to wait for some seconds.

    Raises:
        NameTaken: a living driver has the lock.
    """
    # The remaining lifetime of the lock that the next check will find if nobody renews it, in seconds.
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
                # It was renewed in between, so its driver lives.
                raise
            logger.warning("%s; if that driver is dead, its lock expires in %.0f s", taken, taken.left_s)
            wait_s = min(taken.left_s, journal.timing.keep_lock_s) + _LOCK_MARGIN_S
            due_s = taken.left_s - wait_s + _LOCK_MARGIN_S
            sleep(wait_s)
        else:
            return
