"""What a trial prints, and what it says when it fails: never a reason to end, and never more than can be kept."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from attempts import TrialProcess

from mqtune.trainable import TrainableSpec

CODE = """
import resource, subprocess, sys
import mqtune

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


def ran(folder: Path, name: str) -> tuple[TrialProcess, dict[str, Any]]:
    """Run a function to its end; return the attempt, what was said of it, and in that what it reported."""
    (folder / "functions_that_print.py").write_text(CODE)
    spec = TrainableSpec(name, module="functions_that_print")
    with contextlib.closing(TrialProcess(folder, spec, folder)) as one:
        one.start({})
        said = one.wait()
        return one, {**said, "losses": one.values()}


def test_output_goes_on_where_there_is_room_again_and_says_what_was_lost(tmp_path: Path) -> None:
    one, said = ran(tmp_path, "meets_a_full_disk")

    assert (said["end"], said["losses"]) == ("completed", [1])
    assert one.stdout() == "before\n\n… mqtune: 100 bytes of output were lost: the disk was full …\nafter\n"


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
