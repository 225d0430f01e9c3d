"""A trainable that can't travel is carried by forks of its program on this machine, and refused wherever there is no fork."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: Each trial of each kind changes the object that all share, and reports how often that was changed.
PROGRAM = """
import json, os, sys, tempfile, threading
import mqtune

TAKEN = tempfile.TemporaryDirectory()
LOG = open("log.txt", "a")
LOG.write("once\\n")


class Model:
    def __init__(self):
        self.steps, self.hooks = 0, [lambda: self.steps]

    def __getstate__(self):
        raise TypeError("a model is no plain value")

    def step(self):
        self.steps += 1
        return self.hooks[0]()


def of_model():
    model = Model()
    return lambda config: model.step()


def of_lock():
    lock, count = threading.Lock(), [0]

    def train(config):
        with lock:
            count[0] += 1
            return count[0]

    return train


def of_trainable():
    counts = []

    class Counter(mqtune.Trainable):
        def step(self):
            counts.append(1)
            return {"loss": len(counts), "pid": os.getpid(), "done": True}

    return Counter


def of_exec_in_the_script():
    exec("count = 0\\ndef train(config):\\n    global count\\n    count += 1\\n    return count", globals())
    return globals()["train"]


def reports(train):
    \"\"\"Add the process to what a function reports.\"\"\"

    def report(config):
        return {"loss": train(config), "pid": os.getpid(), "folder": os.path.isdir(TAKEN.name)}

    return report


def run(kind, **options):
    train = globals()[f"of_{kind}"]()
    return mqtune.Tuner(
        reports(train) if hasattr(train, "__code__") else train, {"x": mqtune.grid_search([0, 1, 2, 3])}, metric="loss", mode="min",
        backend=mqtune.Local(slots=2), process=mqtune.Process(**options), name=kind, run=mqtune.RunOptions(progress=False),
    ).run()


if __name__ == "__main__":
    for kind in sys.argv[1:]:
        results = run(kind)
        assert os.path.isdir(TAKEN.name)
        print(json.dumps([kind, [trial.metrics for trial in results]]), flush=True)
"""
KINDS = ["model", "lock", "trainable", "exec_in_the_script"]


def run(folder: Path, *kinds: str, program: str = PROGRAM) -> tuple[dict[str, list[dict[str, Any]]], str]:
    """Run the program for some kinds, and return the metrics of their trials, and its errors."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py", *kinds],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    return found, done.stderr if done.returncode == 0 else f"FAILED {done.stderr}"


def check(trials: list[dict[str, Any]]) -> None:
    """Check that no trial has seen a change of another one."""
    assert [trial["loss"] for trial in trials] == [1] * len(trials)
    assert len({trial["pid"] for trial in trials}) == len(trials)


def test_each_trial_has_the_programs_own_object_to_itself(tmp_path: Path) -> None:
    found, errors = run(tmp_path, *KINDS)
    assert [*found] == KINDS, errors
    for kind in KINDS:
        check(found[kind])
    # The driver's files and folders are the driver's.
    assert all(trial["folder"] for trial in found["lock"])
    assert (tmp_path / "log.txt").read_text() == "once\n"
    said = [line for line in errors.splitlines() if "a fleet needs more" in line]
    assert len(said) == len(KINDS)
    assert "lock, a lock, no plain value. Load it inside the function" in said[KINDS.index("lock")]


#: The second of ten trials kills the process that all others would be forked from, or the driver. Some have begun by then.
KILLED = (
    PROGRAM.partition("if __name__")[0].replace("[0, 1, 2, 3]", "[*range(10)]")
    + """
import signal
from pathlib import Path


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def of_killer():
    count, lock = [0], threading.Lock()
    victim = {"importer": lambda: parent_of(os.getppid()), "driver": lambda driver=os.getpid(): driver}[sys.argv[1]]

    def train(config):
        with lock:
            count[0] += 1
        if config["x"] == 1 and not (ROOT / "killed").exists():
            (ROOT / "killed").touch()
            os.kill(victim(), signal.SIGKILL)
        return count[0]

    return train


ROOT = Path(__file__).parent
if __name__ == "__main__":
    results = run("killer")
    print(json.dumps(["killer", [trial.metrics for trial in results]]), flush=True)
"""
)


@pytest.mark.parametrize("victim", ["importer", "driver"])
def test_a_run_whose_importer_or_driver_is_killed_is_continued_by_the_same_program_alone(
    tmp_path: Path, victim: str
) -> None:
    found, errors = run(tmp_path, victim, program=KILLED)
    assert not found
    drive = [sys.executable, "-m", "mqtune", "drive", "killer"]
    refused = subprocess.run(drive, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    if victim == "importer":
        last = errors.strip().splitlines()[-1]
        assert "trainable 'report' was only in the memory of a fork of its program, and that process has ended" in last
        assert "Run the same program again with name='killer' to continue" in last
    assert refused.returncode != 0
    assert "was in the memory of the program that began the experiment, and in no file" in refused.stderr
    assert "run that program again with name='killer'" in refused.stderr
    found, _ = run(tmp_path, victim, program=KILLED)
    check(found["killer"])


@pytest.mark.parametrize(
    ("at_top", "backend", "why"),
    [
        ("DATA = open('program.py')", "mqtune.Local()", "can't be forked, as it has opened"),
        ("", "'redis://localhost:1/0'", ""),
    ],
)
def test_without_a_fork_it_is_refused_before_anything_begins(
    tmp_path: Path, at_top: str, backend: str, why: str
) -> None:
    (tmp_path / "program.py").write_text(
        PROGRAM.partition("if __name__")[0].replace("mqtune.Local(slots=2)", backend)
        + f"{at_top}\nif __name__ == '__main__':\n    run('lock')\n"
    )
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert (
        "TrainableNotFound: trainable 'report' travels to workers as source, and they can't have what it uses: " in last
    )
    assert "lock, a lock, no plain value. Load it inside the function" in last
    assert why in last
    assert "a fleet needs more" not in done.stderr


def test_a_run_whose_importer_is_killed_ends_with_a_clear_error_and_can_be_continued(tmp_path: Path) -> None:
    found, errors = run(tmp_path, "importer", program=KILLED)
    assert not found
    last = errors.strip().splitlines()[-1]
    assert "trainable 'report' was only in the memory of a fork of its program, and that process has ended" in last
    assert "Run the same program again with name='killer' to continue" in last
    found, errors = run(tmp_path, "importer", program=KILLED)
    check(found["killer"])
