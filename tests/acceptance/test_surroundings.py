"""A run in odd surroundings: a locale in which Python takes text for ASCII, beside other modules, and where its folder can't be made."""

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


def run(tmp_path: Path, *, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=150,
    )


def test_trials_run_in_a_locale_without_umlauts(tmp_path: Path) -> None:
    done = run(tmp_path, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 completed"


def test_what_lies_where_a_script_is_started_is_not_imported_instead_of_what_is_installed(tmp_path: Path) -> None:
    cwd = tmp_path / "clone"
    for name in ("mqtune", "celery", "numpy"):
        (cwd / name).mkdir(parents=True)
        (cwd / name / "__init__.py").write_text("raise SystemExit('the wrong one')")

    done = run(tmp_path, cwd=cwd)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 completed"


def test_a_folder_that_can_not_be_made_is_one_line_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    done = run(tmp_path, MQTUNE_HOME=str(tmp_path / "file" / "home"))

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "file/home/ascii can't be used" in line
    assert "set MQTUNE_HOME to a folder that you may write to" in line
