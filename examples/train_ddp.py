"""Train one network by two processes of each trial, with DistributedDataParallel of PyTorch.

Run it: python examples/train_ddp.py. On the workers of a broker ($MQTUNE_BROKER), a trial may use several machines:
python examples/train_ddp.py --machines 2 --gpus 1 --checkpoints /shared/checkpoints
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import mqtune


def train(config):
    """Train from scratch or from a checkpoint.

    Each seat runs this, and only the reports and checkpoints of seat 0 count.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    images, digits = (torch.tensor(each) for each in load_digits(return_X_y=True))
    images = images.float() / 16
    sampler = DistributedSampler(learn := TensorDataset(images[:1347], digits[:1347]))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, config["width"]), nn.ReLU(), nn.Linear(config["width"], 10)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), config["lr"], momentum=0.9)
    done = 0
    if checkpoint := mqtune.get_checkpoint():
        state = torch.load(checkpoint.path / "state.pt", map_location=device, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"]
    shared = DistributedDataParallel(net)
    for epoch in range(done + 1, 10):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(learn, batch_size=32, sampler=sampler):
            optimizer.zero_grad()
            nn.functional.cross_entropy(shared(x.to(device)), y.to(device)).backward()
            optimizer.step()
        with torch.no_grad():
            hits = net(images[1347:].to(device)).argmax(1).cpu() == digits[1347:]
        with mqtune.checkpoint_dir() as folder:  # its files belong to the next report
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, folder / "state.pt")
        mqtune.report({"accuracy": hits.float().mean()})
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--machines", type=int, help="of each trial; without it a trial's two seats may be on one")
    parser.add_argument("--gpus", type=int, default=0, help="on each")
    parser.add_argument("--checkpoints", help="where to keep them: a folder, or a URL such as s3://bucket/folder")
    parser.add_argument("--trials", type=int, default=4)
    asked = parser.parse_args()
    over = {"machines": asked.machines} if asked.machines else {"seats": 2}
    results = mqtune.Tuner(
        train,
        {"lr": mqtune.loguniform(1e-3, 1.0), "width": mqtune.choice([32, 128])},
        metric="accuracy",
        mode="max",
        scheduler=mqtune.ASHA(max_t=9, stop_last_trials=False),
        max_trials=asked.trials,
        resources=mqtune.Resources(cpus=1, gpus=asked.gpus, **over),
        checkpoints=mqtune.Checkpoints(asked.checkpoints),
        seed=1,
        name="ddp",
    ).run()
    print(f"best trial {results.best.id}: accuracy {results.best.value:.3f} with {results.best.config}")
