"""Syne Tune's own Tuner over its LocalBackend and over mqtune's CeleryBackend, in turns in one process."""

from __future__ import annotations

import contextlib
import io
import logging
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks import bodies
from benchmarks.measurement import Context, Figures, Skip, Variant
from benchmarks.trace import read_traces
from benchmarks.work import stream
from benchmarks.work.base import percentiles
from benchmarks.work.syne_loop import LOCAL

__all__ = ["VARIANTS"]

WORKERS: Final = 2
SCRIPTS: Final = Path(__file__).parent.parent / "scripts"
#: Each run begins with trials that don't count: the server and the worker start with them.
WARM_UP: Final = 2 * WORKERS
NEVER_S: Final = 1e9
LOCAL_SLEEP_S: Final = 0.01
#: Trials that have ended when a fetch is fast at the latest, and how many fetches are timed.
FEW: Final = 10
FETCHES: Final = 200

#: Returns a backend, given whether it is to be mqtune's.
Backends = Callable[[bool], Any]


def _scheduler(context: Context, work: str, trials: int, reports: int = 0) -> Any:
    from syne_tune.optimizer.scheduler import SchedulerDecision, TrialScheduler, TrialSuggestion

    class Observing(TrialScheduler):
        def __init__(self) -> None:
            super().__init__(random_seed=0)
            self.asked = self.results = 0
            self.begun = self.ended = 0.0
            self.decisions: dict[str, float] = {}

        def suggest(self) -> Any:
            if self.asked == WARM_UP:
                self.begun = time.monotonic()
            if self.asked == trials:
                return None
            self.asked += 1
            given = {"work": work, "folder": str(context.folder), "index": self.asked - 1}
            return TrialSuggestion.start_suggestion({**given, "reports": reports, "parties": WORKERS})

        def on_trial_result(self, trial: Any, result: dict[str, Any]) -> str:
            self.ended = time.monotonic()
            self.results += 1
            if work == "stop" and result["epoch"] == bodies.STOP_AT:
                self.decisions[f"stop-{trial.config['index']}"] = self.ended
                return SchedulerDecision.STOP
            return SchedulerDecision.CONTINUE

        def on_trial_complete(self, trial: Any, result: dict[str, Any]) -> None:
            self.ended = time.monotonic()

        def metric_names(self) -> list[str]:
            return ["loss"]

        def metric_mode(self) -> str:
            return "min"

    return Observing()


