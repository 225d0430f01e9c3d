"""A trainer whose default logger takes the next free ``lightning_logs/version_N``, as Lightning's does."""

import time
from pathlib import Path

import mqtune


class CSVLogger:
    """Writes a run's metrics into the next folder that is free, which it makes when there is something to write."""

    def __init__(self, root="lightning_logs"):
        versions = [int(each.name.removeprefix("version_")) for each in Path(root).glob("version_*")]
        self.folder = Path(root) / f"version_{max(versions, default=-1) + 1}"

    def log(self, step, loss):
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "metrics.csv").open("a") as file:
            file.write(f"{step},{loss!r}\n")

    def losses(self):
        return [float(line.split(",")[1]) for line in (self.folder / "metrics.csv").read_text().splitlines()]


class Trainer:
    def __init__(self, max_epochs):
        self.max_epochs = max_epochs
        self.logger = CSVLogger()

    def fit(self, step):
        for epoch in range(self.max_epochs):
            time.sleep(0.1)
            self.logger.log(epoch, step(epoch))


def train(config):
    trainer = Trainer(max_epochs=4)
    trainer.fit(lambda epoch: (1 - config["lr"]) ** epoch)
    losses = trainer.logger.losses()
    mqtune.report({"loss": sum(losses) / len(losses), "rows": len(losses)})


if __name__ == "__main__":
    space = {"lr": mqtune.grid_search([0.1, 0.2, 0.4, 0.8])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="lightning-like").run()
