"""``mqtune worker`` whose leases run out within seconds, so that a test of a death need not wait for long."""

from __future__ import annotations

from mqtune.cli import main
from mqtune.worker import runtime

runtime.LEASE_S = 4.0  # type: ignore[misc]
runtime.HEARTBEAT_S = 0.5  # type: ignore[misc]

if __name__ == "__main__":
    main()