def _run(context: Context, backend: Any, scheduler: Any, workers: int = WORKERS) -> Any:
    from syne_tune import Tuner

    tuner = Tuner(
        backend,
        scheduler,
        stop_criterion=lambda _status: False,
        n_workers=workers,
        sleep_time=LOCAL_SLEEP_S,
        callbacks=[],
        save_tuner=False,
        print_update_interval=NEVER_S,
        trial_backend_path=str(context.folder / "results"),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        tuner.run()
    if tuner.tuning_status.num_trials_failed:
        raise RuntimeError(f"{tuner.tuning_status.num_trials_failed} trials failed")
    return scheduler


@contextlib.contextmanager
def _own_folder(context: Context, name: str) -> Iterator[Context]:
    folder = context.folder / name
    folder.mkdir()
    yield replace(context, folder=folder)


def _trials_per_s(context: Context, backend: Any, trials: int) -> float:
    done = _run(context, backend, _scheduler(context, "noop", WARM_UP + trials))
    return trials / (done.ended - done.begun)


def _reports_per_s(context: Context, backend: Any) -> float:
    reports = context.sizes["reports"]
    done = _run(context, backend, _scheduler(context, "stream", stream.PARTIES, reports))
    if done.results != stream.PARTIES * reports:
        raise RuntimeError(f"{done.results} reports arrived of {stream.PARTIES * reports}")
    return stream.figures(context.folder, reports=reports, last_decision=done.ended)["reports_per_s"]


def _decisions_ms(context: Context, backend: Any) -> list[float]:
    done = _run(context, backend, _scheduler(context, "stop", context.sizes["stopped"]), workers=1)
    traces = read_traces(context.folder)
    return [1e3 * (at - traces[name].marked) for name, at in done.decisions.items()]


def _fetches(context: Context, backend: Any) -> Figures:
    """Return the time of a fetch that has a result, after few and after many ended trials."""
    fetch, taken = backend.fetch_status_results, []

    def timed(trial_ids: list[int]) -> Any:
        # Waiting for a trial is not its cost.
        begin = time.thread_time()
        found = fetch(trial_ids)
        taken.append(time.thread_time() - begin)
        return found

    backend.fetch_status_results = timed
    _run(context, backend, _scheduler(context, "noop", context.sizes["ended"]))
    few, many = taken[FEW : FEW + FETCHES], taken[-FETCHES:]
    fetch_s = statistics.median(many)
    return {"fetch_ratio": fetch_s / statistics.median(few), "fetch_ms": 1e3 * fetch_s}


def _measure(backends: Backends, *, all_figures: bool = True) -> Callable[[Context], Figures]:
    def measure(context: Context) -> Figures:
        _prepare()
        found: Figures = {}
        for is_ours, prefix in ((False, LOCAL), (True, "")):
            with _own_folder(context, f"noop-{is_ours}") as own:
                trials = own.sizes["trials" if is_ours else "local_trials"]
                found[f"{prefix}trials_per_s"] = _trials_per_s(own, backends(is_ours), trials)
            if not all_figures:
                continue
            with _own_folder(context, f"stream-{is_ours}") as own:
                found[f"{prefix}reports_per_s"] = _reports_per_s(own, backends(is_ours))
            with _own_folder(context, f"stop-{is_ours}") as own:
                found |= percentiles(f"{prefix}decision", "ms", _decisions_ms(own, backends(is_ours)))
        found["times_local"] = found["trials_per_s"] / found[f"{LOCAL}trials_per_s"]
        if all_figures:
            with _own_folder(context, "fetch") as own:
                found |= _fetches(own, backends(True))
        return found

    return measure


def _prepare() -> None:
    try:
        import syne_tune
        import syne_tune.optimizer.scheduler  # noqa: F401
    except ImportError as error:
        raise Skip(f"syne-tune isn't installed beside mqtune: {error}") from None
    warnings.simplefilter("ignore")
    logging.getLogger().setLevel(logging.ERROR)


def _over(script: str, function: str = "") -> Backends:
    """Return the two backends for a script; mqtune's calls a function in its place, if one is named."""

    def backend(is_ours: bool) -> Any:
        if is_ours:
            from benchmarks import trainables
            from mqtune.integrations.syne_tune import CeleryBackend

            return CeleryBackend(getattr(trainables, function) if function else str(SCRIPTS / script))
        from syne_tune.backend import LocalBackend

        return LocalBackend(str(SCRIPTS / script), rotate_gpus=False)

    return backend


_SETTINGS: Final = (
    f"no broker given: an embedded server and one local worker; LocalBackend with sleep_time={LOCAL_SLEEP_S}, rotate_gpus=False; "
    "no callbacks, save_tuner=False"
)


def _variant(name: str, settings: str, measure: Callable[[Context], Figures]) -> Variant:
    environment = {"OMP_NUM_THREADS": "1"}
    return Variant(
        name=name, settings=f"{settings}; {_SETTINGS}", measure=measure, environment=environment, deadline_s=600.0
    )


VARIANTS: Final = (
    _variant("function", "a function, beside a script with Reporter", _measure(_over("trial.py", "syne_loop"))),
    _variant("script", "a script with Reporter, the same for both", _measure(_over("trial.py"), all_figures=False)),
    _variant(
        "bare script",
        "a script that imports nothing, the same for both",
        _measure(_over("noop_bare.py"), all_figures=False),
    ),
)
