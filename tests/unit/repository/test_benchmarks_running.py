"""The benchmarks run mqtune as a user would."""

from __future__ import annotations

from benchmarks.measurement import Observed
from benchmarks.systems.mqtune_ import fifo, observing
from mqtune.core.trial import Action, Report, Trial, TrialId
from mqtune.schedulers import CONTINUE

TRIAL = Trial(id=TrialId("0001"), config={"index": 7})


def test_an_observed_scheduler_decides_as_before_and_notes_the_times() -> None:
    observed = Observed()
    scheduler = observing(fifo(), observed, stop_at=2)
    first, second = (Report(TRIAL.id, 1, number, float(number), {"loss": 1.0}) for number in (1, 2))
    assert scheduler.on_report(TRIAL, first) is CONTINUE
    assert scheduler.on_report(TRIAL, second).action is Action.STOP
    scheduler.on_trial_end(TRIAL)
    assert (observed.reports, observed.decisions) == (2, {"stop-7": observed.last_report})
    assert observed.last_end >= observed.last_report > 0
