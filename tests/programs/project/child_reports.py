"""A training in a process that the trial starts, which reports from there."""

import multiprocessing
import time

import mqtune


def training(x):
    time.sleep(0.2)
    mqtune.report({"loss": x})


def train(config):
    child = multiprocessing.get_context(config["method"]).Process(target=training, args=(config["x"],))
    child.start()
    child.join()


if __name__ == "__main__":
    space = {"method": mqtune.grid_search(["fork", "spawn"]), "x": mqtune.grid_search([1, 2])}
    process = mqtune.Process(timeout_s=20)
    mqtune.Tuner(train, space, metric="loss", mode="min", name="child-reports", process=process).run()
