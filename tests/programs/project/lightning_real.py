"""A small Lightning module with the trainer's default logger, whose file is read back at the end."""

import csv
import logging
import warnings
from pathlib import Path

import lightning
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

import mqtune

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
torch.manual_seed(0)
INPUTS = torch.linspace(-1, 1, 64).reshape(-1, 1)
DATA = TensorDataset(INPUTS, 3 * INPUTS)


class Line(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.layer = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.layer.weight)

    def training_step(self, batch):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.layer(inputs), targets)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def train(config):
    # Its folder is the default one, lightning_logs/version_N below the working directory.
    logger = CSVLogger(".")
    trainer = lightning.Trainer(
        max_epochs=2,
        logger=logger,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    trainer.fit(Line(config["lr"]), DataLoader(DATA, batch_size=16))
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    mqtune.report({"loss": round(losses[-1], 6), "rows": len(losses)})


if __name__ == "__main__":
    space = {"lr": mqtune.grid_search([0.05, 0.1, 0.2, 0.4])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="lightning-real").run()
