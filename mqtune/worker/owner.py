"""A local worker ends with the driver that started it."""

from __future__ import annotations

import logging
import os
import threading

__all__ = ["end_with_owner"]

logger = logging.getLogger(__name__)


def end_with_owner(fd: int) -> None:
    """End this process at once when the driver that started it is gone; its zygotes then kill their trials."""

    def watch() -> None:
        while os.read(fd, 1):
            pass
        logger.warning("the driver that started this worker is gone; the worker ends")
        os._exit(1)

    threading.Thread(target=watch, name="mqtune-owner", daemon=True).start()
