"""What a tuner keeps of its promises on every backend; subclass BackendContract and give it tuners."""

from __future__ import annotations

from mqtune.testing.backends.ending import EndingContract
from mqtune.testing.backends.pausing import PausingContract
from mqtune.testing.backends.starting import StartingContract
from mqtune.testing.backends.world import NewTuner

__all__ = ["BackendContract", "NewTuner"]


class BackendContract(
    StartingContract,
    EndingContract,
    PausingContract,
):
    """The tests that each backend must pass."""
