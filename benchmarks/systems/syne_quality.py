"""Syne Tune's BOHB under its own tuner and its simulator backend."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any, Final

from benchmarks.measurement import Context, Variant
from benchmarks.quality.slots import SLOTS, Record
from benchmarks.quality.tasks import EPOCH_S, EPOCHS, Parameter, Task
from benchmarks.work import quality

__all__ = ["VARIANTS", "counting", "domain"]

#: Virtual seconds between its looks at what has come; 5 by default.
SLEEP_S: Final = 0.01 * EPOCH_S
#: Virtual seconds for each of its delays; 0.05 by default.
DELAY_S: Final = 0.0
NEVER_S: Final = 1e9


def _backend(task: Task, seed: int) -> Any:
    from syne_tune.backend.simulator_backend.simulator_backend import SimulatorBackend, SimulatorConfig
    from syne_tune.backend.trial_status import Status

    class Simulated(SimulatorBackend):
        """Takes a trial's results from the task, where its parent would run a script for them."""

        def _run_job_and_collect_results(self, trial_id: int, config: Any = None) -> tuple[str, list[dict[str, Any]]]:
            results, elapsed_s = [], 0.0
            config = self._trial_dict[trial_id].config if config is None else config
            for epoch, (epoch_s, loss) in enumerate(task.curve(counting(task, config), seed), 1):
                elapsed_s += epoch_s
                results.append({"elapsed_s": elapsed_s, "epoch": epoch, "loss": loss})
            return Status.completed, results

        def _advance_by_outside_time(self) -> None:
            """Leave out how long its scheduler thinks, which its parent adds to the virtual time."""

    delays = SimulatorConfig(*[DELAY_S] * 5)
    return Simulated(
        entry_point=str(Path(__file__)),
        elapsed_time_attr="elapsed_s",
        simulator_config=delays,
        tuner_sleep_time=SLEEP_S,
    )


def _run(context: Context, task: Task, seed: int, budget_s: float) -> Record:
    import numpy as np
    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend.simulator_backend.simulator_callback import SimulatorCallback
    from syne_tune.constants import ST_TUNER_TIME
    from syne_tune.optimizer.baselines import BOHB
    from syne_tune.tuner_callback import TunerCallback

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    # Its random configs come from NumPy's own generator.
    np.random.seed(seed)  # noqa: NPY002
    record = Record()

    class Recording(TunerCallback):
        def on_trial_result(self, trial: Any, status: str, result: dict[str, Any], decision: str) -> None:
            record.add(result[ST_TUNER_TIME], counting(task, trial.config), result["epoch"], result["loss"])

    scheduler = BOHB(
        {name: domain(parameter) for name, parameter in task.parameters.items()},
        metric="loss",
        time_attr="epoch",
        max_t=EPOCHS,
        random_seed=seed,
    )
    tuner = Tuner(
        trial_backend=_backend(task, seed),
        scheduler=scheduler,
        stop_criterion=StoppingCriterion(max_wallclock_time=budget_s),
        n_workers=SLOTS,
        sleep_time=0,
        callbacks=[SimulatorCallback(), Recording()],
        save_tuner=False,
        results_update_interval=NEVER_S,
        print_update_interval=NEVER_S,
        trial_backend_path=str(context.folder / "results"),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        tuner.run()
    return record


def counting(task: Task, config: dict[str, Any]) -> dict[str, Any]:
    """Return what counts of a config, which has all parameters here: Syne Tune's spaces have no conditions."""
    return task.config(lambda name, _: config[name])


def domain(parameter: Parameter) -> Any:
    from syne_tune import config_space

    if parameter.choices:
        return config_space.choice(list(parameter.choices))
    if parameter.is_whole:
        return config_space.randint(int(parameter.low), int(parameter.high))
    return config_space.uniform(parameter.low, parameter.high)


VARIANTS: Final = (
    Variant(
        name="BOHB",
        settings=f"BOHB(max_t=27), its simulator backend without delays, tuner_sleep_time={SLEEP_S:g}, save_tuner=False",
        measure=quality.measure(_run),
        deadline_s=quality.DEADLINE_S,
        environment={"OMP_NUM_THREADS": "1"},
    ),
)
