from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("harness")

from harness import WAYS, Fleet, Programs, Way, copied_project, running_fleet  # noqa: E402 - it is rewritten first


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, which programs run in; workers serve it too."""
    return copied_project(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied_project(tmp_path_factory.mktemp("by-hand"))


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory, project: Path) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), project) as found:
        yield found


@pytest.fixture(params=WAYS)
def programs(request: pytest.FixtureRequest, project: Path, untouched: Path, mqtune_home: Path) -> Iterator[Programs]:
    """The programs, run in each way; a test names other ways by ``parametrize("programs", …, indirect=True)``."""
    way: Way = request.param
    fleet: Fleet | None = request.getfixturevalue("fleet") if "fleet" in way else None
    with contextlib.closing(Programs(way, project, untouched, fleet)) as found:
        yield found
