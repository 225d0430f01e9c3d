"""An attempt that opens a linked file for writing writes to a copy of its own, or its errors say that it doesn't."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

#: In a process of its own, as a hook can't be removed.
PROGRAM = """
import os, sqlite3, sys
from pathlib import Path
from mqtune.services.folders import own_copies
from mqtune.services.folders.working_folder import make

project, place = Path("project").absolute(), Path("place").absolute()
os.chdir(make(project, place))
own_copies._MOST_BYTES = 10
own_copies.protect_originals(place, project)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "results.csv").write_text("old\n")
    (project / "data" / "large.txt").write_text("0123456789X")
    (tmp_path / "beside.txt").write_text("old\n")
    return project


def run(project: Path, program: str) -> tuple[Path, str]:
    """Run a program in an attempt's folder; return that, and its errors."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program], cwd=project.parent, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return project.parent / "place" / "project", done.stderr


@pytest.mark.parametrize(
    ("program", "content"),
    [
        ("open('results.csv', 'a').write('new\\n')", "old\nnew\n"),
        ("Path('results.csv').write_text('new\\n')", "new\n"),
        ("open(os.path.abspath('data/../results.csv'), 'r+').write('new')", "new\n"),
        ("os.write(os.open(b'results.csv', os.O_WRONLY), b'N')", "Nld\n"),
        ("os.chdir('data'); open('../results.csv', 'w').close(); assert os.path.getsize('../results.csv') == 0", ""),
    ],
)
def test_an_existing_file_that_python_opens_for_writing_is_the_attempts_own(project: Path, program: str, content: str):
    folder, said = run(project, program)

    assert (folder / "results.csv").read_text() == content
    assert (project / "results.csv").read_text() == "old\n"
    assert said == f"mqtune: this trial writes to its own copy of {project / 'results.csv'}, which stays as it is\n"


def test_a_change_of_the_original_is_said(project: Path) -> None:
    with_table = project / "study.db"
    with contextlib.closing(sqlite3.connect(with_table)) as database:
        database.execute("CREATE TABLE t (x)")
    _, said = run(
        project,
        "open('data/large.txt', 'r+').write('new')\n"
        "database = sqlite3.connect('study.db'); database.execute('INSERT INTO t VALUES (1)'); database.commit()",
    )

    large, changed = said.splitlines()
    assert (project / "data" / "large.txt").read_text() == "new3456789X"
    assert large.startswith(
        f"mqtune: {project / 'data' / 'large.txt'} is opened for writing, and is too large for a copy"
    )
    assert (
        changed
        == f"mqtune: {with_table} has changed while this trial ran, by it or by another one: write to a new name"
    )
