"""Where experiments and logs are kept on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from mqtune.core.errors import ConfigurationError

__all__ = ["SERVER_FOLDER", "make_folder", "mqtune_home"]

#: The folder, below an experiment's, of the server that it has of its own.
SERVER_FOLDER: Final = "redis"


def mqtune_home() -> Path:
    """Return ``$MQTUNE_HOME``, or ``~/mqtune``."""
    return Path(os.environ.get("MQTUNE_HOME") or Path.home() / "mqtune").expanduser().absolute()


def make_folder(folder: Path) -> None:
    """Make an experiment's folder, unless it is there.

    Raises:
        ConfigurationError: it can't be made, or nothing can be written in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(folder, os.W_OK | os.X_OK) else "it is not writable"
    except OSError as error:
        problem = str(error)
    if problem:
        raise ConfigurationError(
            f"the experiment's folder {folder} can't be used: {problem}; set MQTUNE_HOME to a folder that you may write to"
        )
