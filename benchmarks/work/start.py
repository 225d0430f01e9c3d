"""A whole script of four trials that report once: how long until the first report, and from the last end until it has exited."""

from __future__ import annotations

import resource
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
    title="a script of four trials that report once, 2 slots",
    sizes={},
    quick_sizes={},
    figures={
        "first_report_s": Figure(unit="s", higher_is_better=False, title="script start to first report", bar=0.8),
        "exit_s": Figure(unit="s", higher_is_better=False, title="last trial's end to exit", bar=0.3),
        "script_cpu_s": Figure(unit="s", higher_is_better=False, title="processor time of the script, all processes"),
        "first_report_pythons": Figure(unit="×", higher_is_better=False, shown=False),
        "exit_pythons": Figure(unit="×", higher_is_better=False, shown=False),
        "python_s": Figure(unit="s", higher_is_better=None, shown=False),
    },
)


class ScriptRun(NamedTuple):
    """When a script was started and had exited (seconds since the epoch), and the processor time of all its processes."""

    started_at: float
    exited_at: float
    cpu_s: float


def run_script(name: str, context: Context) -> ScriptRun:
    """Run a script of ``benchmarks/scripts`` in the measurement's folder, as a user does."""
    before_s, started_at = _children_s(), time.time()
    subprocess.run([sys.executable, str(_SCRIPTS / name)], cwd=context.folder, check=True)
    return ScriptRun(started_at, time.time(), _children_s() - before_s)


def figures(run: ScriptRun, *, first_report_at: float, last_end_at: float) -> Figures:
    """Return the figures, also as multiples of what a Python that does nothing takes on this machine in this moment."""
    first_report_s, exit_s = first_report_at - run.started_at, run.exited_at - last_end_at
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    python_s = time.monotonic() - began
    return {
        "first_report_s": first_report_s,
        "exit_s": exit_s,
        "script_cpu_s": run.cpu_s,
        "first_report_pythons": first_report_s / python_s,
        "exit_pythons": exit_s / python_s,
        "python_s": python_s,
    }


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
