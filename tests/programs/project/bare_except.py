"""A bare ``except`` around each step, as in widely copied grid searches; a scheduler stops most trials at their first reports."""

import time

import mqtune


def train(config):
    for epoch in range(300):
        try:
            time.sleep(0.05)
            mqtune.report({"loss": config["x"] + 1 / (epoch + 1)})
        except:  # noqa: E722
            pass


if __name__ == "__main__":
    space = {"x": mqtune.grid_search([0.0, 1.0, 2.0, 3.0])}
    scheduler = mqtune.ASHA(max_t=20, grace_period=1, reduction_factor=2)
    mqtune.Tuner(train, space, metric="loss", mode="min", name="stubborn", scheduler=scheduler, seed=0).run()
