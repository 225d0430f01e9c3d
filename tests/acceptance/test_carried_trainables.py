"""A trainable that can't travel is carried by forks of its program on this machine, and refused wherever there is no fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: Each trial changes the object that all share, and reports how often that was changed.
PROGRAM = """
import json, os, signal, sys, tempfile, threading
from pathlib import Path
import mqtune

ROOT = Path(__file__).parent
TAKEN = tempfile.TemporaryDirectory()
LOG = open("log.txt", "a")
LOG.write("once\\n")


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def trainable(kind):
    count, lock = [0], threading.Lock()
    victims = {"importer": lambda: parent_of(os.getppid()), "driver": lambda driver=os.getpid(): driver}

    class Counter(mqtune.Trainable):
        def step(self):
            count.append(1)
            return {"loss": len(count) - 1, "pid": os.getpid(), "folder": os.path.isdir(TAKEN.name), "done": True}

    def train(config):
        with lock:
            count[0] += 1
        # The second of the trials kills the process that all others would be forked from, or the driver. Some have begun by then.
        if config["x"] == 1 and not (ROOT / "killed").exists():
            (ROOT / "killed").touch()
            os.kill(victims[kind](), signal.SIGKILL)
        return {"loss": count[0], "pid": os.getpid(), "folder": os.path.isdir(TAKEN.name)}

    return Counter if kind == "class" else train


if __name__ == "__main__":
    results = mqtune.Tuner(
        trainable(sys.argv[1]), {"x": mqtune.grid_search([*range(10)])}, metric="loss", mode="min", name="killer",
        backend=mqtune.Local(slots=2), run=mqtune.RunOptions(progress=False),
    ).run()
    assert os.path.isdir(TAKEN.name)
    print(json.dumps([trial.metrics for trial in results]), flush=True)
"""


def run(folder: Path, kind: str, program: str = PROGRAM) -> tuple[list[dict[str, Any]], list[str]]:
    """Run the program, and return the metrics of its trials, none if it has failed, and its errors."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "program.py", kind]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert (done.returncode == 0) == bool(done.stdout), done.stderr
    return json.loads(done.stdout or "[]"), done.stderr.strip().splitlines()


def check(trials: list[dict[str, Any]]) -> None:
    assert [trial["loss"] for trial in trials] == [1] * 10
    assert len({trial["pid"] for trial in trials}) == len(trials)
    # The driver's files and folders are the driver's.
    assert all(trial["folder"] for trial in trials)


def test_each_trial_has_the_programs_own_class_to_itself(tmp_path: Path) -> None:
    trials, errors = run(tmp_path, "class")
    check(trials)
    assert (tmp_path / "log.txt").read_text() == "once\n"
    assert len([line for line in errors if "a fleet needs more" in line]) == 1


@pytest.mark.parametrize("victim", ["importer", "driver"])
def test_a_run_whose_importer_or_driver_is_killed_is_continued_by_the_same_program_alone(
    tmp_path: Path, victim: str
) -> None:
    found, errors = run(tmp_path, victim)
    assert not found
    (said,) = [line for line in errors if "a fleet needs more" in line]
    assert "lock, a lock, which is not a plain value. Load it inside the function" in said
    drive = [sys.executable, "-m", "mqtune", "drive", "killer"]
    refused = subprocess.run(drive, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    if victim == "importer":
        assert (
            "trainable 'train' was only in the memory of a fork of its program, and that process has ended"
            in errors[-1]
        )
        assert "Run the same program again with name='killer' to continue" in errors[-1]
    assert refused.returncode != 0
    assert "was in the memory of the program that began the experiment, and in no file" in refused.stderr
    assert "run that program again with name='killer'" in refused.stderr
    found, errors = run(tmp_path, victim)
    assert found, errors
    check(found)


@pytest.mark.parametrize(
    ("at_top", "backend", "why"),
    [
        ("DATA = open('program.py')", "mqtune.Local()", "can't be forked, because it has opened"),
        ("", "'redis://localhost:1/0'", ""),
    ],
)
def test_without_a_fork_it_is_refused_before_anything_begins(
    tmp_path: Path, at_top: str, backend: str, why: str
) -> None:
    program = PROGRAM.replace("mqtune.Local(slots=2)", backend).replace("\n\nif __name__", f"\n{at_top}\n\nif __name__")
    found, errors = run(tmp_path, "importer", program)
    assert not found
    last = errors[-1]
    assert (
        "TrainableNotFound: trainable 'train' is sent to workers as source, but some values that it uses can't be sent: "
        in last
    )
    assert "lock, a lock, which is not a plain value. Load it inside the function" in last
    assert why in last
    assert "a fleet needs more" not in "".join(errors)
