"""What a worker tells a running trial, as records on a pipe; and where a script finds its trial."""

from __future__ import annotations

import struct
from typing import Final, Literal

__all__ = ["CLEARED", "PAUSE", "RECORD", "RELAY", "SAVE", "STOP", "Told"]

#: The environment variable that tells a script, which a trial runs, where the channel to that trial is.
RELAY: Final = "MQTUNE_RELAY"

#: One record: its kind, and a number. A pipe takes one this small whole or not at all.
RECORD: Final = struct.Struct("<cQ")
STOP: Final = b"S"
PAUSE: Final = b"P"
#: The number counts the wishes that a checkpoint be saved.
SAVE: Final = b"V"
#: In lockstep: the reports up to this sequence number are decided, and the trial may go on.
CLEARED: Final = b"G"

#: What a trial was told: nothing, to stop for good, or to pause, from which it may be resumed.
Told = Literal["", "stop", "pause"]
