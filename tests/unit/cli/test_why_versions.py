"""``mqtune why`` names slots whose workers have another version of mqtune."""

from __future__ import annotations

import pytest
from fleets import worker

from mqtune.cli import why
from mqtune.cli.place import Place
from mqtune.core.experiment import Experiment
from mqtune.core.resources import Resources
from mqtune.core.version import __version__

OTHER = "99.3.0"


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> why.Inquiry:
    experiment = Experiment("x", metric="loss", mode="min", max_failures=0)
    inquiry = why.Inquiry(Place("x", None, "redis://h"), experiment, {}, runs=lambda _: [])
    monkeypatch.setattr(why.Inquiry, "_quotas", [])
    inquiry._url = "redis://h"
    return inquiry


def test_a_fleet_of_another_version_is_the_reason_and_the_way_out_is_an_upgrade(asking: why.Inquiry) -> None:
    reason = asking._no_slot([Resources()], [worker("w1", slots=2, version=OTHER)])

    assert reason is not None
    assert reason.cause == "no worker"
    assert f"connected: w1 (2 × 1 CPU, mqtune {OTHER})" in reason.text
    assert f"2 slots of mqtune {OTHER} would fit, and {OTHER} does not meet {__version__}" in reason.text
    assert reason.way_out == "upgrade the older one: docs/how-to/upgrade.md"


def test_idle_slots_of_another_version_are_named_beside_busy_ones(asking: why.Inquiry) -> None:
    there = [
        worker("w1", busy={"t": 1}),
        worker("w2", slots=4, version=OTHER),
        worker("w3", experiments="team-*", version=OTHER),
    ]

    reason = asking._no_slot([Resources()], there)

    assert reason is not None
    assert reason.text.startswith("the one slot that fits is busy")
    assert reason.text.endswith(f"; 4 slots of mqtune {OTHER} would fit, and {OTHER} does not meet {__version__}")


def test_slots_of_another_version_that_would_not_fit_are_not_counted(asking: why.Inquiry) -> None:
    reason = asking._no_slot([Resources(cpus=8)], [worker("w1", version=OTHER)])

    assert reason is not None
    assert "would fit" not in reason.text
    assert reason.way_out == "start one that fits: mqtune worker --help"
