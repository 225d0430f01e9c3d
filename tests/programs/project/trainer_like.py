"""A trainer with a fixed output folder, which saves a checkpoint each epoch and loads the best at the end, as Hugging Face's does."""

import json
import shutil
import time
from pathlib import Path

import mqtune


class Trainer:
    def __init__(self, lr, output_dir="trainer_output", epochs=3, save_total_limit=2):
        self.lr, self.epochs, self.limit = lr, epochs, save_total_limit
        self.folder = Path(output_dir)
        rows = [line.split(",") for line in Path("data/points.csv").read_text().splitlines()[1:]]
        self.points = [(float(x), float(y)) for x, y in rows]
        self.slope = 0.0

    def train(self):
        for epoch in range(1, self.epochs + 1):
            time.sleep(0.1)
            for x, y in self.points:
                self.slope += self.lr * (y - self.slope * x) * x
            self.save(epoch)

    def save(self, epoch):
        place = self.folder / f"checkpoint-{epoch}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "state.json").write_text(json.dumps({"slope": self.slope, "loss": self.loss()}))
        for old in sorted(self.folder.glob("checkpoint-*"))[: -self.limit]:
            shutil.rmtree(old)

    def loss(self):
        return sum((y - self.slope * x) ** 2 for x, y in self.points) / len(self.points)

    def best(self):
        states = [json.loads((each / "state.json").read_text()) for each in self.folder.glob("checkpoint-*")]
        return min(states, key=lambda state: state["loss"]), len(states)


def train(config):
    trainer = Trainer(config["lr"])
    trainer.train()
    state, count = trainer.best()
    mqtune.report({"loss": state["loss"], "slope": state["slope"], "checkpoints": count})


if __name__ == "__main__":
    space = {"lr": mqtune.grid_search([0.05, 0.1, 0.2, 0.4])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="trainer-like").run()
