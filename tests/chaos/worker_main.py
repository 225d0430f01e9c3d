"""``mqtune worker``, that goes by the run's times."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    import times

    import mqtune.worker.app  # noqa: F401 - all that takes a time over must be there before the times are set

    times.apply()
    # What is below belongs to the run, and no trainable should find it by chance.
    sys.path.pop(0)
    from mqtune.cli import main

    sys.argv = ["mqtune", "worker", *sys.argv[1:]]
    main()
