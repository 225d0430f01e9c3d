"""The scripts in examples/ do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from terminal import processes_in, terminal
from waiting import eventually

import mqtune
import mqtune.demo
from mqtune.results import Results

EXAMPLES = Path(__file__).parents[2] / "examples"
#: Twice what the demo promises, for a machine that runs other tests.
RUN_S = 120


def test_the_digits_example_is_the_demo():
    assert EXAMPLES.joinpath("digits.py").samefile(mqtune.demo.__file__)


def test_the_demos_default_config_fits_its_space():
    mqtune.Tuner(
        mqtune.demo.train, mqtune.demo.SPACE, metric="accuracy", mode="max", points_to_evaluate=[mqtune.demo.DEFAULT]
    )


@pytest.mark.timeout(2 * RUN_S)
def test_the_digits_example_can_be_interrupted_and_goes_on_where_it_was(mqtune_home: Path):
    command = [sys.executable, str(EXAMPLES / "digits.py"), "interrupted"]

    with terminal(command) as screen:
        screen.wait_for(r"[1-9]\d completed|[1-9]\d early stopped", RUN_S)
        screen.press(b"\x03")
        assert screen.wait(RUN_S) == 0
        assert "name='interrupted' to go on" in screen.text
        assert screen.raw.rindex(b"\x1b[?25h") > screen.raw.rindex(b"\x1b[?25l")
    eventually(lambda: not processes_in(mqtune_home), why="Ctrl-C left a process behind")
    halfway = Results.load("interrupted")
    assert halfway.outcome == "interrupted"
    assert 10 <= len(halfway) < 150

    with terminal(command) as screen:
        assert screen.wait(RUN_S) == 0
        assert "best config" in screen.text
    results = Results.load("interrupted")
    assert (results.outcome, len(results)) == ("finished", 150)
    assert [result.config for result in results][: len(halfway)] == [result.config for result in halfway]


SCRIPT = """
import mqtune

def train(config):
    for epoch in range(5):
        mqtune.report({"loss": config["x"] / (epoch + 1)})

if __name__ == "__main__":
    tuner = mqtune.Tuner(
        train, {"x": mqtune.uniform(0, 1)}, metric="loss", mode="min", max_trials=20, local_slots=2, name="followed"
    )
    tuner.step(0)
    print("begun", flush=True)
    input()
    tuner.run()
"""


def test_an_experiment_is_followed_from_another_process_to_its_end(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    follower = [sys.executable, str(EXAMPLES / "follow.py"), "followed"]

    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        assert driver.stdout.readline() == "begun\n"
        with subprocess.Popen(follower, stdout=subprocess.PIPE, text=True) as following:
            driver.stdin.write("\n")
            driver.stdin.flush()
            text, _ = following.communicate(timeout=50)
        driver.communicate(timeout=20)

    assert following.returncode == 0
    reports = re.findall(r"^[\d:.]+  (\d{4})  #(\d+) ", text, re.MULTILINE)
    assert len(reports) == len(set(reports)) == 100
    assert sorted(reports) == sorted(
        (report.trial, str(report.sequence)) for report in Results.load("followed").reports()
    )
    assert text.splitlines()[-1].endswith("finished")
    after = subprocess.run(follower, capture_output=True, text=True, check=False)
    assert after.returncode == 1
    assert "mqtune show followed" in after.stderr
