"""Where experiments and logs are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["mqtune_home"]


def mqtune_home() -> Path:
    """Return ``$MQTUNE_HOME``, or ``~/mqtune``."""
    return Path(os.environ.get("MQTUNE_HOME") or Path.home() / "mqtune").expanduser().absolute()
