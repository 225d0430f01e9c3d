"""``mqtune worker`` whose leases, and its patience with a frozen zygote, run out within seconds, so that a test of a death need not wait for long."""

from __future__ import annotations

from mqtune.cli import main
from mqtune.core.timing import Timing

if __name__ == "__main__":
    main(Timing(lease_s=4.0, heartbeat_s=0.5, zygote_silence_s=3.0))
