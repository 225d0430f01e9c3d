"""Grow boosted trees with XGBoost: ASHA stops bad trials, and a trial can continue from its checkpoint.

Run it: python examples/train_xgboost.py, with --gpus 1 if each trial is to have a GPU. On the workers of a broker
($MQTUNE_BROKER), name a folder that all machines share: --checkpoints /shared/checkpoints
"""

import argparse
import os

import xgboost
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import mqtune
from mqtune.integrations.xgboost import MqtuneCallback

ROUNDS = 81


def train(config):
    """Train from scratch or from a checkpoint. The callback reports each round, and saves every ninth."""
    learn_x, choose_x, learn_y, choose_y = train_test_split(*load_digits(return_X_y=True), random_state=0)
    callback = MqtuneCallback({"error": "choose-merror"}, checkpoint_every=9)
    # mqtune writes the trial's GPUs there. Without a GPU it is empty, and the trees grow on all cores of the slot.
    device = "cuda" if os.environ.get("CUDA_VISIBLE_DEVICES") else "cpu"
    xgboost.train(
        {"objective": "multi:softprob", "num_class": 10, "eval_metric": "merror", "device": device, **config},
        xgboost.DMatrix(learn_x, learn_y),
        num_boost_round=ROUNDS - callback.rounds,
        evals=[(xgboost.DMatrix(choose_x, choose_y), "choose")],
        xgb_model=callback.checkpoint,
        callbacks=[callback],
        verbose_eval=False,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=float, default=0, help="of each trial: 0.5, 1, 2 …")
    parser.add_argument("--checkpoints", help="where to keep them: a folder, or a URL such as s3://bucket/folder")
    parser.add_argument("--trials", type=int, default=27)
    asked = parser.parse_args()
    space = {
        "eta": mqtune.loguniform(0.01, 1.0),
        "max_depth": mqtune.randint(2, 8),
        "subsample": mqtune.uniform(0.5, 1.0),
        "lambda": mqtune.loguniform(0.01, 10.0),
    }
    results = mqtune.Tuner(
        train, space, metric="error", mode="min", scheduler=mqtune.ASHA(max_t=ROUNDS, grace_period=3),
        max_trials=asked.trials, seed=1,
        resources=mqtune.Resources(gpus=asked.gpus), checkpoints=mqtune.Checkpoints(asked.checkpoints),
        name="xgboost",
    ).run()  # fmt: skip
    print(f"best trial {results.best.id}: error {results.best.value:.3f} with {results.best.config}")
