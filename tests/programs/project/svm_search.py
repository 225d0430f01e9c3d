"""Tunes a program with short flags and a file as its last argument; one of its values is negative."""

import mqtune

if __name__ == "__main__":
    command = ["./svm.sh", "-c", "{cost}", "-g", "{gamma}", "-q", "data/points.csv"]
    script = mqtune.Script(command, metrics=r"Accuracy = (?P<accuracy>[\d.]+)%")
    space = {"cost": mqtune.grid_search([1, 2]), "gamma": mqtune.grid_search([-1e-05, 0.5])}
    mqtune.Tuner(script, space, metric="accuracy", mode="max", name="svm-search").run()
