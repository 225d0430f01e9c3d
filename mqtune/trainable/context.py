"""Which trial a process is, as its trainable may ask."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["Context"]


@dataclass(frozen=True, slots=True)
class Context:
    """Which trial this is; outside a trial all is empty.

    ``folder`` is the attempt's own folder, which begins empty. With ``Tuner(working_dir="trial")`` it is the current
    directory and is kept as ``keep_working_dir`` says; else it is deleted when the attempt has ended.
    """

    trial: str = ""
    attempt: int = 0
    experiment: str = ""
    folder: Path = Path()
