"""The same network as a Lightning module."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.training.epochs import Config, Epochs

BATCH = 64
TRAINED_ON = 1_400

digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
y = torch.tensor(digits.target)
data = TensorDataset(x[:TRAINED_ON], y[:TRAINED_ON])


class Network(lightning.LightningModule):
    def __init__(self, width: int, lr: float) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
        self.loss = torch.nn.CrossEntropyLoss()
        self.lr = lr

    def training_step(self, batch: Any, _index: int) -> Any:
        images, labels = batch
        return self.loss(self.layers(images), labels)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Reporting(lightning.Callback):
    def __init__(self, epochs: Epochs) -> None:
        self.epochs = epochs

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.epochs.begin()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        with torch.no_grad():
            loss = pl_module.loss(pl_module.layers(x[TRAINED_ON:]), y[TRAINED_ON:]).item()
        self.epochs.end(loss)


def train(config: Config, epochs: Epochs) -> None:
    lightning.seed_everything(config["seed"], verbose=False)
    trainer = lightning.Trainer(
        max_epochs=config["epochs"],
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Reporting(epochs)],
    )
    trainer.fit(Network(config["width"], config["lr"]), DataLoader(data, batch_size=BATCH, shuffle=True))
