"""Syne Tune on the work: its LocalBackend, which runs a script in a process of its own for each trial."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import bodies
from benchmarks.curve import MAX_EPOCHS
from benchmarks.measurement import Context, Figures, System, Variant
from benchmarks.systems import syne_quality, training
from benchmarks.watch import watcher
from benchmarks.work import asha, memory, noop, stop, stream

__all__ = ["SYSTEM"]

WORKERS: Final = 2
SCRIPTS: Final = Path(__file__).parent.parent / "scripts"
BEST_SLEEP_S: Final = 0.01
SPINNING_SLEEP_S: Final = 0.0
DEFAULT_SLEEP_S: Final = 5.0
NEVER_S: Final = 1e9
ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1"}


class Observed:
    """When the scheduler was first asked and last told, and what it decided when."""

    def __init__(self) -> None:
        self.first_start = 0.0
        self.last_end = 0.0
        self.last_report = 0.0
        self.reports = 0
        self.decisions: dict[str, float] = {}


def _observing(base: type, context: Context, work: str, trials: int, stop_at: int | None = None, **options: Any) -> Any:
    """Return a scheduler of class *base* that runs *trials* trials of *work* and notes times in its ``observed``.

    With *stop_at* it stops each trial at that many reports.
    """
    from syne_tune.optimizer.scheduler import SchedulerDecision, TrialSuggestion

    class Observing(base):
        def __init__(self) -> None:
            super().__init__(**options)
            self.observed = Observed()
            self.asked = 0

        def suggest(self) -> Any:
            self.observed.first_start = self.observed.first_start or time.monotonic()
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
            self.observed.last_report = time.monotonic()
            self.observed.reports += 1
            if result["epoch"] == stop_at:
                self.observed.decisions[f"stop-{trial.config['index']}"] = self.observed.last_report
                return SchedulerDecision.STOP
            return super().on_trial_result(trial, result)

        def on_trial_complete(self, trial: Any, result: dict[str, Any]) -> None:
            super().on_trial_complete(trial, result)
            self.observed.last_end = time.monotonic()

        def on_trial_remove(self, trial: Any) -> None:
            super().on_trial_remove(trial)
            self.observed.last_end = time.monotonic()

        def metric_names(self) -> list[str]:
            return ["loss"]

        def metric_mode(self) -> str:
            return "min"

    return Observing()


def _fifo(context: Context, work: str, trials: int, stop_at: int | None = None) -> Any:
    from syne_tune.optimizer.scheduler import TrialScheduler

    return _observing(TrialScheduler, context, work, trials, stop_at, random_seed=0)


def _run(
    context: Context, scheduler: Any, *, sleep_s: float, script: str = "trial.py", workers: int = WORKERS
) -> tuple[Observed, float]:
    """Run the tuner until the scheduler has nothing more, and return what it saw and how long ``run()`` took."""
    from syne_tune import Tuner
    from syne_tune.backend import LocalBackend

    logging.getLogger().setLevel(logging.ERROR)
    best = sleep_s != DEFAULT_SLEEP_S
    options: dict[str, Any] = {"callbacks": [], "save_tuner": False, "print_update_interval": NEVER_S} if best else {}
    tuner = Tuner(
        trial_backend=LocalBackend(str(SCRIPTS / script), rotate_gpus=not best),
        scheduler=scheduler,
        stop_criterion=lambda _status: False,
        n_workers=workers,
        sleep_time=sleep_s,
        trial_backend_path=str(context.folder / "results"),
        **options,
    )
    begin = time.monotonic()
    tuner.run()
    taken = time.monotonic() - begin
    if tuner.tuning_status.num_trials_failed:
        raise RuntimeError(f"{tuner.tuning_status.num_trials_failed} trials failed")
    return scheduler.observed, taken


def _noop(sleep_s: float, script: str = "trial.py") -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        trials = context.sizes["trials"]
        observed, run_s = _run(context, _fifo(context, "noop", trials), sleep_s=sleep_s, script=script)
        return noop.figures(trials, first_start=observed.first_start, last_end=observed.last_end, run_s=run_s)

    return measure


def _stream(sleep_s: float) -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        observed, _ = _run(context, _fifo(context, "stream", stream.PARTIES), sleep_s=sleep_s)
        reports = context.sizes["reports"]
        if observed.reports != stream.PARTIES * reports:
            raise RuntimeError(f"{observed.reports} reports arrived of {stream.PARTIES * reports}")
        return stream.figures(context.folder, reports=reports, last_decision=observed.last_report)

    return measure


def _stop(sleep_s: float) -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        with watcher(context.folder) as deaths:
            scheduler = _fifo(context, "stop", context.sizes["trials"], stop_at=bodies.STOP_AT)
            observed, _ = _run(context, scheduler, sleep_s=sleep_s, workers=1)
        return stop.figures(context.folder, observed.decisions, deaths.read())

    return measure


def _asha(sleep_s: float) -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
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
        observed, _ = _run(context, scheduler, sleep_s=sleep_s)
        return asha.figures(
            context.folder,
            first_start=observed.first_start,
            last_end=observed.last_end,
            epochs_decided=observed.reports,
        )

    return measure


def _memory(context: Context) -> Figures:
    with memory.parked_trials(context) as parked:
        _run(context, _fifo(context, "park", memory.PARTIES), sleep_s=BEST_SLEEP_S)
    return memory.figures(idle=memory.settle_and_measure(context), busy=parked[0])


BEST: Final = f"sleep_time={BEST_SLEEP_S}, no callbacks, save_tuner=False, no status table, rotate_gpus=False"
DEFAULT: Final = "all settings as they come: sleep_time=5.0, results stored, tuner saved"
SPINNING: Final = BEST.replace(f"={BEST_SLEEP_S}", "=0: the driver spins on a core of its own")
BARE: Final = f"{BEST}; the script imports nothing and prints its report by itself"


def _best(measure: Callable[[Context], Figures], name: str = "best", settings: str = BEST) -> Variant:
    return Variant(name=name, settings=settings, measure=measure, environment=ENVIRONMENT)


def _default(measure: Callable[[Context], Figures], **sizes: int) -> Variant:
    return Variant(
        name="default",
        settings=DEFAULT,
        measure=measure,
        sizes=sizes,
        slow=True,
        deadline_s=480,
        environment=ENVIRONMENT,
    )


SYSTEM: Final = System(
    name="syne",
    title="Syne Tune",
    packages=("syne_tune",),
    variants={
        "noop": (
            _best(_noop(BEST_SLEEP_S)),
            _best(_noop(BEST_SLEEP_S, "noop_bare.py"), "bare script", BARE),
            # Each pair of trials costs one sleep of 5 s: 200 of them would say the same in 500 s.
            _default(_noop(DEFAULT_SLEEP_S), trials=20),
        ),
        "stream": (_best(_stream(BEST_SLEEP_S)), _default(_stream(DEFAULT_SLEEP_S))),
        "stop": (
            _best(_stop(BEST_SLEEP_S)),
            _best(_stop(SPINNING_SLEEP_S), "spinning", SPINNING),
            _default(_stop(DEFAULT_SLEEP_S)),
        ),
        "asha": (
            _best(_asha(BEST_SLEEP_S)),
            _best(_asha(SPINNING_SLEEP_S), "spinning", SPINNING),
            _default(_asha(DEFAULT_SLEEP_S)),
        ),
        "quality": syne_quality.VARIANTS,
        "memory": (_best(_memory),),
        **training.variants("syne"),
    },
)
