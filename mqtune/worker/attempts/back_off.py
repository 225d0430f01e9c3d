"""The pause of a worker that can't start or end its attempts."""

from __future__ import annotations

import threading
from typing import Final, Literal

from mqtune.core.impairment import WHOLE_WORKER
from mqtune.worker.host.impairments import ImpairmentCause, Impairments

#: Failed starts in a row after which the worker backs off. A trial fails after twice as many.
FAILED_STARTS: Final = 3
#: The first pause. It is short, because one experiment may be at fault, and others should not wait for it.
BACK_OFF_S: Final = 5.0
#: Each further failed start doubles the pause, up to this. A repaired worker stays unused for at most this long.
LONGEST_BACK_OFF_S: Final = 300.0


#: The two steps of an attempt that can fail because of its worker.
Phase = Literal["started", "ended"]


class BackOff:
    """Pauses a worker whose attempts repeatedly can't be started or ended. Thread-safe."""

    def __init__(self, impairments: Impairments) -> None:
        self._impairments = impairments
        self._lock = threading.Lock()
        #: Failures in a row, by step: attempts that could not be started, and attempts that could not be ended.
        self._in_a_row: dict[Phase, int] = {"started": 0, "ended": 0}

    @property
    def _cause(self) -> ImpairmentCause | None:
        return self._impairments.cause_of(WHOLE_WORKER, "starts")

    def note_done(self, step: Phase) -> None:
        """Record a success, which ends a pause if the same step failed before."""
        if self._in_a_row[step]:
            with self._lock:
                self._in_a_row[step], cause = 0, self._cause
            if cause is not None:
                self._impairments.lift(cause)

    def note_problem(self, step: Phase, problem: str) -> None:
        """Record why an attempt could not be started or ended."""
        with self._lock:
            self._in_a_row[step] += 1
            before = self._cause
            # Attempts that start at the same time fail at the same time: together they lengthen the pause once.
            if self._in_a_row[step] < FAILED_STARTS or (before is not None and not self._impairments.is_due(before)):
                return
            last = problem.strip().splitlines()[-1] if problem.strip() else "?"
            text = f"its last {self._in_a_row[step]} attempts could not be {step} ({last})"
            pause_s = BACK_OFF_S if before is None else min(2 * before.pause_s, LONGEST_BACK_OFF_S)
            cause = ImpairmentCause(text, f"an attempt is {step}", pause_s=pause_s)
            self._impairments.put(
                [WHOLE_WORKER], "starts", cause, says=f"{text}. It tries one attempt in {pause_s:.0f} s"
            )

    @property
    def allows(self) -> int | None:
        """How many more attempts may come: 0 in a pause, 1 as a probe after it, None for no limit."""
        return None if (cause := self._cause) is None else int(self._impairments.is_due(cause))
