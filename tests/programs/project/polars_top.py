"""A data frame that polars reads and aggregates at the top of the file: its threads run before any trial."""

import time

import polars as pl

import mqtune

DATA = pl.DataFrame({"group": [number % 100 for number in range(50_000)], "value": range(50_000)})
MEANS = DATA.lazy().group_by("group").agg(pl.col("value").mean()).collect()["value"].sum()


def train(config):
    for step in range(2):
        time.sleep(0.2)
        sums = DATA.lazy().filter(pl.col("group") > config["least"]).group_by("group").agg(pl.col("value").sum())
        mqtune.report({"loss": float(sums.collect()["value"].sum()) / MEANS - step})


if __name__ == "__main__":
    space = {"least": mqtune.grid_search([10, 40, 70, 90])}
    process = mqtune.Process(timeout_s=20)
    mqtune.Tuner(train, space, metric="loss", mode="min", name="polars-top", process=process).run()
