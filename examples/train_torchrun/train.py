"""Train one network in several processes by torchrun: one for each visible GPU, or two without any.

By hand: python examples/train_torchrun/train.py --lr 0.01. It starts torchrun, which starts it again for each process.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

if "LOCAL_RANK" not in os.environ:
    ranks = torch.cuda.device_count() or 2
    options = ["--standalone", f"--nproc-per-node={ranks}", f"--log-dir={os.devnull}"]
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *options, *sys.argv])

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--st_checkpoint_dir", type=Path, help="mqtune saves this folder, and brings it back")
config = parser.parse_args()

rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
x, y = (torch.tensor(each) for each in load_digits(return_X_y=True))
x = x.float() / 16
sampler = DistributedSampler(learn := TensorDataset(x[:1347], y[:1347]))
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, config.width), nn.ReLU(), nn.Linear(config.width, 10)).to(device)
optimizer = torch.optim.SGD(net.parameters(), config.lr, momentum=0.9)
done, file = 0, config.st_checkpoint_dir and config.st_checkpoint_dir / "state.pt"
if file and file.exists():
    state = torch.load(file, map_location=device, weights_only=True)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    done = state["epoch"]
shared = DistributedDataParallel(net)
for epoch in range(done + 1, 10):
    sampler.set_epoch(epoch)
    for images, digits in DataLoader(learn, batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.cross_entropy(shared(images.to(device)), digits.to(device)).backward()
        optimizer.step()
    if rank == 0:
        with torch.no_grad():
            hits = net(x[1347:].to(device)).argmax(1).cpu() == y[1347:]
        if file:  # written aside, as the folder may be copied at any time
            file.parent.mkdir(exist_ok=True)
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, file.with_suffix(".new"))
            file.with_suffix(".new").replace(file)
        print("[tune-metric]:", json.dumps({"accuracy": hits.float().mean().item(), "epoch": epoch}), flush=True)
distributed.destroy_process_group()
