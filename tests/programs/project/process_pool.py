"""A pool of processes in a trial, whose function is in the program itself, begun in each of the ways that Python has."""

import multiprocessing
import time

import mqtune


def squared(number):
    return number * number


def train(config):
    time.sleep(0.3)
    with multiprocessing.get_context(config["method"]).Pool(1) as pool:
        mqtune.report({"loss": sum(pool.map(squared, range(5)))})


if __name__ == "__main__":
    space = {"method": mqtune.grid_search(["fork", "spawn", "forkserver"])}
    process = mqtune.Process(timeout_s=20)
    mqtune.Tuner(train, space, metric="loss", mode="min", name="process-pool", process=process).run()
