"""Lockstep: a trial goes on only when its report was decided on."""

from __future__ import annotations

from mqtune.core.experiment import Experiment
from mqtune.core.status import TrialStatus
from mqtune.core.trial import Report, TrialId
from mqtune.driver.actions import Commands
from mqtune.journal.base import Cleared

__all__ = ["Lockstep"]


class Lockstep:
    """Collects, while the driver takes events in, whose trials may go on, and tells them all at once.

    Args:
        commands: tells them.
        is_on: whether trials wait at all.
    """

    def __init__(self, commands: Commands, *, is_on: bool) -> None:
        self.is_on = is_on
        self._commands = commands
        self._passed: dict[TrialId, Cleared] = {}

    def passed(self, report: Report) -> None:
        """Take note that a report's trial may go on."""
        self._passed[report.trial] = Cleared(report.trial, report.attempt, report.sequence)

    def clear(self) -> None:
        """Let the trials go on of which note was taken."""
        if self._passed:
            self._commands.clear(list(self._passed.values()))
            self._passed.clear()

    def clear_again(self, experiment: Experiment) -> None:
        """Let every trial go on that an earlier driver may have left waiting, and that is not told to end."""
        self._passed.clear()
        if not self.is_on:
            return
        for trial in experiment.trials.values():
            attempt = trial.attempts[-1]
            if trial.status is TrialStatus.RUNNING and attempt.reports and trial.decision is None:
                self._passed[trial.id] = Cleared(trial.id, attempt.number, attempt.reports)
        self.clear()
