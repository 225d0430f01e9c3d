"""Tune a PyTorch Lightning module: trials pause after 1 and 3 epochs, and the best third continues.

Run it: python examples/train_lightning.py, with --gpus 1 if each trial is to have a GPU. On the workers of a broker
($MQTUNE_BROKER), name a folder that all machines share: --checkpoints /shared/checkpoints
"""

import argparse
import warnings

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import mqtune
from mqtune.integrations.lightning import MqtuneCallback

warnings.filterwarnings("ignore", ".*does not have many workers")  # the digits are in memory


class Digits(LightningModule):
    """A network of one hidden layer, for images of 8 × 8."""

    def __init__(self, lr, width):
        super().__init__()
        self.lr = lr
        self.net = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), self.lr)


def train(config):
    """Train from scratch or from a checkpoint. The callback reports and saves after each epoch."""
    x, y = (torch.tensor(each) for each in load_digits(return_X_y=True))
    learn, choose = (TensorDataset(x[part].float() / 16, y[part]) for part in (slice(1347), slice(1347, None)))
    callback = MqtuneCallback({"accuracy": "val_accuracy"}, checkpoint_every=1)
    quiet = dict.fromkeys(["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"], False)
    loaders = DataLoader(learn, 32, shuffle=True), DataLoader(choose, 450)
    Trainer(max_epochs=9, callbacks=[callback], **quiet).fit(Digits(**config), *loaders, ckpt_path=callback.checkpoint)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=float, default=0, help="of each trial: 0.5, 1, 2 …")
    parser.add_argument("--checkpoints", help="where to keep them: a folder, or a URL such as s3://bucket/folder")
    parser.add_argument("--trials", type=int, default=9)
    asked = parser.parse_args()
    results = mqtune.Tuner(
        train, {"lr": mqtune.loguniform(1e-4, 0.1), "width": mqtune.choice([32, 128])}, max_trials=asked.trials, seed=1,
        metric="accuracy", mode="max", scheduler=mqtune.PromotionASHA(max_t=9),
        resources=mqtune.Resources(gpus=asked.gpus), checkpoints=mqtune.Checkpoints(asked.checkpoints),
        name="lightning",
    ).run()  # fmt: skip
    print(f"best trial {results.best.id}: accuracy {results.best.value:.3f} with {results.best.config}")
