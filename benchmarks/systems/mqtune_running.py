"""Running mqtune on the work: a Tuner without a broker, so that it starts an embedded server and a local worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.measurement import Context
from benchmarks.work import stream

if TYPE_CHECKING:
    from mqtune.schedulers.base import Scheduler

__all__ = ["SETTINGS", "SLOTS", "Observed", "Run", "fifo", "observing", "run"]

Trainable = Callable[[dict[str, Any]], None]

SETTINGS: Final = "embedded server, one local worker, a fresh forked process for each trial, everything journaled"
SLOTS: Final = 2


class Run(NamedTuple):
    """A run that is over: the experiment's name, when its first trial was claimed (seconds since the epoch), how long it took.

    The first claim is where the worker is up; until then ``Tuner.run`` starts the server and the worker.
    """

    experiment: str
    first_start: float
    taken_s: float


class Observed:
    """What the driver decided when (monotonic), and when it last knew of a trial's end (seconds since the epoch)."""

    def __init__(self) -> None:
        #: When the scheduler was shown each report.
        self.shown: list[float] = []
        self.last_end_at = 0.0
        self.decisions: dict[str, float] = {}
        self.ended = 0

    @property
    def reports(self) -> int:
        return len(self.shown)


def observing(
    inner: Scheduler, observed: Observed, *, stop_at: int | None = None, on_end: Callable[[], None] | None = None
) -> Scheduler:
    """Return *inner*, which from now on notes when it decides; with *stop_at* it stops at that many reports.

    It stays the scheduler that a user would give: the driver asks it more than its decisions, such as whether attempts may be staged
    ahead of free slots.
    """
    from mqtune.core.trial import Action, Decision, Report, Trial

    decide, end = inner.on_report, inner.on_trial_end

    def on_report(trial: Trial, report: Report) -> Decision:
        now = time.monotonic()
        observed.shown.append(now)
        if report.sequence == stop_at:
            observed.decisions[f"stop-{trial.config['index']}"] = now
            return Decision(Action.STOP, f"{stop_at} reports")
        return decide(trial, report)

    def on_trial_end(trial: Trial) -> None:
        end(trial)
        observed.last_end_at = time.time()
        observed.ended += 1
        if on_end is not None:
            on_end()

    vars(inner).update(on_report=on_report, on_trial_end=on_trial_end)
    return inner


def run(
    context: Context, trainable: Trainable, trials: int, scheduler: Scheduler, *, slots: int = SLOTS, **options: Any
) -> Run:
    """Run a trainable so often, to the end."""
    import mqtune
    from mqtune.core.trial import TrialStatus

    tuner = mqtune.Tuner(
        trainable,
        _space(context, trials),
        metric="loss",
        mode="min",
        scheduler=scheduler,
        max_trials=trials,
        backend=mqtune.Local(slots=slots),
        name=f"benchmark-{trainable.__name__}",
        **options,
    )
    begin = time.monotonic()
    tuner.run()
    taken_s = time.monotonic() - begin
    found = tuner.get_trials()
    failed = [trial for trial in found if trial.status is TrialStatus.FAILED]
    if failed or len(found) != trials:
        raise RuntimeError(f"{len(found)} of {trials} trials; failed: {[(t.id, t.reason) for t in failed]}")
    return Run(tuner.name, min(trial.attempts[0].started_at or 0.0 for trial in found), taken_s)


def fifo() -> Scheduler:
    from mqtune.schedulers.base import FIFO

    return FIFO()


def _space(context: Context, trials: int) -> dict[str, object]:
    import mqtune

    return {
        "index": mqtune.grid_search(list(range(trials))),
        "folder": str(context.folder),
        "parties": stream.PARTIES,
        **context.sizes,
    }
