"""A user's script with Syne Tune: its backend for this machine, at its fastest settings."""

import logging
from pathlib import Path
from typing import Any

from syne_tune import Tuner
from syne_tune.backend import LocalBackend
from syne_tune.config_space import randint
from syne_tune.optimizer.scheduler import TrialSuggestion
from syne_tune.optimizer.schedulers.asha import AsynchronousSuccessiveHalving

from benchmarks.training import trial

SLEEP_S = 0.01
NEVER_S = 1e9


class InOrder(AsynchronousSuccessiveHalving):
    """Begins the trials in their order, each once."""

    asked = 0

    def suggest(self) -> Any:
        if self.asked == trial.SETTINGS.trials:
            return None
        self.asked += 1
        return TrialSuggestion.start_suggestion({"index": self.asked - 1})


if __name__ == "__main__":
    logging.getLogger().setLevel(logging.ERROR)
    settings = trial.SETTINGS
    scheduler = InOrder(
        config_space={"index": randint(0, settings.trials - 1)},
        metric="loss",
        do_minimize=True,
        time_attr="epoch",
        max_t=27,
        grace_period=1,
        reduction_factor=3,
        random_seed=0,
    )
    tuner = Tuner(
        trial_backend=LocalBackend(str(Path(__file__).with_name("trial_syne.py")), rotate_gpus=False),
        scheduler=scheduler,
        stop_criterion=lambda _status: False,
        n_workers=settings.slots,
        sleep_time=SLEEP_S,
        callbacks=[],
        save_tuner=False,
        print_update_interval=NEVER_S,
        trial_backend_path=f"{settings.folder}/results",
    )
    tuner.run()
    if tuner.tuning_status.num_trials_failed:
        raise SystemExit(f"{tuner.tuning_status.num_trials_failed} trials failed")
