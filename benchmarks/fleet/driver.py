"""One real driver of a fleet, with endless trials under ASHA.

``python -m benchmarks.fleet.driver URL NAME TRIALS`` prints a JSON line after its imports, and starts with the line
``go`` on its input. The line ``begin`` starts a measurement, and ``end`` prints its result.
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

#: No trial trains so long: the benchmark measures decisions, not stops.
MAX_T: Final = 10**9
#: Late imports of a run on a broker. A hundred drivers on two cores need more time for them than for the rest.
LATE: Final = ("celery.worker", "mqtune.backends.celery", "numpy")


class Timed(mqtune.ASHA):
    """ASHA that notes the time from each report to its decision."""

    def __init__(self) -> None:
        super().__init__(MAX_T, grace_period=MAX_T)
        self.taken_s = array("d")

    def on_report(self, trial: Trial, report: Report) -> Decision:
        self.taken_s.append(time.time() - report.timestamp)
        return super().on_report(trial, report)


class Measurement:
    """A driver's use of resources and its decisions since the measurement began."""

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
