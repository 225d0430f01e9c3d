"""Tune a training by torchrun: train.py prints its metrics, and mqtune saves its folder.

Run it: python examples/train_torchrun/tune.py, with --gpus 2 if each trial is to have two GPUs of one machine. It also
runs on the workers of a broker ($MQTUNE_BROKER) with two GPUs in each slot: mqtune worker --gpus-per-slot 2. With
--checkpoints /shared/checkpoints, a folder that all machines share, moved trials continue from their checkpoints.
"""

import argparse
from pathlib import Path

import mqtune

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=0, help="of each trial")
    parser.add_argument("--checkpoints", help="where to keep them: a folder, or a URL such as s3://bucket/folder")
    parser.add_argument("--trials", type=int, default=4)
    asked = parser.parse_args()
    results = mqtune.Tuner(
        Path(__file__).with_name("train.py"),
        {"lr": mqtune.loguniform(1e-3, 1.0), "width": mqtune.choice([32, 128])},
        metric="accuracy",
        mode="max",
        scheduler=mqtune.ASHA(max_t=9, time_attr="epoch", stop_last_trials=False),
        max_trials=asked.trials,
        resources=mqtune.Resources(gpus=asked.gpus, cpus=2),
        checkpoints=mqtune.Checkpoints(asked.checkpoints),
        seed=1,
        name="torchrun",
    ).run()
    print(f"best trial {results.best.id}: accuracy {results.best.value:.3f} with {results.best.config}")
