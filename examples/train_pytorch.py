"""Tune a network in PyTorch: ASHA stops bad trials, and a trial can continue from its checkpoint.

Run it: python examples/train_pytorch.py, with --gpus 1 if each trial is to have a GPU. On the workers of a broker
($MQTUNE_BROKER), name a folder that all machines share: --checkpoints /shared/checkpoints
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mqtune


def train(config):
    """Train from scratch or from a checkpoint. Report and save after each epoch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, digits = (torch.tensor(each) for each in load_digits(return_X_y=True))
    images = images.float() / 16
    batches = DataLoader(TensorDataset(images[:1347], digits[:1347]), batch_size=32, shuffle=True)
    torch.manual_seed(0)
    layers = nn.Linear(64, config["width"]), nn.ReLU(), nn.Dropout(config["dropout"]), nn.Linear(config["width"], 10)
    net = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), config["lr"])
    done = 0
    if checkpoint := mqtune.get_checkpoint():
        state = torch.load(checkpoint.path / "state.pt", map_location=device, weights_only=True)
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["epoch"]
    for epoch in range(done + 1, 28):
        torch.manual_seed(epoch)  # a resumed trial draws the same numbers as one without a break
        net.train()
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x.to(device)), y.to(device)).backward()
            optimizer.step()
        with torch.no_grad():
            guesses = net.eval()(images[1347:].to(device)).argmax(1).cpu()
        with mqtune.checkpoint_dir() as folder:  # its files belong to the next report
            state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, folder / "state.pt")
        mqtune.report({"accuracy": (guesses == digits[1347:]).float().mean()})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=float, default=0, help="of each trial: 0.5, 1, 2 …")
    parser.add_argument("--checkpoints", help="where to keep them: a folder, or a URL such as s3://bucket/folder")
    parser.add_argument("--trials", type=int, default=12)
    asked = parser.parse_args()
    space = {"lr": mqtune.loguniform(1e-4, 0.1), "width": mqtune.choice([32, 128]), "dropout": mqtune.uniform(0, 0.5)}
    results = mqtune.Tuner(
        train, space, metric="accuracy", mode="max", scheduler=mqtune.ASHA(max_t=27), max_trials=asked.trials, seed=1,
        resources=mqtune.Resources(gpus=asked.gpus), checkpoints=mqtune.Checkpoints(asked.checkpoints),
        name="pytorch",
    ).run()  # fmt: skip
    print(f"best trial {results.best.id}: accuracy {results.best.value:.3f} with {results.best.config}")
    print(f"its state: {results.get_checkpoint(which='best').path / 'state.pt'}")
