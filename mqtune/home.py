"""Where experiments and logs are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["SERVER_FOLDER", "mqtune_home"]

#: The folder, below an experiment's, of the server that it has of its own.
SERVER_FOLDER: Final = "redis"


def mqtune_home() -> Path:
    """Return ``$MQTUNE_HOME``, or ``~/mqtune``."""
    return Path(os.environ.get("MQTUNE_HOME") or Path.home() / "mqtune").expanduser().absolute()
