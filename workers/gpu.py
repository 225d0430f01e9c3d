"""The Celery app of a GPU machine's worker: ``celery -A workers.gpu worker``, and ``inspect``, ``control`` and Flower."""

from __future__ import annotations

import sys

from mqtune.errors import MqtuneError
from mqtune.worker.celery import create_app
from mqtune.worker.settings import WorkerSettings

try:
    app = create_app(WorkerSettings.from_environment())
except MqtuneError as error:
    # One line instead of the traceback that Celery prints for an app that it can't import.
    sys.exit(f"mqtune: {error}")
