"""A whole script of four trials: time to the first report, and from the last end to exit."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.measurement import Context, Figures
from benchmarks.work.base import Figure, Workload

__all__ = ["WORKLOAD", "ScriptRun", "figures", "run_script"]

_SCRIPTS: Final = Path(__file__).parent.parent / "scripts"

WORKLOAD: Final = Workload(
    name="start",
    sizes={},
    quick_sizes={},
    figures={
        "first_report_s": Figure("script start to first report", "s"),
        "exit_s": Figure("last trial's end to exit", "s"),
    },
)


class ScriptRun(NamedTuple):
    """A script's start and exit, in seconds since the epoch."""

    started_at: float
    exited_at: float


def run_script(name: str, context: Context) -> ScriptRun:
    """Run a script of ``benchmarks/scripts`` in the measurement's folder, as a user does."""
    started_at = time.time()
    subprocess.run([sys.executable, str(_SCRIPTS / name)], cwd=context.folder, check=True)
    return ScriptRun(started_at, time.time())


def figures(run: ScriptRun, *, first_report_at: float, last_end_at: float) -> Figures:
    """Return the figures of a run, given times of its trials in seconds since the epoch."""
    return {"first_report_s": first_report_at - run.started_at, "exit_s": run.exited_at - last_end_at}
