"""An experiment class whose method tunes a closure over ``self``."""

import time

import mqtune


def squared(value):
    return value * value


class Study:
    def __init__(self, target, epochs):
        self.target = target
        self.epochs = epochs
        self.weights = {"bias": 0.25, "slope": [1.0, 2.0]}

    def loss(self, x):
        return squared(x - self.target) + self.weights["bias"] * sum(self.weights["slope"])

    def run(self, scale):
        def objective(config):
            for epoch in range(self.epochs):
                time.sleep(0.1)
                mqtune.report({"loss": scale * self.loss(config["x"]) / (epoch + 1)})

        space = {"x": mqtune.grid_search([0.0, 0.5, 1.0, 1.5])}
        return mqtune.Tuner(objective, space, metric="loss", mode="min", name="closure-over-self").run()


if __name__ == "__main__":
    Study(target=0.75, epochs=3).run(scale=2.0)
