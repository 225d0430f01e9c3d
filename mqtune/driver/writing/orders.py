"""Orders to running attempts: to save a checkpoint, and to continue, with an answer or without."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from mqtune.core.codec import encode_value
from mqtune.core.errors import ConfigurationError, InvalidTransition
from mqtune.core.experiment import Experiment
from mqtune.core.trial import (
    Report,
    Trial,
    TrialId,
    TrialStatus,
    attempt_and_number,
)
from mqtune.driver.writing.actions import Writing, Written, newest_own
from mqtune.driver.writing.ledger import Ledger
from mqtune.journal.base import Order
from mqtune.trainable.process.protocol import MAX_ANSWER_CHARS

#: So few orders are kept without checking whether their attempts have ended. Each takes a few kilobytes at most.
_FEW: Final = 16


@dataclass(frozen=True, slots=True)
class Save:
    """Tell a running trial to save a checkpoint as soon as it can."""

    trial: Trial
    request: str = ""

    @property
    def order(self) -> Order:
        """The order to the trial's attempt. It stays the same until that has reported or saved."""
        attempt = self.trial.attempt
        saved_by, saved = attempt_and_number(newest_own(self.trial))
        return Order.save(self.trial.id, attempt.number, 1 + attempt.reports + saved * (saved_by == attempt.number))

    def write(self, to: Writing) -> list[Written]:
        trial = self.trial
        if trial.outside:
            raise InvalidTransition(
                f"trial {trial.id} is evaluated outside, and has no process that could save a checkpoint"
            )
        if to.journal.order([self.order]) != [True]:
            raise InvalidTransition(
                f"trial {trial.id} is {trial.status.name} and can't save a checkpoint; only a RUNNING one can"
            )
        return []


@dataclass(frozen=True, slots=True)
class AnswerQuestion:
    """Answer a question in a report, for which the trial waits. Repeating this does nothing."""

    report: Report
    answer: object

    @property
    def order(self) -> Order:
        """The order with the answer, after which the trial continues."""
        text = base64.b64encode(encode_value(self.answer)).decode()
        return Order.go(self.report.trial, self.report.attempt, self.report.sequence, text)

    def write(self, to: Writing) -> list[Written]:
        order = self.order
        if (size := len(order.word.rpartition(":")[2])) > MAX_ANSWER_CHARS:
            raise ConfigurationError(
                f"the answer to trial {order.trial} is too long: encoded it has {size:,} characters, and the most is "
                f"{MAX_ANSWER_CHARS:,}"
            )
        to.journal.order([order])
        return []


class Orders:
    """Sends orders to running attempts, and resends them after an outage.

    These orders are to continue, with an answer or without, and to save a checkpoint. The journal does not have them,
    so restoring the journal can't restore them.
    """

    def __init__(self, ledger: Ledger, experiment: Experiment, *, in_lockstep: bool) -> None:
        self.in_lockstep = in_lockstep
        self._ledger = ledger
        self._experiment = experiment
        #: The last order of each kind to a trial.
        self._orders: dict[tuple[TrialId, str], Order] = {}
        #: The orders to send with the next ``give``.
        self._due: dict[tuple[TrialId, str], Order] = {}
        #: With more orders than this, those of ended attempts are forgotten.
        self._most = _FEW

    def go_on(self, report: Report) -> None:
        """Order a trial that waits in this ``report`` to continue. The next ``give`` sends it."""
        order = Order.go(report.trial, report.attempt, report.sequence)
        last = self._orders.get((order.trial, order.kind))
        # An answer to the report's question was such an order already.
        if last is None or last.attempt != order.attempt or not last.word.startswith(f"{order.word}:"):
            self._add_due(order)

    def note(self, order: Order) -> None:
        """Remember an order that was sent, to resend it after an outage."""
        self._orders[order.trial, order.kind] = order

    def _add_due(self, order: Order) -> None:
        self.note(order)
        self._due[order.trial, order.kind] = order

    def give(self) -> None:
        """Send all due orders, in one step on the server."""
        if len(self._orders) > self._most:
            self._forget_ended()
        if due := list(self._due.values()):
            self._ledger.surely(lambda: self._ledger.journal.order(due))
        self._due = {}

    def give_again(self) -> None:
        """Resend the last orders to all running attempts."""
        self._forget_ended()
        self._due = dict(self._orders)
        self.give()

    def _forget_ended(self) -> None:
        """Forget the orders of attempts that have ended."""
        trials = self._experiment.trials
        self._orders = {
            key: order for key, order in self._orders.items() if _is_running(trials[order.trial], order.attempt)
        }
        # At least that many new orders pass until the next check, so all checks together cost less than the orders.
        self._most = 2 * len(self._orders) + _FEW

    def take_over(self) -> None:
        """Let trials continue that wait since an earlier driver's time, unless they are to end."""
        self._due = {}
        for trial in self._experiment.trials.values() if self.in_lockstep else ():
            attempt = trial.attempts[-1]
            if _is_running(trial, attempt.number) and attempt.reports and trial.decision is None:
                self._add_due(Order.go(trial.id, attempt.number, attempt.reports))
        self.give()


def _is_running(trial: Trial, attempt: int) -> bool:
    return trial.status is TrialStatus.RUNNING and not trial.outside and trial.attempt.number == attempt
