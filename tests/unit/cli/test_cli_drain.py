"""Which workers ``mqtune fleet drain`` means, and what it says when they don't go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fleets import worker

from mqtune.cli import find_worker, wait_until_gone
from mqtune.core.errors import ConfigurationError, MqtuneError
from mqtune.core.events import WorkerInfo
from mqtune.core.timing import Timing

A, B, OTHER = worker("gpu@a"), worker("gpu@b"), worker("cpu@a")


def fleet(*workers: WorkerInfo) -> Any:
    return SimpleNamespace(workers=lambda: [*workers])


@pytest.mark.parametrize(
    ("name", "there", "words"),
    [
        ("gpu", [A, B, OTHER], "'gpu' is the name of 2 workers: gpu@a, gpu@b"),
        ("tpu", [A, OTHER], "no worker 'tpu' is connected; connected are gpu@a, cpu@a"),
        ("tpu", [], "no worker 'tpu' is connected; there are no workers"),
    ],
)
def test_a_name_that_means_none_or_several_is_refused(name: str, there: list[WorkerInfo], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        find_worker(name, there)


def test_one_that_was_started_anew_under_its_name_is_another() -> None:
    wait_until_gone(fleet(worker("gpu@a", joined_at=2.0)), [A])


def test_one_that_does_not_go_is_an_error_that_names_it() -> None:
    impatient = Timing(drain_look_s=0.0, drain_register_s=-A.leaves_within_s)

    with pytest.raises(MqtuneError, match="workers still connected after 0 s: gpu@a;"):
        wait_until_gone(fleet(A, B), [A], timing=impatient)
