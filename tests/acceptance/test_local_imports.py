"""On one machine an importer imports packages once for all trials; and variables that an experiment sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A package that takes note of each process that imports it.
PACKAGE = """
import os
with open(os.environ["IMPORTED"], "a") as file:
    file.write(f"{os.getpid()}\\n")
"""
PROGRAM = """
import os, random, sys
import slow_package
import mqtune

def write_into_a_broken_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        os.write(writing, b"x")
    except BrokenPipeError as error:
        return type(error).__name__

def train(config):
    assert write_into_a_broken_pipe() == "BrokenPipeError"
    mqtune.report({"loss": config["x"], "pid": os.getpid(), "env": os.environ.get("GIVEN"), "cores": os.environ["OMP_NUM_THREADS"]})

if __name__ == "__main__":
    results = mqtune.Tuner(
        train, {"x": mqtune.grid_search([0.0, 1.0])}, metric="loss", mode="min", backend=mqtune.Local(slots=2), name="forked",
        process=mqtune.Process(env={"GIVEN": "by the program", "OMP_NUM_THREADS": "7"}), run=mqtune.RunOptions(progress=False),
    ).run()
    pids = {trial.metrics["pid"] for trial in results}
    assert len(pids) == 2 and os.getpid() not in pids
    assert {(trial.metrics["env"], trial.metrics["cores"]) for trial in results} == {("by the program", "7")}
    print("driver", os.getpid())
"""


def run(tmp_path: Path, imports: str) -> tuple[str, list[str]]:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "slow_package.py").write_text(PACKAGE)
    (tmp_path / "model.py").write_text("import slow_package")
    (tmp_path / "tune.py").write_text(PROGRAM.replace("slow_package", imports))
    imported = tmp_path / "imported"
    ended = subprocess.run(
        [sys.executable, "tune.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(packages), "IMPORTED": str(imported)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()[-1], imported.read_text().split()


@pytest.mark.parametrize("imports", ["slow_package", "model"])
def test_packages_are_imported_once_for_all_slots(tmp_path: Path, imports: str) -> None:
    driver, imported = run(tmp_path, imports)

    assert imported[0] == driver
    assert len(imported) == len(set(imported)) == 2
