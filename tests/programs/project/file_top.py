"""A file of records that is opened at the top of the file; each record is read where it lies, in four slots."""

import os
import random
import time

import mqtune

RECORDS = open("data/records.bin", "rb")  # noqa: SIM115


def record(number):
    RECORDS.seek(number * 64)
    return RECORDS.read(64)


def train(config):
    time.sleep(0.3)
    wrong = 0
    for _ in range(20_000):
        number = random.randrange(1_000)
        wrong += record(number) != number.to_bytes(4, "little") * 16
    mqtune.report({"loss": float(sum(record(config["number"]))), "wrong": wrong})


if __name__ == "__main__":
    backend = os.environ.get("MQTUNE_BROKER") or mqtune.Local(slots=4)
    space = {"number": mqtune.grid_search([1, 2, 3, 4])}
    mqtune.Tuner(train, space, metric="loss", mode="min", name="file-top", backend=backend).run()
