"""mqtune on the work: each Tuner starts an embedded server and a local worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from benchmarks import bodies
from benchmarks.curve import MAX_EPOCHS
from benchmarks.measurement import Context, Figures, Observed, System, Variant
from benchmarks.systems import mqtune_fleet, mqtune_quality, training
from benchmarks.watch import read_deaths, watcher
from benchmarks.work import asha, noop, start, stop, stream

if TYPE_CHECKING:
    from mqtune.schedulers.base import Scheduler

__all__ = ["SYSTEM", "fifo", "observing"]

SETTINGS: Final = "embedded server, one local worker, a fresh forked process for each trial, everything journaled"
SLOTS: Final = 2
#: Enough that a run takes seconds, as the peers' 2,000 take for them.
STREAM_REPORTS: Final = 200_000


def fifo() -> Scheduler:
    from mqtune.schedulers.base import FIFO

    return FIFO()


def observing(scheduler: Scheduler, observed: Observed, *, stop_at: int | None = None) -> Scheduler:
    """Make a scheduler note its decisions' times, and stop trials at report number *stop_at*.

    It stays the scheduler that a user would give, because the driver asks it for more than decisions.
    """
    from mqtune.core.trial import Action, Decision, Report, Trial

    decide, end = scheduler.on_report, scheduler.on_trial_end

    def on_report(trial: Trial, report: Report) -> Decision:
        if observed.report(trial.config["index"], report.sequence, stop_at):
            return Decision(Action.STOP, f"{stop_at} reports")
        return decide(trial, report)

    def on_trial_end(trial: Trial) -> None:
        end(trial)
        observed.end()

    vars(scheduler).update(on_report=on_report, on_trial_end=on_trial_end)
    return scheduler


def _run(
    context: Context,
    trainable: Callable[[dict[str, Any]], None],
    trials: int,
    scheduler: Scheduler,
    *,
    stop_at: int | None = None,
    slots: int = SLOTS,
) -> Observed:
    """Run all trials of a trainable to their ends. The first start is the worker's first claim."""
    import mqtune
    from mqtune.core.trial import TrialStatus

    observed = Observed()
    tuner = mqtune.Tuner(
        trainable,
        {
            "index": mqtune.grid_search(list(range(trials))),
            "folder": str(context.folder),
            "parties": stream.PARTIES,
            **context.sizes,
        },
        metric="loss",
        mode="min",
        scheduler=observing(scheduler, observed, stop_at=stop_at),
        max_trials=trials,
        backend=mqtune.Local(slots=slots),
        name=f"benchmark-{trainable.__name__}",
    )
    tuner.run()
    run = tuner.get_trials()
    failed = [trial for trial in run if trial.status is TrialStatus.FAILED]
    if failed or len(run) != trials:
        raise RuntimeError(f"{len(run)} of {trials} trials; failed: {[(trial.id, trial.reason) for trial in failed]}")
    # Claims have the time of day.
    observed.first_start = min(trial.attempts[0].started_at or 0.0 for trial in run) - time.time() + time.monotonic()
    return observed


def _start(context: Context) -> Figures:
    """Measure the script by its journal."""
    import mqtune
    from mqtune.core.trial import TrialStatus

    run = start.run_script("start_mqtune.py", context)
    results = mqtune.Results.load("start")
    if results.outcome != "finished" or [trial.status for trial in results] != [TrialStatus.COMPLETED] * 4:
        raise RuntimeError(f"outcome {results.outcome!r}; {[trial.status for trial in results]}")
    return start.figures(
        run,
        first_report_at=min(report.timestamp for report in results.reports()),
        last_end_at=max(trial.attempts[-1].ended_at or 0.0 for trial in results),
    )


def _noop(context: Context) -> Figures:
    from benchmarks import trainables

    trials = context.sizes["trials"]
    observed = _run(context, trainables.noop, trials, fifo())
    return noop.figures(trials, first_start=observed.first_start, last_end=observed.last_end)


def _stream(context: Context) -> Figures:
    from benchmarks import trainables

    reports = context.sizes["reports"]
    observed = _run(context, trainables.stream, stream.PARTIES, fifo())
    if observed.reports != stream.PARTIES * reports:
        raise RuntimeError(f"{observed.reports} reports were decided of {stream.PARTIES * reports}")
    return stream.figures(context.folder, reports=reports, last_decision=observed.last_report)


def _stop(context: Context) -> Figures:
    from benchmarks import trainables

    with watcher(context.folder):
        observed = _run(context, trainables.stoppable, context.sizes["trials"], fifo(), stop_at=bodies.STOP_AT, slots=1)
    return stop.figures(context.folder, observed.decisions, read_deaths(context.folder))


def _asha(context: Context) -> Figures:
    from benchmarks import trainables
    from mqtune.schedulers.asha import ASHA

    scheduler = ASHA(max_t=MAX_EPOCHS, grace_period=asha.GRACE_PERIOD, reduction_factor=asha.REDUCTION_FACTOR)
    observed = _run(context, trainables.asha, context.sizes["trials"], scheduler)
    return asha.figures(context.folder, first_start=observed.first_start, last_end=observed.last_end)


SYSTEM: Final = System(
    name="mqtune",
    title="mqtune",
    packages=("mqtune",),
    variants={
        "start": (Variant(name="default", settings=f"{SETTINGS}; all else as it comes", measure=_start),),
        "noop": (Variant(name="default", settings=SETTINGS, measure=_noop),),
        "stream": (Variant(name="stream", settings=SETTINGS, measure=_stream, sizes={"reports": STREAM_REPORTS}),),
        "stop": (Variant(name="default", settings=f"{SETTINGS}; one slot", measure=_stop),),
        "asha": (Variant(name="default", settings=SETTINGS, measure=_asha),),
        "quality": mqtune_quality.VARIANTS,
        "fleet": mqtune_fleet.VARIANTS,
        **training.variants(
            function=training.Way(
                "embedded server, one local worker, all else as it comes: a fresh forked process for each trial",
                "run_mqtune.py",
                slots=(1, 2, 8),
            )
        ),
    },
)
