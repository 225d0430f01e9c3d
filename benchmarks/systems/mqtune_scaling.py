"""The driver's pure part, the experiment and its scheduler, with few and with many trials."""

from __future__ import annotations

import random
import time
import tracemalloc
from typing import Any, Final

from benchmarks.curve import MAX_EPOCHS
from benchmarks.measurement import Context, Figures
from benchmarks.work import scaling

__all__ = ["measure"]

#: Few trials take milliseconds: they are run this often, and the fastest counts, as it does of many.
FEW_ROUNDS: Final = 20
MANY_ROUNDS: Final = 2


def measure(context: Context) -> Figures:
    """Measure seconds a report and bytes a trial; memory in a run of its own, since tracing slows it."""
    sizes = context.sizes
    reports, few, many = sizes["reports_per_trial"], sizes["few_trials"], sizes["many_trials"]
    few_s = min(_seconds_per_report(few, reports) for _ in range(FEW_ROUNDS))
    many_s = min(_seconds_per_report(many, reports) for _ in range(MANY_ROUNDS))
    return scaling.figures((few_s, _bytes_per_trial(few, reports)), (many_s, _bytes_per_trial(many, reports)))


def _seconds_per_report(trials: int, reports: int) -> float:
    driver = _Driver(trials)
    begin = time.perf_counter()
    driver.report(reports)
    return (time.perf_counter() - begin) / driver.reports


def _bytes_per_trial(trials: int, reports: int) -> float:
    tracemalloc.start()
    driver = _Driver(trials)
    driver.report(reports)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / trials


class _Driver:
    """An experiment with *trials* running trials under ASHA; ends those that it stops, as a tuner would."""

    def __init__(self, trials: int) -> None:
        from mqtune.core.events import AttemptStarted, Cursor, TrialStaged
        from mqtune.core.experiment import Experiment
        from mqtune.core.trial import TrialId
        from mqtune.schedulers.asha import ASHA

        self._experiment = Experiment("scaling", metric="loss", mode="min")
        self._scheduler = ASHA(max_t=MAX_EPOCHS)
        self._scheduler.bind("loss", "min")
        self._running = [TrialId(f"{number:06d}") for number in range(trials)]
        self._rng = random.Random(0)
        self.reports = 0
        for trial in self._running:
            self._experiment.apply(
                TrialStaged(trial=trial, attempt=1, config={"lr": 0.1}, at=0.0, cursor=Cursor("0-0"))
            )
            self._experiment.apply(
                AttemptStarted(trial=trial, attempt=1, worker="worker", host="host", devices=[], at=0.0)
            )

    def report(self, rounds: int) -> None:
        """Let every running trial report once a round."""
        from mqtune.core.trial import Action, Report

        for sequence in range(1, rounds + 1):
            going_on = []
            for trial in self._running:
                loss = self._rng.random() / sequence
                report = Report(trial, 1, sequence, float(sequence), {"loss": loss, "epoch": sequence})
                self.reports += 1
                found = self._experiment.apply_report(report)
                if found is None:
                    continue
                decision = self._scheduler.on_report(found, report)
                if decision.action is Action.CONTINUE:
                    going_on.append(trial)
                else:
                    self._end(found, sequence, decision)
            self._running = going_on

    def _end(self, trial: Any, sequence: int, decision: Any) -> None:
        from mqtune.core.events import AttemptEnded, Cursor, DecisionTaken
        from mqtune.core.trial import AttemptEnd, Intent

        self._experiment.apply(
            DecisionTaken(
                trial=trial.id,
                attempt=1,
                sequence=sequence,
                action=decision.action.value,
                intent=Intent.STOP,
                reason=decision.reason,
                at=0.0,
                cursor=Cursor("0-0"),
            )
        )
        self._experiment.apply(AttemptEnded(trial=trial.id, attempt=1, end=AttemptEnd.STOPPED, at=0.0))
        self._scheduler.on_trial_end(trial)
