"""Models that trials pickle, by pickle and by joblib; the same program loads the best one and uses it."""

import pickle
import time
from dataclasses import dataclass

import joblib

import mqtune


@dataclass
class Model:
    slope: float

    def loss(self):
        return (self.slope - 0.6) ** 2


def train(config):
    model = Model(config["slope"])
    time.sleep(0.3)
    with mqtune.checkpoint_dir() as folder:
        (folder / "model.pkl").write_bytes(pickle.dumps(model))
        joblib.dump(model, folder / "model.joblib")
    mqtune.report({"loss": model.loss()})


if __name__ == "__main__":
    space = {"slope": mqtune.grid_search([0.2, 0.4, 0.6, 0.8])}
    tuner = mqtune.Tuner(
        train, space, metric="loss", mode="min", name="pickled-model", checkpoints=mqtune.Checkpoints("models")
    )
    results = tuner.run()
    folder = results.get_checkpoint(which="best").path
    print("pickle:", pickle.loads((folder / "model.pkl").read_bytes()))
    print("joblib:", joblib.load(folder / "model.joblib"))
