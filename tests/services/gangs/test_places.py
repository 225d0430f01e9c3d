"""Gangs are refused at a place that can't run them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.core.resources import Resources
from mqtune.services.gangs.driver import check_for_settings

ONE_SLOT: Any = SimpleNamespace()
TAKES_GANGS: Any = SimpleNamespace(takes_several_tasks=True)


@pytest.mark.parametrize(
    ("asked", "backend"),
    [
        ([Resources(seats=2), Resources()], None),
        ([Resources()], ONE_SLOT),
        ([Resources(machines=2)], TAKES_GANGS),
    ],
)
def test_a_place_takes_what_it_can_run(asked: list[Resources], backend: Any) -> None:
    check_for_settings(asked, backend)


@pytest.mark.parametrize(
    ("asked", "backend", "error"),
    [
        ([Resources(), Resources(machines=3)], None, "machines=3, and this machine alone is one worker: give seats=3"),
        ([Resources(seats=2)], ONE_SLOT, "2 seats, and this backend, SimpleNamespace, runs each trial in one slot"),
    ],
)
def test_a_place_refuses_what_it_can_not_run(asked: list[Resources], backend: Any, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        check_for_settings(asked, backend)
