"""The times that a run goes by: mqtune's own, or the same in short, so that a lease runs out within seconds."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Final

from mqtune.core.timing import Timing

#: In the environment of drivers and workers: the times that they go by, as JSON; empty for mqtune's own.
TIMES: Final = "MQTUNE_CHAOS_TIMES"

OWN: Final = Timing()
#: Each time is a third of mqtune's own, as is its margin. Those of sharing are much shorter, so that trials are paused for others at
#: all in a run.
SHORT: Final = Timing(
    lease_s=5.0,
    heartbeat_s=1.0,
    lock_s=6.0,
    keep_lock_s=1.5,
    spread_s=1.3,
    look_at_leases_s=0.2,
    lease_grace_s=2.7,
    stall_s=2.7,
    unclaimed_s=2.5,
    look_at_attempts_s=2.5,
    trim_retry_s=1.0,
    round_s=1.0,
    first_probe_s=5.0,
    lend_after_s=1.0,
    share_table_s=1.3,
    register_s=1.5,
    look_at_shares_s=0.3,
    share_memory_s=20.0,
    share_grace_s=1.0,
    share_turn_s=4.0,
    command_timeout_s=4.0,
    blocking_read_s=1.5,
)
#: How long a seat of a gang is held for the others, at least, in a short run.
SHORT_SEAT_S: Final = 4.0


def to_text(timing: Timing) -> str:
    """Return the times for the environment of a driver or worker."""
    return json.dumps(asdict(timing))


def of_this_process() -> Timing:
    """Return the times in this process's environment."""
    return Timing(**json.loads(os.environ.get(TIMES) or "{}"))
