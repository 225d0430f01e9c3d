"""How a trainable ended, as its process tells it."""

from __future__ import annotations

from typing import NamedTuple

from mqtune.trial import AttemptEnd

__all__ = ["Ending"]


class Ending(NamedTuple):
    """How a trainable ended: the kind of the error and its text, if it failed, and the code its process exits with."""

    end: AttemptEnd
    error_type: str = ""
    error: str = ""
    code: int = 0
