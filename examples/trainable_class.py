"""Tune a class trainable, which mqtune can save, pause and move to another worker between two steps.

HyperBand pauses each trial at the end of a round, and resumes the best ones in a fresh process. The class saves and
loads its state. mqtune counts the iterations and the time. A step takes microseconds here, so the trials run in
lockstep: each waits for HyperBand's decision.

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
        """Do two descents, and return the height. mqtune adds ``training_iteration`` and the times."""
        for _ in range(2):
            slopes = [2 * self.place[0], 60 * self.place[1]]
            for i, slope in enumerate(slopes):
                self.speed[i] = self.config["momentum"] * self.speed[i] - self.config["lr"] * slope
                self.place[i] += self.speed[i]
        return {"height": self.place[0] ** 2 + 30 * self.place[1] ** 2}

    def save_checkpoint(self, folder: Path) -> dict[str, Any]:
        """Return the state. Write a large state as files into the folder."""
        return {"place": self.place, "speed": self.speed}

    def load_checkpoint(self, checkpoint: mqtune.Checkpoint) -> None:
        """Restore the state from ``save_checkpoint``. Its files would be in the folder ``checkpoint.path``."""
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
