"""What is dear to make is made once for all pages, by any number of threads at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mqtune.cli import Paced


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Threads take turns a hundred times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_hasty")
def test_more_keys_than_are_kept_can_be_asked_for_by_several_threads_at_once() -> None:
    paced = Paced()

    def ask(thread: int) -> None:
        for number in range(3_000):
            key = number * 7 * thread % 1_000
            assert paced.get(key, 1, lambda key=key: {"key": key}).value == {"key": key}  # type: ignore[misc]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(1, 9))) == [None] * 8


def test_what_cannot_be_made_leaves_nothing_behind() -> None:
    paced, made = Paced(), []

    def fail() -> dict[str, object]:
        made.append(1)
        raise ValueError("no condition")

    for number in range(100):
        with pytest.raises(ValueError, match="no condition"):
            paced.get(("trials", number), 1, fail)

    assert len(made) == 100
    assert len(paced.locks) == 0
