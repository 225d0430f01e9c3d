"""mqtune on the work: no broker given, so a Tuner starts an embedded server and a local worker of two slots."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from benchmarks import bodies
from benchmarks.curve import MAX_EPOCHS
from benchmarks.measurement import Context, Figures, Skip, System, Variant
from benchmarks.processes import Memory
from benchmarks.systems import mqtune_scaling, mqtune_simulated
from benchmarks.watch import watcher
from benchmarks.work import asha, memory, noop, stop, stream

if TYPE_CHECKING:
    from mqtune.schedulers import Scheduler

__all__ = ["SYSTEM"]

SLOTS: Final = 2


class Observed:
    """What the driver decided when (monotonic), and when it last knew of a trial's end (both clocks)."""

    def __init__(self) -> None:
        self.last_report = 0.0
        self.reports = 0
        self.last_end_at = 0.0
        self.decisions: dict[str, float] = {}
        self.ended = 0


def _observing(
    inner: Scheduler, observed: Observed, *, stop_at: int | None = None, on_end: Callable[[], None] | None = None
) -> Scheduler:
    """Return a scheduler that decides as *inner* and notes when; with *stop_at* it stops at that many reports."""
    from mqtune.schedulers import Scheduler
    from mqtune.trial import Action, Decision, Report, Trial

    class Observing(Scheduler):
        def bind(self, metric: str, mode: str) -> None:
            super().bind(metric, mode)
            inner.bind(metric, mode)

        def on_report(self, trial: Trial, report: Report) -> Decision:
            observed.reports += 1
            observed.last_report = time.monotonic()
            if report.sequence == stop_at:
                observed.decisions[f"stop-{trial.config['index']}"] = observed.last_report
                return Decision(Action.STOP, f"{stop_at} reports")
            return inner.on_report(trial, report)

        def on_trial_end(self, trial: Trial) -> None:
            inner.on_trial_end(trial)
            observed.last_end_at = time.time()
            observed.ended += 1
            if on_end is not None:
                on_end()

        def describe(self) -> dict[str, Any]:
            return inner.describe()

    return Observing()


def _run(
    context: Context, trainable: str, trials: int, scheduler: Scheduler, *, slots: int = SLOTS, **options: Any
) -> tuple[float, float]:
    """Run the trials, and return when the first was claimed (seconds since the epoch) and how long ``run()`` took.

    The first claim is where the worker is up; until then ``run()`` starts the server and the worker.
    """
    import mqtune
    from benchmarks import trainables
    from mqtune.status import TrialStatus

    try:
        tuner = mqtune.Tuner(
            getattr(trainables, trainable),
            {
                "index": mqtune.grid_search(list(range(trials))),
                "folder": str(context.folder),
                "reports": context.sizes.get("reports", 0),
                "parties": stream.PARTIES,
            },
            metric="loss",
            mode="min",
            scheduler=scheduler,
            max_trials=trials,
            local_slots=slots,
            name=f"benchmark-{trainable}",
            **options,
        )
    except TypeError as error:
        raise Skip(f"this mqtune doesn't know {', '.join(options)}: {error}") from None
    begin = time.monotonic()
    tuner.run()
    taken = time.monotonic() - begin
    found = tuner.get_trials()
    failed = [trial for trial in found if trial.status is TrialStatus.FAILED]
    if failed or len(found) != trials:
        raise RuntimeError(f"{len(found)} of {trials} trials; failed: {[(t.id, t.reason) for t in failed]}")
    return min(trial.attempts[0].started_at or 0.0 for trial in found), taken


def _fifo() -> Scheduler:
    from mqtune.schedulers import FIFO

    return FIFO()


def _noop(context: Context) -> Figures:
    trials, observed = context.sizes["trials"], Observed()
    first_start, run_s = _run(context, "noop", trials, _observing(_fifo(), observed))
    return noop.figures(trials, first_start=first_start, last_end=observed.last_end_at, run_s=run_s)


def _stream(**options: Any) -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        observed, reports = Observed(), context.sizes["reports"]
        _run(context, "stream", stream.PARTIES, _observing(_fifo(), observed), **options)
        if observed.reports != stream.PARTIES * reports:
            raise RuntimeError(f"{observed.reports} reports were decided of {stream.PARTIES * reports}")
        return stream.figures(context.folder, reports=reports, last_decision=observed.last_report)

    return measure


def _stop(context: Context) -> Figures:
    observed = Observed()
    with watcher(context.folder) as deaths:
        scheduler = _observing(_fifo(), observed, stop_at=bodies.STOP_AT)
        _run(context, "stoppable", context.sizes["trials"], scheduler, slots=1)
    return stop.figures(context.folder, observed.decisions, deaths.read())


def _asha(context: Context) -> Figures:
    from mqtune.schedulers import ASHA

    observed = Observed()
    inner = ASHA(max_t=MAX_EPOCHS, grace_period=asha.GRACE_PERIOD, reduction_factor=asha.REDUCTION_FACTOR)
    first_start, _ = _run(context, "asha", context.sizes["trials"], _observing(inner, observed))
    return asha.figures(
        context.folder,
        first_start=first_start,
        last_end=observed.last_end_at,
        epochs_decided=observed.reports,
    )


def _memory(context: Context) -> Figures:
    """Measure idle from within the driver, at the end of the last trial, while server and worker are still up."""
    observed = Observed()
    idle: list[Memory] = []

    def on_end() -> None:
        if observed.ended == memory.PARTIES:
            idle.append(memory.settle_and_measure(context))

    with memory.parked_trials(context) as parked:
        _run(context, "park", memory.PARTIES, _observing(_fifo(), observed, on_end=on_end))
    return memory.figures(idle=idle[0], busy=parked[0])


DEFAULT: Final = "embedded server, one local worker, a fresh forked process for each trial, everything journaled"
#: Enough that a run at the bar takes seconds, as the peers' 2,000 take for them.
STREAM_REPORTS: Final = 200_000
LOCKSTEP_REPORTS: Final = 10_000

SYSTEM: Final = System(
    name="mqtune",
    title="mqtune",
    packages=("mqtune",),
    variants={
        "noop": (Variant(name="default", settings=DEFAULT, measure=_noop),),
        "stream": (
            Variant(name="stream", settings=DEFAULT, measure=_stream(), sizes={"reports": STREAM_REPORTS}),
            Variant(
                name="lockstep",
                settings=f'{DEFAULT}; sync="lockstep"',
                measure=_stream(sync="lockstep"),
                sizes={"reports": LOCKSTEP_REPORTS},
            ),
        ),
        "stop": (Variant(name="default", settings=f"{DEFAULT}; one slot", measure=_stop),),
        "asha": (Variant(name="default", settings=DEFAULT, measure=_asha),),
        "memory": (Variant(name="default", settings=DEFAULT, measure=_memory),),
        "scaling": (
            Variant(
                name="default", settings="Experiment and ASHA alone, without journal", measure=mqtune_scaling.measure
            ),
        ),
        "simulated": (
            Variant(
                name="default",
                settings="the whole driver on simulated workers, without checkpoints; the journal's copy on disk",
                measure=mqtune_simulated.measure,
            ),
        ),
    },
)
