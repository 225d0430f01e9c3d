"""The network in PyTorch with its data from a DataLoader of two workers."""

from __future__ import annotations

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


def train(config: Config, epochs: Epochs) -> None:
    torch.manual_seed(config["seed"])
    width = config["width"]
    network = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=config["lr"], momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    batches = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    for _ in range(config["epochs"]):
        epochs.begin()
        for images, labels in batches:
            optimizer.zero_grad()
            loss_of(network(images), labels).backward()
            optimizer.step()
        with torch.no_grad():
            loss = loss_of(network(x[TRAINED_ON:]), y[TRAINED_ON:]).item()
        epochs.end(loss)
