"""mqtune on the work: no broker given, so a Tuner starts an embedded server and a local worker of two slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from benchmarks import bodies
from benchmarks.curve import MAX_EPOCHS
from benchmarks.measurement import Context, Figures, System, Variant
from benchmarks.systems import mqtune_fleet, mqtune_quality, mqtune_start, training
from benchmarks.systems.mqtune_running import SETTINGS, Observed, fifo, observing, run
from benchmarks.watch import watcher
from benchmarks.work import asha, noop, stop, stream

if TYPE_CHECKING:
    from mqtune.driver.settings import Sync

__all__ = ["SYSTEM"]


def _noop(context: Context) -> Figures:
    from benchmarks import trainables

    trials, observed = context.sizes["trials"], Observed()
    done = run(context, trainables.noop, trials, observing(fifo(), observed))
    return noop.figures(trials, first_start=done.first_start, last_end=observed.last_end_at, run_s=done.taken_s)


def _stream(sync: Sync = "stream") -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        from benchmarks import trainables
        from mqtune.driver.settings import Process

        observed, reports = Observed(), context.sizes["reports"]
        run(context, trainables.stream, stream.PARTIES, observing(fifo(), observed), process=Process(sync=sync))
        if observed.reports != stream.PARTIES * reports:
            raise RuntimeError(f"{observed.reports} reports were decided of {stream.PARTIES * reports}")
        return stream.figures(context.folder, reports=reports, last_decision=observed.shown[-1])

    return measure


def _stop(context: Context) -> Figures:
    from benchmarks import trainables

    observed, trials = Observed(), context.sizes["trials"]
    with watcher(context.folder) as deaths:
        scheduler = observing(fifo(), observed, stop_at=bodies.STOP_AT)
        run(context, trainables.stoppable, trials, scheduler, slots=1)
    return stop.figures(context.folder, observed.decisions, deaths.read())


def _asha(context: Context) -> Figures:
    from benchmarks import trainables
    from mqtune.schedulers.asha import ASHA

    observed = Observed()
    inner = ASHA(max_t=MAX_EPOCHS, grace_period=asha.GRACE_PERIOD, reduction_factor=asha.REDUCTION_FACTOR)
    done = run(context, trainables.asha, context.sizes["trials"], observing(inner, observed))
    return asha.figures(
        context.folder,
        first_start=done.first_start,
        last_end=observed.last_end_at,
        epochs_decided=observed.reports,
    )


#: Enough that a run at the bar takes seconds, as the peers' 2,000 take for them.
STREAM_REPORTS: Final = 200_000
LOCKSTEP_REPORTS: Final = 10_000

SYSTEM: Final = System(
    name="mqtune",
    title="mqtune",
    packages=("mqtune",),
    variants={
        "start": (Variant(name="default", settings=f"{SETTINGS}; all else as it comes", measure=mqtune_start.measure),),
        "noop": (Variant(name="default", settings=SETTINGS, measure=_noop),),
        "stream": (
            Variant(name="stream", settings=SETTINGS, measure=_stream(), sizes={"reports": STREAM_REPORTS}),
            Variant(
                name="lockstep",
                settings=f'{SETTINGS}; sync="lockstep"',
                measure=_stream(sync="lockstep"),
                sizes={"reports": LOCKSTEP_REPORTS},
            ),
        ),
        "stop": (Variant(name="default", settings=f"{SETTINGS}; one slot", measure=_stop),),
        "asha": (Variant(name="default", settings=SETTINGS, measure=_asha),),
        "quality": mqtune_quality.VARIANTS,
        "fleet": mqtune_fleet.VARIANTS,
        **training.variants("mqtune"),
    },
)
