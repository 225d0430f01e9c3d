"""What an operator may ask of the watch for memory."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.services.settings import worker_settings
from mqtune.services.usage.settings import UsageSettings


def test_a_worker_that_divides_no_memory_ends_no_trial_that_takes_too_much() -> None:
    settings = worker_settings({"broker": "redis://x", "gpus": "0", "strict_gpu_memory": True})
    with pytest.raises(ConfigurationError, match=r"--strict-gpu-memory .*give --pack-gpus 8, too, or leave it out"):
        settings.of(UsageSettings).check_start(Mock(), settings.plan(), settings)
