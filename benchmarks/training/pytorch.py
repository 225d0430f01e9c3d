"""A network of two layers in PyTorch, on scikit-learn's digits."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from benchmarks.training.epochs import Config, Epochs

BATCH = 64
TRAINED_ON = 1_400

digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
y = torch.tensor(digits.target)


def train(config: Config, epochs: Epochs) -> None:
    torch.manual_seed(config["seed"])
    width = config["width"]
    network = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=config["lr"], momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    for _ in range(config["epochs"]):
        epochs.begin()
        for first in range(0, TRAINED_ON, BATCH):
            optimizer.zero_grad()
            loss_of(network(x[first : first + BATCH]), y[first : first + BATCH]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = loss_of(network(x[TRAINED_ON:]), y[TRAINED_ON:]).item()
        epochs.end(loss)
