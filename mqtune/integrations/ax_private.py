"""Functions that use private parts of Ax."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from ax.api.client import Client
from ax.core.data import Data, DataRow
from ax.generation_strategy.generation_strategy import GenerationStrategy
from botorch.acquisition.multi_objective import logei


def experiment_of(client: Client) -> Any:
    """Return a client's experiment, or None before ``configure_experiment``."""
    return client._maybe_experiment


def strategy_of(client: Client) -> GenerationStrategy | None:
    """Return a client's generation strategy, or None."""
    return client._maybe_generation_strategy


def rows_of(data: Data) -> Sequence[DataRow]:
    """Return the rows of Ax's data without building its table."""
    rows: Sequence[DataRow] = data._data_rows
    return rows


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Within the block, keep BoTorch from compiling its kernel for several metrics.

    A process that is killed while it compiles leaves a lock in the user's home. Later ones wait for it forever.
    """
    was_tried, logei._load_attempted = logei._load_attempted, True
    try:
        yield
    finally:
        logei._load_attempted = was_tried
