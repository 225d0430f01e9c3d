"""A trainable that imports inside its function."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import mqtune

#: The environment variable that names the folder of the packages.
PACKAGES = "MQTUNE_TESTS_PACKAGES"
sys.path += filter(None, [os.environ.get(PACKAGES)])


def imports_inside(config: dict[str, Any]) -> None:
    found = {"sound": int("late_and_sound" in sys.modules), "thread": int("late_with_a_thread" in sys.modules)}
    import late_and_sound  # type: ignore[import-not-found]  # noqa: F401
    import late_with_a_thread  # type: ignore[import-not-found]  # noqa: F401

    mqtune.report({"x": config["x"], **found, "alive": threading.active_count() - 1})
