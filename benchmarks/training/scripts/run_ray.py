"""A user's script with Ray Tune: a cluster on this machine alone, one CPU a trial."""

import sys

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from benchmarks.training import trial


def train(config: dict[str, int]) -> None:
    trial.run(config["index"], lambda loss, epoch: tune.report({"loss": loss, "epoch": epoch}))


if __name__ == "__main__":
    settings = trial.SETTINGS
    # The cluster's sockets live below this folder, and a socket's path is limited to 107 bytes.
    ray.init(
        num_cpus=settings.slots,
        include_dashboard=False,
        log_to_driver=False,
        _temp_dir=settings.folder,
        logging_level="ERROR",
    )
    grid = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"index": tune.grid_search(list(range(settings.trials)))},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            scheduler=ASHAScheduler(time_attr="epoch", max_t=27, grace_period=1, reduction_factor=3),
            reuse_actors="reuse" in sys.argv,
            max_concurrent_trials=settings.slots,
        ),
        run_config=tune.RunConfig(name="run", storage_path=f"{settings.folder}/results", verbose=0),
    ).fit()
    if grid.num_errors:
        raise SystemExit(f"{grid.num_errors} trials failed: {grid.errors}")
