"""A driver's script that workers can't import as it is: one clear error says what to write, and nothing else is started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from terminal import processes_in
from waiting import eventually

WITHOUT_GUARD = """
import mqtune

def train(config):
    mqtune.report({"loss": config["x"]})

tuner = mqtune.Tuner(
    train, {"x": mqtune.uniform(0, 1)}, metric="loss", mode="min", max_trials=4, backend=mqtune.Local(slots=2),
    run=mqtune.RunOptions(progress=False),
)
tuner.run()
"""
GUARD = 'if __name__ == "__main__":'


def run(*arguments: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_script_that_does_at_import_what_only_a_driver_may_is_one_error_with_the_line_that_it_lacks(
    tmp_path: Path, mqtune_home: Path
):
    (tmp_path / "script.py").write_text(WITHOUT_GUARD)

    ended = run("script.py", folder=tmp_path)

    assert ended.returncode == 1, ended.stderr
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("mqtune: TrainableNotFound")]
    assert "runs an experiment when it is imported" in line
    assert GUARD in line
    assert len(list(mqtune_home.glob("[!.]*"))) == 1, "a worker began an experiment of its own"
    eventually(lambda: not processes_in(mqtune_home))


#: From Python 3.13 on it knows the source of -c, whose functions then travel as those of a notebook's cell.
UNKNOWN_SOURCE = pytest.mark.skipif(sys.version_info >= (3, 13), reason="this Python knows the source of -c")


@pytest.mark.parametrize(
    "arguments",
    [pytest.param(("-c", WITHOUT_GUARD), marks=UNKNOWN_SOURCE, id="-c"), pytest.param(("-",), id="standard input")],
)
def test_code_that_is_in_no_file_is_refused_with_what_to_do(
    tmp_path: Path, mqtune_home: Path, arguments: tuple[str, ...]
):
    ended = run(*arguments, folder=tmp_path, stdin=WITHOUT_GUARD)

    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "'train' is in no file" in line
    assert "put it into one, such as train.py" in line
    assert not mqtune_home.exists()
