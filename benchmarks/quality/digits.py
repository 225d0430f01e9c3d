"""Trains the networks of the table ``digits.txt``, in some minutes: ``python -m benchmarks.quality.digits``.

A line for each config, in the order of the grid, with the loss after each epoch in thousandths.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator

from benchmarks.quality.tasks import DIGITS, DIGITS_FILE, EPOCHS, Digits


def main() -> None:
    """Write the table."""
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    images, digits = load_digits(return_X_y=True)
    train_x, held_x, train_y, held_y = train_test_split(images / 16, digits, test_size=600, random_state=0)
    known = np.arange(10)

    def losses(log10_lr: float, log10_alpha: float, log2_width: int, batch: str) -> Iterator[int]:
        network = MLPClassifier(
            (2 ** int(log2_width),),
            solver="sgd",
            learning_rate_init=10**log10_lr,
            alpha=10**log10_alpha,
            batch_size=int(batch),
            random_state=0,
        )
        for _ in range(EPOCHS):
            network.partial_fit(train_x, train_y, classes=known)
            loss = log_loss(held_y, np.nan_to_num(network.predict_proba(held_x), nan=0.1), labels=known)
            yield min(9999, round(1000 * loss))

    warnings.simplefilter("ignore")
    sizes = Digits().sizes
    grid = [
        each.choices or [each.low + (each.high - each.low) * place / (sizes[key] - 1) for place in range(sizes[key])]
        for key, each in DIGITS.items()
    ]
    lines = [" ".join(map(str, losses(*config))) for config in itertools.product(*grid)]
    DIGITS_FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
