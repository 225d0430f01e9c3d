"""Trials that fail at once in a broken place, and take a moment elsewhere."""

from __future__ import annotations

import os
import time
from typing import Any, Final

import mqtune

#: Says, in a worker's environment, that this worker is broken.
BROKEN_WORKER: Final = "BROKEN_WORKER"
#: How long a trial takes elsewhere: a slot that fails is free again far sooner.
SOUND_S: Final = 0.3


def fails_where_it_is_broken(config: dict[str, Any]) -> None:
    if BROKEN_WORKER in os.environ:
        raise RuntimeError("not here")
    time.sleep(SOUND_S)
    mqtune.report({"loss": config["x"]})
