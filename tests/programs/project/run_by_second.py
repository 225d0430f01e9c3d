"""Runs whose folders are named by the second in which they begin, as in many reinforcement learning scripts."""

import time
from pathlib import Path

import mqtune


def train(config):
    folder = Path("runs") / f"cartpole__ppo__1__{int(time.time())}"
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(3):
        time.sleep(0.15)
        with (folder / f"events.{config['gain']}").open("a") as file:
            file.write(f"{step * config['gain']}\n")
    returns = [float(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    mqtune.report({"return": sum(returns) / len(returns), "files": len(list(folder.iterdir()))})


if __name__ == "__main__":
    space = {"gain": mqtune.grid_search([1.0, 2.0, 3.0, 4.0])}
    mqtune.Tuner(train, space, metric="return", mode="max", name="run-by-second").run()
