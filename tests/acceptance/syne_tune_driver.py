"""A driver of Syne Tune's: begins a run, or goes on with one that was saved, and says what its scheduler was told."""

from __future__ import annotations

import json
import sys
from typing import Any

import trainables_syne_tune as trainables
from syne_tune import StoppingCriterion, Tuner
from syne_tune.config_space import uniform
from syne_tune.optimizer.baselines import RandomSearch
from syne_tune.results_callback import StoreResultsCallback
from syne_tune.util import experiment_path

from mqtune.integrations.syne_tune_backend import MqtuneBackend


class Tells(StoreResultsCallback):
    def on_trial_result(self, trial: Any, status: str, result: dict[str, Any], decision: str) -> None:
        super().on_trial_result(trial, status, result, decision)
        print("told", json.dumps([trial.trial_id, result["epoch"]]), flush=True)


def main(name: str, broker: str, is_old: str) -> None:
    if (path := experiment_path(name) / "tuner.dill").exists():
        tuner = Tuner.load(str(path.parent))
    else:
        metrics: dict[str, Any] = {"metric": "loss"} if is_old == "True" else {"metrics": ["loss"]}
        space = {"x": uniform(0, 1), "epochs": 20, "step_s": 0.03}
        tuner = Tuner(
            MqtuneBackend(trainables.epochs, broker=broker),
            RandomSearch(space, random_seed=1, **metrics),
            # The time includes the second process's imports, which take a minute on a busy machine.
            StoppingCriterion(max_num_trials_completed=7, max_wallclock_time=240),
            n_workers=2,
            results_update_interval=0.5,
            tuner_name=name,
            suffix_tuner_name=False,
            callbacks=[Tells()],
        )
    tuner.run()
    (callback,) = tuner.callbacks
    print("all", json.dumps([[row["trial_id"], row["epoch"]] for row in callback.results]))


if __name__ == "__main__":
    main(*sys.argv[1:])
