from __future__ import annotations

import pytest
from brokers import World


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World.for_backends(monkeypatch)
