"""mqtune on the work: no broker given, so a Tuner starts an embedded server and a local worker of two slots."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from benchmarks import bodies
from benchmarks.curve import MAX_EPOCHS
from benchmarks.measurement import Context, Figures, System, Variant
from benchmarks.processes import Memory
from benchmarks.systems import (
    mqtune_catch_up,
    mqtune_checkpoint,
    mqtune_fleet,
    mqtune_opened,
    mqtune_pause,
    mqtune_population,
    mqtune_quality,
    mqtune_retention,
    mqtune_scaling,
    mqtune_shares,
    mqtune_simulated,
    mqtune_start,
    mqtune_studies,
    syne_loop,
    training,
)
from benchmarks.systems.mqtune_running import SETTINGS, Observed, fifo, observing, pondering, run
from benchmarks.watch import watcher
from benchmarks.work import asha, memory, noop, stop, stream

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


def _stop(ponder: Callable[[], None] | None = None) -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        from benchmarks import trainables

        observed, trials = Observed(), context.sizes["trials"]
        searcher = None if ponder is None else pondering(context, trials, ponder)
        # With a searcher that is slower than a trial, one of two slots always waits for it.
        slots = 1 if searcher is None else 2
        with watcher(context.folder) as deaths:
            scheduler = observing(fifo(), observed, stop_at=bodies.STOP_AT)
            run(context, trainables.stoppable, trials, scheduler, slots=slots, searcher=searcher)
        return stop.figures(context.folder, observed.decisions, deaths.read())

    return measure


def _wait() -> None:
    time.sleep(PONDERS_S)


def _compute() -> None:
    """Take the interpreter, as a model in Python does."""
    end = time.monotonic() + PONDERS_S
    while time.monotonic() < end:
        sum(number * number for number in range(1000))


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


def _memory(context: Context) -> Figures:
    """Measure idle from within the driver, at the end of the last trial, while server and worker are still up."""
    from benchmarks import trainables

    observed = Observed()
    idle: list[Memory] = []

    def on_end() -> None:
        if observed.ended == memory.PARTIES:
            idle.append(memory.settle_and_measure(context))

    with memory.parked_trials(context) as parked:
        run(context, trainables.park, memory.PARTIES, observing(fifo(), observed, on_end=on_end))
    return memory.figures(idle=idle[0], busy=parked[0])


#: Enough that a run at the bar takes seconds, as the peers' 2,000 take for them.
STREAM_REPORTS: Final = 200_000
LOCKSTEP_REPORTS: Final = 10_000
#: How long a slow searcher takes for a config.
PONDERS_S: Final = 2.0

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
        "stop": (
            Variant(name="default", settings=f"{SETTINGS}; one slot", measure=_stop()),
            Variant(
                name="searcher waits",
                settings=f"{SETTINGS}; two slots, one of them idle; a searcher that waits {PONDERS_S:g} s for each config",
                measure=_stop(_wait),
            ),
            Variant(
                name="searcher computes",
                settings=f"{SETTINGS}; two slots, one of them idle; a searcher that computes {PONDERS_S:g} s in Python for each config",
                measure=_stop(_compute),
            ),
        ),
        "asha": (Variant(name="default", settings=SETTINGS, measure=_asha),),
        "pause": (
            Variant(
                name="default",
                settings="an embedded server, two workers of one slot, checkpoints in Redis, everything journaled",
                measure=mqtune_pause.measure,
            ),
        ),
        "checkpoint": (
            Variant(name="dict", settings=f"{SETTINGS}; one slot", measure=mqtune_checkpoint.measure_dicts),
            Variant(name="stream of dicts", settings=SETTINGS, measure=mqtune_checkpoint.measure_stream),
            Variant(
                name="directory",
                settings=f"{SETTINGS}; one slot, the store in a folder of the same file system",
                measure=mqtune_checkpoint.measure_directory,
            ),
            Variant(
                name="one large file",
                settings=f"{SETTINGS}; one slot, the store in a folder of the same file system; fetched from the disk",
                measure=mqtune_checkpoint.measure_large,
                sizes={"large_files": 1},
                slow=True,
                deadline_s=900.0,
            ),
            Variant(
                name="ten large files",
                settings=f"{SETTINGS}; one slot, the store in a folder of the same file system; fetched from the disk",
                measure=mqtune_checkpoint.measure_large,
                sizes={"large_files": 10},
                slow=True,
                deadline_s=900.0,
            ),
            Variant(
                name="S3",
                settings="a store alone, one file, s3fs; moto's server on the same machine, which holds all in memory",
                measure=mqtune_checkpoint.measure_s3,
                slow=True,
                deadline_s=900.0,
            ),
        ),
        "memory": (Variant(name="default", settings=SETTINGS, measure=_memory),),
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
        "quality": mqtune_quality.VARIANTS,
        "studies": mqtune_studies.VARIANTS,
        "syne_loop": syne_loop.VARIANTS,
        "fleet": mqtune_fleet.VARIANTS,
        "shares": (
            Variant(
                name="default",
                settings="what keeps drivers to their shares, and nothing else of them",
                measure=mqtune_shares.measure,
                slow=True,
                deadline_s=1_800,
            ),
        ),
        "retention": (
            Variant(
                name="default",
                settings="reports of three metrics, an entry each; a store in a folder; drivers' reading, copies and trimming alone",
                measure=mqtune_retention.measure,
                slow=True,
                deadline_s=7_200,
            ),
        ),
        "population": (
            Variant(
                name="default",
                settings="simulated workers, a checkpoint with each report; medians of processor time",
                measure=mqtune_population.measure,
                slow=True,
                deadline_s=900.0,
            ),
        ),
        "opened": (
            Variant(
                name="default",
                settings="1,000 trials, 100 reports in an entry; `mqtune show FOLDER` in a process of its own",
                measure=mqtune_opened.measure,
                slow=True,
                deadline_s=900.0,
            ),
        ),
        "catch_up": (
            Variant(
                name="default",
                settings="an embedded server that holds the journal; a new driver with ASHA, without its worker",
                measure=mqtune_catch_up.measure,
                slow=True,
                deadline_s=900.0,
            ),
        ),
        **training.variants("mqtune"),
    },
)
