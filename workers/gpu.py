"""The Celery app of a worker's machine: ``celery -A workers.gpu worker``, and ``inspect``, ``control`` and ``flower``.

Its settings are the environment variables in ``worker.env.example``.
"""

from __future__ import annotations

import os
import sys

from mqtune.cli.worker import settings_from_environment
from mqtune.core.errors import MqtuneError
from mqtune.services.worker import worker_app

try:
    # Celery's own variable for it.
    os.environ["MQTUNE_BROKER"] = os.environ.get("MQTUNE_BROKER") or os.environ.get("CELERY_BROKER_URL", "")
    app = worker_app(settings_from_environment())
except MqtuneError as error:
    # One line instead of the traceback that Celery prints for an app that it can't import.
    sys.exit(f"mqtune: {error}")
