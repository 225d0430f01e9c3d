"""Ray Tune on the work: one local cluster of 2 CPUs, no dashboard, one CPU a trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from benchmarks import bodies
from benchmarks.curve import MAX_EPOCHS
from benchmarks.measurement import Context, Figures, Observed, System, Variant
from benchmarks.systems import training
from benchmarks.watch import read_deaths, watcher
from benchmarks.work import asha, noop, stop, stream

__all__ = ["SYSTEM"]

CPUS: Final = 2
ENVIRONMENT: Final = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    # The experiment's state is saved once, at the end.
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
}


def _observing(base: type, observed: Observed, stop_at: int | None = None, **options: Any) -> Any:
    """Return a *base* scheduler that notes times, and stops trials at report number *stop_at*."""

    class Observing(base):
        def on_trial_add(self, controller: Any, trial: Any) -> None:
            observed.start()
            super().on_trial_add(controller, trial)

        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> Any:
            if observed.report(trial.config["index"], result["training_iteration"], stop_at):
                return self.STOP
            return super().on_trial_result(controller, trial, result)

        def on_trial_complete(self, controller: Any, trial: Any, result: dict[str, Any]) -> None:
            super().on_trial_complete(controller, trial, result)
            observed.end()

    return Observing(**options)


def _fit(
    context: Context,
    body: Callable[[Any, dict[str, Any]], None],
    trials: int,
    scheduler: Any,
    *,
    reuse: bool = False,
    concurrent: int = CPUS,
) -> None:
    """Run the trials on a running cluster."""
    from ray import tune

    def trial(config: dict[str, Any]) -> None:
        body(tune.report, config)

    grid = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"index": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", scheduler=scheduler, reuse_actors=reuse, max_concurrent_trials=concurrent
        ),
        run_config=tune.RunConfig(name="run", storage_path=str(context.folder / "results"), verbose=0),
    ).fit()
    if grid.num_errors or len(grid) != trials:
        raise RuntimeError(f"{len(grid)} of {trials} trials, {grid.num_errors} with errors")


def _start(context: Context) -> None:
    import ray

    # The cluster's sockets live below this folder, and a socket's path is limited to 107 bytes.
    ray.init(
        num_cpus=CPUS,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=str(context.folder),
        logging_level="ERROR",
    )


def _noop(*, reuse: bool) -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        from ray.tune.schedulers import FIFOScheduler

        _start(context)
        observed, trials = Observed(), context.sizes["trials"]
        scheduler = _observing(FIFOScheduler, observed)
        _fit(context, lambda report, _: bodies.noop(report), trials, scheduler, reuse=reuse)
        return noop.figures(trials, first_start=observed.first_start, last_end=observed.last_end)

    return measure


def _stream(context: Context) -> Figures:
    from ray.tune.schedulers import FIFOScheduler

    _start(context)
    observed, folder, reports = Observed(), str(context.folder), context.sizes["reports"]

    def body(report: Any, config: dict[str, Any]) -> None:
        bodies.stream(report, folder, config["index"], reports=reports, parties=stream.PARTIES)

    _fit(context, body, stream.PARTIES, _observing(FIFOScheduler, observed))
    return stream.figures(context.folder, reports=reports, last_decision=observed.last_report)


def _stop(context: Context) -> Figures:
    from ray.tune.schedulers import FIFOScheduler

    observed, folder = Observed(), str(context.folder)

    def body(report: Any, config: dict[str, Any]) -> None:
        bodies.stoppable(report, folder, config["index"])

    with watcher(context.folder):
        _start(context)
        scheduler = _observing(FIFOScheduler, observed, stop_at=bodies.STOP_AT)
        _fit(context, body, context.sizes["trials"], scheduler, concurrent=1)
    return stop.figures(context.folder, observed.decisions, read_deaths(context.folder))


def _asha(*, reuse: bool) -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        from ray.tune.schedulers import ASHAScheduler

        _start(context)
        observed, folder = Observed(), str(context.folder)
        scheduler = _observing(
            ASHAScheduler,
            observed,
            max_t=MAX_EPOCHS,
            grace_period=asha.GRACE_PERIOD,
            reduction_factor=asha.REDUCTION_FACTOR,
        )

        def body(report: Any, config: dict[str, Any]) -> None:
            bodies.asha(report, folder, config["index"])

        _fit(context, body, context.sizes["trials"], scheduler, reuse=reuse)
        return asha.figures(context.folder, first_start=observed.first_start, last_end=observed.last_end)

    return measure


FRESH: Final = "a fresh actor process for each trial, no result loggers"
REUSED: Final = "reuse_actors=True: processes are kept from trial to trial, no result loggers"


def _variants(measure: Callable[..., Callable[[Context], Figures]]) -> tuple[Variant, ...]:
    return (
        Variant(
            name="fresh",
            settings=FRESH,
            measure=measure(reuse=False),
            slow=True,
            deadline_s=480,
            environment=ENVIRONMENT,
        ),
        Variant(name="reused", settings=REUSED, measure=measure(reuse=True), environment=ENVIRONMENT),
    )


SYSTEM: Final = System(
    name="ray",
    title="Ray Tune",
    packages=("ray",),
    variants={
        "noop": _variants(_noop),
        "stream": (Variant(name="no loggers", settings="no result loggers", measure=_stream, environment=ENVIRONMENT),),
        "stop": (Variant(name="fresh", settings=FRESH, measure=_stop, environment=ENVIRONMENT),),
        "asha": _variants(_asha),
        **training.variants(
            fresh=training.Way(FRESH, "run_ray.py", environment=ENVIRONMENT, slow=True),
            reused=training.Way(REUSED, "run_ray.py", ("reuse",), environment=ENVIRONMENT),
        ),
    },
)
