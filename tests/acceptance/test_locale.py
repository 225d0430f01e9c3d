"""A run in a locale in which Python takes text for ASCII, and where its folder can't be made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import mqtune

def train(config):
    print("größe …")
    mqtune.report({"loss": config["x"]})

if __name__ == "__main__":
    results = mqtune.Tuner(
        train, {"x": mqtune.uniform(0, 1), "text": "größe …"}, metric="loss", mode="min", max_trials=2,
        backend=mqtune.Local(slots=1),
        name="ascii",
    ).run()
    print(len(results), results.best.status.value)
"""


def run(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=50,
    )


def test_trials_run_in_a_locale_without_umlauts(tmp_path: Path) -> None:
    done = run(tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 completed"


def test_a_folder_that_can_not_be_made_is_one_line_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    done = run(tmp_path, MQTUNE_HOME=str(tmp_path / "file" / "home"))

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "file/home/ascii can't be used" in line
    assert "set MQTUNE_HOME to a folder that you may write to" in line
