"""``mqtune worker``, that goes by the run's times, and whose threads can be told to raise."""

from __future__ import annotations

import sys


def _arm() -> None:
    """Have each thread of this worker raise when it is told to; before any module takes over how threads are made."""
    import os
    from pathlib import Path

    from breaker import ORDER, Breaker

    import mqtune
    from mqtune.worker.host import threads

    if path := os.environ.pop(ORDER, ""):
        breaker, guarded = Breaker(Path(path), Path(mqtune.__file__).parent), threads.guarded
        threads.guarded = lambda name, steps, **how: guarded(name, lambda: breaker.steps(name, steps), **how)
        breaker.start()


if __name__ == "__main__":
    _arm()
    import times

    timing = times.of_this_process()
    # What is below belongs to the run, and no trainable should find it by chance.
    sys.path.pop(0)
    from mqtune.cli import main

    sys.argv = ["mqtune", "worker", *sys.argv[1:]]
    main(timing)
