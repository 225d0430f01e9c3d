"""The output, the errors and the random numbers of a trial's process."""

from __future__ import annotations

import contextlib
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attempts import TrialProcess
from waiting import DEADLINE_S

from mqtune.trainable import FRAME_REPORT, TrainableSpec

CODE = """
import os, random, resource, signal, subprocess, sys
import numpy as np
import mqtune

random.seed(1)
np.random.seed(2)

def forks_and_dies(config):
    pid = os.fork()
    if pid == 0:
        sys.exit(3)
    mqtune.report({"loss": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})
    os.kill(os.getpid(), signal.SIGKILL)

def has_a_hook(config):
    sys.excepthook = lambda kind, error, trace: print("caught", kind.__name__, trace.tb_frame.f_code.co_name)
    raise ValueError("no luck")

def has_a_broken_hook(config):
    sys.excepthook = lambda *error: print(1 / 0)
    raise ValueError("no luck")

def draws(config):
    mqtune.report({"loss": random.random()})
    mqtune.report({"loss": np.random.rand()})

def prints_half_a_line(config):
    print("first,", end=" ")
    os.write(1, b"second")
    print(sys.stdout.mode)

def meets_a_full_disk(config):
    print("before")
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (7, hard))
    for _ in range(10):
        print("123456789")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    print("after")
    mqtune.report({"loss": 1})

def reports_and_fails(config):
    for step in range(200):
        mqtune.report({"loss": step})
    raise ValueError("no luck")

def fails_at_length(config):
    raise ValueError("begin " + "x" * 10_000_000 + " end")

def exits_at_length(config):
    sys.exit("begin " + "x" * 10_000_000 + " end")
"""


#: A program that seeds for one step, and restores the state from before.
SEEDED_FOR_A_STEP = CODE.replace(
    "random.seed(1)\nnp.random.seed(2)",
    "before = random.getstate(), np.random.get_state()\nrandom.seed(1)\nnp.random.seed(2)\n"
    "random.setstate(before[0])\nnp.random.set_state(before[1])",
)


def ran(folder: Path, name: str, code: str = CODE) -> tuple[TrialProcess, dict[str, Any]]:
    """Run a function to its end. Return the attempt, and the message of its end with the reported losses."""
    (folder / "functions_that_print.py").write_text(code)
    spec = TrainableSpec(name, module="functions_that_print")
    with contextlib.closing(TrialProcess(folder, spec, folder)) as one:
        one.start({})
        said = one.wait()
        return one, {**said, "losses": one.values()}


def test_output_goes_on_where_there_is_room_again_and_says_what_was_lost(tmp_path: Path) -> None:
    one, said = ran(tmp_path, "meets_a_full_disk")

    assert (said["end"], said["losses"]) == ("completed", [1])
    assert one.stdout() == "before\n\n… mqtune: 100 bytes of output were lost: the disk was full …\nafter\n"


def test_the_end_of_a_forked_child_is_not_the_trials(tmp_path: Path) -> None:
    (tmp_path / "functions_that_print.py").write_text(CODE)
    spec = TrainableSpec("forks_and_dies", module="functions_that_print")
    with contextlib.closing(TrialProcess(tmp_path, spec, tmp_path)) as one:
        one.start({})
        one.process.wait(DEADLINE_S)

        assert (one.process.returncode, one.values()) == (-signal.SIGKILL, [3])
        assert {kind for kind, _ in one.frames()} == {FRAME_REPORT}


def test_an_error_is_shown_by_the_programs_own_hook(tmp_path: Path) -> None:
    one, said = ran(tmp_path, "has_a_hook")

    assert said["error"].endswith("ValueError: no luck\n")
    assert (one.stdout(), one.stderr()) == ("caught ValueError has_a_hook\n", "")


def test_an_error_is_shown_if_the_programs_hook_fails(tmp_path: Path) -> None:
    one, said = ran(tmp_path, "has_a_broken_hook")

    assert said["error_type"] == "ValueError"
    assert "ValueError: no luck" in one.stderr()


def test_generators_that_the_program_has_seeded_go_on_from_there(tmp_path: Path) -> None:
    assert ran(tmp_path, "draws")[1]["losses"] == [random.Random(1).random(), np.random.RandomState(2).rand()]


def test_generators_that_the_program_has_seeded_for_a_step_differ_between_trials(tmp_path: Path) -> None:
    one, other = (ran(tmp_path, "draws", SEEDED_FOR_A_STEP)[1]["losses"] for _ in range(2))

    assert set(one).isdisjoint(other)


@pytest.mark.parametrize(("unbuffered", "shown"), [("1", "first, secondw\n"), ("", "secondfirst, w\n")])
def test_output_is_unbuffered_if_python_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unbuffered: str, shown: str
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)

    assert ran(tmp_path, "prints_half_a_line")[0].stdout() == shown


def test_all_reports_come_before_an_error_which_is_the_traceback_of_user_code(tmp_path: Path) -> None:
    one, said = ran(tmp_path, "reports_and_fails")

    assert (said["end"], said["error_type"], said["losses"]) == ("failed", "ValueError", list(range(200)))
    assert "functions_that_print.py" in said["error"]
    assert "mqtune/trainable" not in said["error"]
    assert one.process.returncode == 1


@pytest.mark.parametrize(("name", "kind"), [("fails_at_length", "ValueError"), ("exits_at_length", "SystemExit")])
def test_of_an_error_of_megabytes_both_ends_are_kept(tmp_path: Path, name: str, kind: str) -> None:
    one, said = ran(tmp_path, name)

    assert (said["end"], said["error_type"]) == ("failed", kind)
    assert len(said["error"]) < 20_000
    assert f"{kind}: begin xxx" in said["error"]
    assert said["error"].rstrip().endswith("xxx end")
    assert len(one.stderr()) < 20_000
