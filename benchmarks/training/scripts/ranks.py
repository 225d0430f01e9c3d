"""Trains a network in PyTorch together with the other processes that torchrun has started; the first prints each epoch."""

import json
import sys
import time

import torch
import torch.distributed
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

BATCH = 64
TRAINED_ON = 1_400

config = json.loads(sys.argv[1])
torch.distributed.init_process_group("gloo")
rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(config["seed"])
digits = load_digits()
x = torch.tensor(digits.data / 16, dtype=torch.float32)
y = torch.tensor(digits.target)
width = config["width"]
layers = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
network = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(network.parameters(), lr=config["lr"], momentum=0.9)
loss_of = torch.nn.CrossEntropyLoss()
for _ in range(config["epochs"]):
    began = time.monotonic()
    for first in range(rank * BATCH, TRAINED_ON, ranks * BATCH):
        optimizer.zero_grad()
        loss_of(network(x[first : first + BATCH]), y[first : first + BATCH]).backward()
        optimizer.step()
    with torch.no_grad():
        loss = loss_of(layers(x[TRAINED_ON:]), y[TRAINED_ON:]).item()
    if rank == 0:
        print(json.dumps({"loss": loss, "began": began, "ended": time.monotonic()}), flush=True)
torch.distributed.destroy_process_group()
