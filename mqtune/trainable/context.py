"""Which trial a process is, as its trainable may ask."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    """Which trial this is; outside a trial all is empty.

    ``folder`` is for files that nobody needs once the attempt has ended: it is deleted then.
    """

    trial: str = ""
    attempt: int = 0
    experiment: str = ""
    folder: Path = Path()
