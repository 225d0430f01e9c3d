"""A Celery app with one task that does nothing but count."""

from __future__ import annotations

import itertools
import os
import time
from typing import Final

import redis
from celery import Celery

ANSWER: Final = "limit:answer"
URL: Final = os.environ["BENCHMARKS_REDIS_URL"]

app = Celery("limits", broker=URL)
app.conf.task_ignore_result = True

_count = itertools.count(1)
_started: list[float] = []


@app.task
def nothing(expected: int) -> None:
    """Count, and with the last expected call send the seconds since the first."""
    number = next(_count)
    if number == 1:
        _started.append(time.monotonic())
    if number == expected:
        redis.Redis.from_url(URL).rpush(ANSWER, repr(time.monotonic() - _started[0]))
