"""The Celery app of a worker's machine: ``celery -A workers.gpu worker``, and ``inspect``, ``control`` and ``flower``.

Its settings are the environment variables in ``worker.env.example``.
"""

from __future__ import annotations

import os
import sys

from mqtune.core.errors import MqtuneError
from mqtune.worker.app import create_app
from mqtune.worker.settings import WorkerSettings

try:
    # Celery's own way to say it is --broker or CELERY_BROKER_URL.
    broker = os.environ.get("MQTUNE_BROKER") or os.environ.get("CELERY_BROKER_URL", "")
    app = create_app(WorkerSettings.from_environment({**os.environ, "MQTUNE_BROKER": broker}))
except MqtuneError as error:
    # One line instead of the traceback that Celery prints for an app that it can't import.
    sys.exit(f"mqtune: {error}")
