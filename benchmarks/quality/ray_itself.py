"""Shows that what ``ray_quality.py`` steers decides as Ray Tune does: ``python -m benchmarks.quality.ray_itself TASK TRIALS ACTORS``.

Ray Tune runs trials in actors, under its own controller; what searcher and scheduler said is noted. Then the benchmark's are shown the same
reports in the same order.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from benchmarks.quality.tasks import EPOCHS, TASKS, Task
from benchmarks.systems.ray_quality import Searched, space_of
from benchmarks.systems.ray_tune import NO_LOGGERS

#: How long a virtual second takes.
SCALE: Final = 0.05
SEED: Final = 1


@dataclass(slots=True)
class Said:
    """What Ray's controller has heard, in its order: a config for a new trial, or a decision on a report."""

    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The trial, and the epoch, the loss and whether it goes on; no report where its config was suggested.
    order: list[tuple[str, tuple[int, float, bool] | None]] = field(default_factory=list)


def main(task: Task, trials: int, actors: int) -> None:
    """Run Ray Tune, show the steered tuner the same, and print how much differs."""
    said = run_ray(task, trials, actors)
    steered, known, differing = Searched(task, SEED), {}, 0
    for trial, report in said.order:
        if report is None:
            known[trial], config = steered.start()
            differing += config != said.configs[trial]
        else:
            epoch, loss, goes_on = report
            differing += steered.report(known[trial], epoch, loss) != goes_on
    print(f"{len(known)} suggestions, {len(said.order) - len(known)} decisions, {differing} differ")


def run_ray(task: Task, trials: int, actors: int) -> Said:
    """Run Ray Tune with as many actors at once."""
    os.environ.update(NO_LOGGERS)
    import optuna
    import ray
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(logging.ERROR)
    said = Said()

    class Search(OptunaSearch):
        def suggest(self, trial_id: str) -> Any:
            config = super().suggest(trial_id)
            said.configs[trial_id] = dict(config)
            said.order.append((trial_id, None))
            return config

    class Scheduler(ASHAScheduler):
        def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
            decision: str = super().on_trial_result(controller, trial, result)
            report = result["training_iteration"], result["loss"], decision != self.STOP
            said.order.append((trial.trial_id, report))
            return decision

    def train(config: dict[str, Any]) -> None:
        for epoch_s, loss in task.curve(config, SEED):
            time.sleep(SCALE * epoch_s)
            tune.report({"loss": loss})

    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=actors, include_dashboard=False, log_to_driver=False, _temp_dir=folder, logging_level="ERROR")
        tune.Tuner(
            tune.with_resources(train, {"cpu": 1}),
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                search_alg=Search(partial(space_of, task), metric="loss", mode="min", seed=SEED),
                scheduler=Scheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3, brackets=1),
                num_samples=trials,
                max_concurrent_trials=actors,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(name="run", storage_path=f"{folder}/results", verbose=0),
        ).fit()
        ray.shutdown()
    return said


if __name__ == "__main__":
    wanted, number, at_once = sys.argv[1:]
    main(next(task for task in TASKS if task.name == wanted), int(number), int(at_once))
