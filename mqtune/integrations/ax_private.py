"""What mqtune uses of Ax that Ax keeps to itself: no public interface has it; needs the extra ``ax``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from ax.api.client import Client
from ax.core.data import Data, DataRow
from ax.generation_strategy.generation_strategy import GenerationStrategy
from botorch.acquisition.multi_objective import logei


def experiment_of(client: Client) -> Any:
    """Return the experiment of a client; None before ``configure_experiment``."""
    return client._maybe_experiment


def strategy_of(client: Client) -> GenerationStrategy | None:
    """Return the generation strategy of a client; None before it was given one, or has chosen one."""
    return client._maybe_generation_strategy


def rows_of(data: Data) -> Sequence[DataRow]:
    """Return the rows of data, without the table that Ax makes of them each time."""
    rows: Sequence[DataRow] = data._data_rows
    return rows


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Have BoTorch do without the kernel that it compiles where there are several metrics.

    A process that is killed meanwhile leaves a lock in the user's home, at which every later one waits for ever.
    """
    was_tried, logei._load_attempted = logei._load_attempted, True
    try:
        yield
    finally:
        logei._load_attempted = was_tried
