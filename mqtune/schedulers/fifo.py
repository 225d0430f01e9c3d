"""First in, first out: every trial runs to its end."""

from __future__ import annotations

from typing import Any

from mqtune.core.trial import CONTINUE, Decision, Report, Trial
from mqtune.schedulers.base import Scheduler

__all__ = ["FIFO"]


class FIFO(Scheduler):
    """Lets every trial run to its own end."""

    asks_ahead = True

    def on_report(self, trial: Trial, report: Report) -> Decision:
        """Return CONTINUE."""
        return CONTINUE

    def describe(self) -> dict[str, Any]:
        """Return its name; it has no arguments."""
        return {"scheduler": "fifo"}
