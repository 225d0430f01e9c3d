"""The worker program of a run on one machine. Its driver starts it."""

from __future__ import annotations

import os

from mqtune.services.settings import worker_settings
from mqtune.services.worker import worker_services
from mqtune.worker.tasks.local import main

if __name__ == "__main__":
    offered = os.environ.pop("MQTUNE_IMPORTER_FD", None)
    importer_fd = None if offered is None else int(offered)
    main(int(os.environ.pop("MQTUNE_OWNER_FD")), importer_fd, worker_settings, worker_services)
