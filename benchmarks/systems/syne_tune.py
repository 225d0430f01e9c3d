"""Syne Tune on the work: its LocalBackend runs a script in a new process for each trial."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import bodies
from benchmarks.curve import MAX_EPOCHS
from benchmarks.measurement import Context, Figures, Observed, System, Variant
from benchmarks.systems import training
from benchmarks.watch import read_deaths, watcher
from benchmarks.work import asha, noop, stop, stream

__all__ = ["SYSTEM"]

WORKERS: Final = 2
SCRIPTS: Final = Path(__file__).parent.parent / "scripts"
BEST_SLEEP_S: Final = 0.01
NEVER_S: Final = 1e9
ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1"}


def _observing(base: type, context: Context, work: str, trials: int, stop_at: int | None = None, **options: Any) -> Any:
    """Return a *base* scheduler that runs *trials* trials of *work*.

    It notes times in its ``observed``, and stops trials at report number *stop_at*.
    """
    from syne_tune.optimizer.scheduler import SchedulerDecision, TrialSuggestion

    class Observing(base):
        def __init__(self) -> None:
            super().__init__(**options)
            self.observed = Observed()
            self.asked = 0

        def suggest(self) -> Any:
            self.observed.start()
            if self.asked == trials:
                return None
            self.asked += 1
            return TrialSuggestion.start_suggestion(
                {
                    "work": work,
                    "folder": str(context.folder),
                    "index": self.asked - 1,
                    "reports": context.sizes.get("reports", 0),
                    "parties": WORKERS,
                }
            )

        def on_trial_result(self, trial: Any, result: dict[str, Any]) -> str:
            if self.observed.report(trial.config["index"], result["epoch"], stop_at):
                return SchedulerDecision.STOP
            return super().on_trial_result(trial, result)

        def on_trial_complete(self, trial: Any, result: dict[str, Any]) -> None:
            super().on_trial_complete(trial, result)
            self.observed.end()

        def on_trial_remove(self, trial: Any) -> None:
            super().on_trial_remove(trial)
            self.observed.end()

        def metric_names(self) -> list[str]:
            return ["loss"]

        def metric_mode(self) -> str:
            return "min"

    return Observing()


def _fifo(context: Context, work: str, trials: int, stop_at: int | None = None) -> Any:
    from syne_tune.optimizer.scheduler import TrialScheduler

    return _observing(TrialScheduler, context, work, trials, stop_at, random_seed=0)


def _run(context: Context, scheduler: Any, *, workers: int = WORKERS) -> Observed:
    """Run the tuner until the scheduler has no more trials, and return its observations."""
    from syne_tune import Tuner
    from syne_tune.backend import LocalBackend

    logging.getLogger().setLevel(logging.ERROR)
    tuner = Tuner(
        trial_backend=LocalBackend(str(SCRIPTS / "trial.py"), rotate_gpus=False),
        scheduler=scheduler,
        stop_criterion=lambda _status: False,
        n_workers=workers,
        sleep_time=BEST_SLEEP_S,
        trial_backend_path=str(context.folder / "results"),
        callbacks=[],
        save_tuner=False,
        print_update_interval=NEVER_S,
    )
    tuner.run()
    if tuner.tuning_status.num_trials_failed:
        raise RuntimeError(f"{tuner.tuning_status.num_trials_failed} trials failed")
    return scheduler.observed


def _noop(context: Context) -> Figures:
    trials = context.sizes["trials"]
    observed = _run(context, _fifo(context, "noop", trials))
    return noop.figures(trials, first_start=observed.first_start, last_end=observed.last_end)


def _stream(context: Context) -> Figures:
    observed = _run(context, _fifo(context, "stream", stream.PARTIES))
    reports = context.sizes["reports"]
    if observed.reports != stream.PARTIES * reports:
        raise RuntimeError(f"{observed.reports} reports arrived of {stream.PARTIES * reports}")
    return stream.figures(context.folder, reports=reports, last_decision=observed.last_report)


def _stop(context: Context) -> Figures:
    with watcher(context.folder):
        scheduler = _fifo(context, "stop", context.sizes["trials"], stop_at=bodies.STOP_AT)
        observed = _run(context, scheduler, workers=1)
    return stop.figures(context.folder, observed.decisions, read_deaths(context.folder))


def _asha(context: Context) -> Figures:
    from syne_tune.config_space import randint
    from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving

    trials = context.sizes["trials"]
    scheduler = _observing(
        AsynchronousSuccessiveHalving,
        context,
        "asha",
        trials,
        config_space={"index": randint(0, trials - 1)},
        metric="loss",
        do_minimize=True,
        time_attr="epoch",
        max_t=MAX_EPOCHS,
        grace_period=asha.GRACE_PERIOD,
        reduction_factor=asha.REDUCTION_FACTOR,
        random_seed=0,
    )
    observed = _run(context, scheduler)
    return asha.figures(context.folder, first_start=observed.first_start, last_end=observed.last_end)


BEST: Final = f"sleep_time={BEST_SLEEP_S}, no callbacks, save_tuner=False, no status table, rotate_gpus=False"


def _best(measure: Callable[[Context], Figures]) -> tuple[Variant, ...]:
    return (Variant(name="best", settings=BEST, measure=measure, environment=ENVIRONMENT),)


SYSTEM: Final = System(
    name="syne",
    title="Syne Tune",
    packages=("syne_tune",),
    variants={
        "noop": _best(_noop),
        "stream": _best(_stream),
        "stop": _best(_stop),
        "asha": _best(_asha),
        **training.variants(best=training.Way(f"LocalBackend, its ASHA; {BEST}", "run_syne.py", slow=True)),
    },
)
