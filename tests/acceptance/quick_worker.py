"""``mqtune worker`` whose leases, and its patience with a frozen zygote, run out within seconds, so that a test of a death need not wait for long."""

from __future__ import annotations

from mqtune.cli import main
from mqtune.worker import attempt, runtime

runtime.LEASE_S = 4.0  # type: ignore[misc]
runtime.HEARTBEAT_S = 0.5  # type: ignore[misc]
attempt.SILENT_S = 3.0  # type: ignore[misc]

if __name__ == "__main__":
    main()
