"""A user's script: four trials that report once, on this machine, with default settings."""

import mqtune


def train(config: dict[str, float]) -> None:
    mqtune.report({"loss": config["x"]})


if __name__ == "__main__":
    mqtune.Tuner(
        train,
        {"x": mqtune.grid_search([1.0, 2.0, 3.0, 4.0])},
        metric="loss",
        mode="min",
        backend=mqtune.Local(slots=2),
        name="start",
    ).run()
