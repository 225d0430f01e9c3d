"""A worker that can't start what it takes leaves it to others for a while: it must not eat trial after trial."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

__all__ = ["BackOff"]

logger = logging.getLogger(__name__)

#: So many attempts in a row that could not be started are no chance any more; a trial may have twice as many.
IN_A_ROW: Final = 3
#: How long it then takes nothing: it may be the experiment, whose owner tries again soon, and whom others must not wait for.
FIRST_S: Final = 5.0
#: Each further attempt that can't be started doubles that, up to this: what somebody has put right is found within it.
LONGEST_S: Final = 300.0


class BackOff:
    """Counts the attempts in a row that this worker could not start; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._rest_s = FIRST_S
        self._until = 0.0
        self._problem = ""

    def note_started(self) -> None:
        """Note that a trial's process was started: the worker is in order."""
        if self._in_a_row:
            with self._lock:
                if self._in_a_row >= IN_A_ROW:
                    logger.warning("a trial could be started: this worker takes as many as it has slots again")
                self._in_a_row, self._rest_s, self._until = 0, FIRST_S, 0.0

    def note_problem(self, problem: str) -> None:
        """Note that an attempt could not be started, and why."""
        with self._lock:
            self._in_a_row += 1
            self._problem = problem.strip().splitlines()[-1] if problem.strip() else "?"
            now = time.monotonic()
            # Those that were taken together fail together, and are one try.
            if self._in_a_row < IN_A_ROW or now < self._until:
                return
            self._until = now + self._rest_s
            logger.error(
                "%d attempts in a row could not be started here; nothing is taken for %.0f s, and then one to try: %s",
                self._in_a_row,
                self._rest_s,
                self._problem,
            )
            self._rest_s = min(2 * self._rest_s, LONGEST_S)

    @property
    def allows(self) -> int | None:
        """How many attempts more may be taken: none while it rests, then one that tries; None for any number."""
        if self._in_a_row < IN_A_ROW:
            return None
        return int(time.monotonic() >= self._until)

    @property
    def why(self) -> str:
        """Why not all slots may take an attempt, or empty; the same text until something else happens."""
        if self._in_a_row < IN_A_ROW:
            return ""
        return f"could not start its last {self._in_a_row} attempts ({self._problem})"
