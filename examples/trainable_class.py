"""A class trainable: a trial in steps, between which mqtune saves it, pauses it and has it go on elsewhere.

HyperBand pauses each trial at the end of a round, and resumes the best of them in a fresh process. The class says how it is
saved and loaded; mqtune counts the iterations and the time. A step takes microseconds here, so the trials run in lockstep:
none is ahead of what HyperBand has decided.

Run it: python examples/trainable_class.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mqtune


class Valley(mqtune.Trainable):
    """Gradient descent with momentum in a narrow valley, ``x² + 30 y²``."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin at (4, 2), without speed."""
        self.place, self.speed = [4.0, 2.0], [0.0, 0.0]

    def step(self) -> dict[str, Any]:
        """Do 2 descents and return the height; ``training_iteration`` and the times are added."""
        for _ in range(2):
            slopes = [2 * self.place[0], 60 * self.place[1]]
            for i, slope in enumerate(slopes):
                self.speed[i] = self.config["momentum"] * self.speed[i] - self.config["lr"] * slope
                self.place[i] += self.speed[i]
        return {"height": self.place[0] ** 2 + 30 * self.place[1] ** 2}

    def save_checkpoint(self, folder: Path) -> dict[str, Any]:
        """Return the state; a large one would be written as files into the folder."""
        return {"place": self.place, "speed": self.speed}

    def load_checkpoint(self, checkpoint: mqtune.Checkpoint) -> None:
        """Take back what ``save_checkpoint`` returned; of files that it wrote ``checkpoint.path`` is the folder."""
        self.place, self.speed = checkpoint.data["place"], checkpoint.data["speed"]


if __name__ == "__main__":
    results = mqtune.Tuner(
        Valley,
        {"lr": mqtune.loguniform(1e-4, 1e-1), "momentum": mqtune.uniform(0, 0.99)},
        metric="height",
        mode="min",
        scheduler=mqtune.HyperBand(max_t=27),
        process=mqtune.Process(sync="lockstep"),
        max_trials=49,
        seed=1,
        name="valley",
    ).run()
    attempts = sum(len(result.attempts) for result in results)
    print(f"{len(results)} trials, {attempts - len(results)} resumes, {results.budget.used} iterations")
    reached = [result.trial.last_metrics["training_iteration"] for result in results]
    for iteration in sorted(set(reached)):
        print(f"  {reached.count(iteration)} trials ended at iteration {iteration}")
    print(f"lowest: {results.best.value:.2g} with {results.best.config}")
