from __future__ import annotations

import pytest
from brokers import World

from mqtune.backends import celery as module, queues


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(queues, "Fleet", world.fleet)
    monkeypatch.setattr(module, "Celery", world.celery)
    return world
