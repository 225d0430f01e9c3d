"""Runs measurements one at a time, each in a fresh process with its own folder and deadline."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import OtherLoad, describe_machine
from benchmarks.measurement import System, Variant
from benchmarks.processes import end_descendants
from benchmarks.work import Workload

__all__ = ["Job", "plan", "run_job"]

ROOT: Final = Path(__file__).parent.parent
#: Short, because Ray puts sockets below it and a socket's path is limited to 107 bytes.
FOLDER_PREFIX: Final = "mqb-"
TAIL_LINES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one variant of one workload on one system."""

    workload: Workload
    system: System
    variant: Variant
    run: int
    quick: bool

    def __str__(self) -> str:
        return f"{self.workload.name} · {self.system.name} · {self.variant.name} · run {self.run + 1}"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the work. A quick run is never larger than a full one."""
        full = {**self.workload.sizes, **self.variant.sizes}
        if not self.quick:
            return full
        return {name: min(size, self.workload.quick_sizes.get(name, size)) for name, size in full.items()}


def plan(
    workloads: Sequence[Workload], systems: Sequence[System], *, repeats: int, slow_repeats: int, quick: bool
) -> Iterator[Job]:
    """Yield the jobs. Repeats are interleaved, so a drift of the machine affects all alike."""
    for workload in workloads:
        for run in range(max(repeats, slow_repeats)):
            for system in systems:
                for variant in system.variants.get(workload.name, ()):
                    if run < (slow_repeats if variant.slow else repeats):
                        yield Job(workload=workload, system=system, variant=variant, run=run, quick=quick)


def run_job(job: Job, python: str) -> list[dict[str, Any]]:
    """Run *job* with an interpreter and return its result lines. A failure is one line."""
    folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
    others = OtherLoad()
    try:
        answer = _answer(job, python, folder)
    finally:
        left = end_descendants()
        shutil.rmtree(folder, ignore_errors=True)
    return list(_lines(job, answer, left, others.cores()))


def _answer(job: Job, python: str, folder: Path) -> dict[str, Any]:
    request = {
        "system": job.system.name,
        "workload": job.workload.name,
        "variant": job.variant.name,
        "folder": str(folder),
        "sizes": job.sizes,
        "run": job.run,
    }
    (folder / "request.json").write_text(json.dumps(request))
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [python, "-m", "benchmarks.child", str(folder / "request.json")],
            cwd=folder,
            env=_environment(job.variant, folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(job.variant.deadline_s)
        except subprocess.TimeoutExpired:
            return _failure(f"still running after {job.variant.deadline_s:.0f} s", folder)
    if process.returncode != 0:
        return _failure(f"ended with exit code {process.returncode}", folder)
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


def _environment(variant: Variant, folder: Path) -> dict[str, str]:
    """Return the fresh process's environment, which keeps every system's files inside *folder*."""
    homes = {"HOME": str(folder), "MQTUNE_HOME": str(folder / "mqtune"), "SYNETUNE_FOLDER": str(folder / "syne")}
    return {**os.environ, **homes, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **variant.environment}


def _failure(reason: str, folder: Path) -> dict[str, Any]:
    tail = (folder / "output.txt").read_text(errors="replace").splitlines()[-TAIL_LINES:]
    return {"status": "failed", "reason": "\n".join([reason, *tail])}


def _lines(job: Job, answer: Mapping[str, Any], left: Sequence[str], other_cores: float) -> Iterator[dict[str, Any]]:
    line: dict[str, Any] = {
        "workload": job.workload.name,
        "system": job.system.name,
        "variant": job.variant.name,
        "settings": job.variant.settings,
        "sizes": job.sizes,
        "run": job.run,
        "quick": job.quick,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "other_cores": round(other_cores, 2),
        "status": answer["status"],
    }
    if answer["status"] != "ok":
        yield {**line, "reason": answer["reason"]}
        return
    if left:
        print(f"  ended {len(left)} processes that the system left behind", file=sys.stderr)
        line["left_behind"] = len(left)
    for name, value in answer["figures"].items():
        unit = job.workload.figures[name].unit
        for each in value if isinstance(value, list) else [value]:
            yield {**line, "figure": name, "unit": unit, "value": each, "versions": answer["versions"]}
