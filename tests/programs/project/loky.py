"""A grid of fits that joblib spreads over processes of its default kind, loky."""

import time

import joblib

import mqtune


class Fit:
    def __init__(self, order, season):
        self.order, self.season = order, season

    def error(self):
        return (self.order - 2) ** 2 + 0.1 * self.season


def fitted(order, season):
    return Fit(order, season)


def train(config):
    time.sleep(0.3)
    fits = joblib.Parallel(n_jobs=2)(joblib.delayed(fitted)(order, config["season"]) for order in range(4))
    mqtune.report({"loss": min(fit.error() for fit in fits), "is_own": all(isinstance(fit, Fit) for fit in fits)})


if __name__ == "__main__":
    space = {"season": mqtune.grid_search([1, 4])}
    process = mqtune.Process(timeout_s=30)
    mqtune.Tuner(train, space, metric="loss", mode="min", name="loky", process=process).run()
