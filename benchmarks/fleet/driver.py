"""One real driver of a fleet, ``python -m benchmarks.fleet.driver URL NAME TRIALS``: trials that report and never end, under ASHA.

It prints a JSON line when all is imported, and begins with the line ``go`` on its input. ``begin`` starts a measurement, ``end`` prints it.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from array import array
from importlib import import_module
from typing import Any, Final

import mqtune
from benchmarks import trainables
from mqtune.core.trial import AttemptEnd, Decision, Report, Trial

__all__ = ["main"]

#: No trial comes so far: what is measured is deciding, and not stopping.
MAX_T: Final = 10**9
#: What a run on a broker imports late, which takes a hundred drivers on two cores longer than all that is measured.
LATE: Final = ("celery.worker", "mqtune.backends.celery", "numpy")


class Timed(mqtune.ASHA):
    """ASHA that notes how long after each report it decided."""

    def __init__(self) -> None:
        super().__init__(MAX_T, grace_period=MAX_T)
        self.taken_s = array("d")

    def on_report(self, trial: Trial, report: Report) -> Decision:
        self.taken_s.append(time.time() - report.timestamp)
        return super().on_report(trial, report)


class Measurement:
    """What a driver has used and decided since the measurement began."""

    def __init__(self, tuner: mqtune.Tuner, scheduler: Timed) -> None:
        self._tuner, self._scheduler = tuner, scheduler
        self._first = len(scheduler.taken_s)
        self._cpu_s = time.process_time()
        self._at = time.monotonic()

    def result(self) -> dict[str, Any]:
        return {
            "cpu_s": time.process_time() - self._cpu_s,
            "wall_s": time.monotonic() - self._at,
            "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
            "lost": sum(
                attempt.end is AttemptEnd.LOST for trial in self._tuner.get_trials() for attempt in trial.attempts
            ),
            "taken_s": list(self._scheduler.taken_s[self._first :]),
        }


def _listen(tuner: mqtune.Tuner, scheduler: Timed) -> None:
    measurement = Measurement(tuner, scheduler)
    for line in sys.stdin:
        if line.strip() == "begin":
            measurement = Measurement(tuner, scheduler)
        else:
            print(json.dumps(measurement.result()), flush=True)


def main() -> None:
    url, name, trials = sys.argv[1:]
    scheduler = Timed()
    tuner = mqtune.Tuner(
        trainables.noop,
        {"x": mqtune.uniform(0, 1)},
        metric="loss",
        mode="min",
        scheduler=scheduler,
        max_trials=int(trials),
        backend=url,
        name=name,
        run=mqtune.RunOptions(progress=False, max_concurrent=int(trials)),
    )
    for name in LATE:
        import_module(name)
    print(json.dumps({"at": time.time(), "event": "ready"}), flush=True)
    sys.stdin.readline()
    threading.Thread(target=_listen, args=(tuner, scheduler), daemon=True).start()
    tuner.run()


if __name__ == "__main__":
    main()
