"""A user's script with mqtune, from its start to its exit, by the times that its journal has."""

from __future__ import annotations

from benchmarks.measurement import Context, Figures
from benchmarks.work import start

__all__ = ["measure"]


def measure(context: Context) -> Figures:
    """Measure the script, and check that its folder has everything."""
    import mqtune
    from mqtune.core.trial import TrialStatus

    run = start.run_script("start_mqtune.py", context)
    results = mqtune.Results.load("start")
    if results.outcome != "finished" or [trial.status for trial in results] != [TrialStatus.COMPLETED] * 4:
        raise RuntimeError(f"outcome {results.outcome!r}; {[trial.status for trial in results]}")
    return start.figures(
        run,
        first_report_at=min(report.timestamp for report in results.reports()),
        last_end_at=max(trial.attempts[-1].ended_at or 0.0 for trial in results),
    )
