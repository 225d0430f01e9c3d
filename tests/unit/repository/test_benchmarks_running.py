"""What the benchmarks run of mqtune is what a user would run."""

from __future__ import annotations

from benchmarks.systems.mqtune_running import Observed, fifo, observing
from mqtune.core.trial import Action, Report, Trial, TrialId
from mqtune.schedulers import CONTINUE

TRIAL = Trial(id=TrialId("0001"), config={"index": 7})


def test_an_observed_scheduler_decides_as_before_and_it_is_noted_when() -> None:
    observed = Observed()
    scheduler = observing(fifo(), observed, stop_at=2)
    first, second = (Report(TRIAL.id, 1, number, float(number), {"loss": 1.0}) for number in (1, 2))
    assert scheduler.on_report(TRIAL, first) is CONTINUE
    assert scheduler.on_report(TRIAL, second).action is Action.STOP
    scheduler.on_trial_end(TRIAL)
    assert (observed.reports, observed.ended, list(observed.decisions)) == (2, 1, ["stop-7"])
    assert observed.last_end_at > 0
