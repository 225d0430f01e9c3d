"""What the README says works when it is done as it says."""

from __future__ import annotations

import contextlib
import html
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import eventually

from mqtune.backends import find_binary
from mqtune.core.errors import ConfigurationError
from mqtune.core.experiment import Experiment
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialStatus
from mqtune.journal import Fleet, connect
from mqtune.results.display import trial_table
from mqtune.results.experiments import saved_experiments
from mqtune.results.results import Results

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The code blocks of a language, without the indentation they have in a list."""
    found, inside = [], None
    for line in README.splitlines():
        if line.strip().startswith("```"):
            if inside is None:
                inside = (line.strip()[3:], [])
            else:
                found.append(inside)
                inside = None
        elif inside is not None:
            inside[1].append(line)
    return [textwrap.dedent("\n".join(lines)) + "\n" for named, lines in found if named == language]


@contextlib.contextmanager
def terminal(commands: str, environment: dict[str, str], cwd: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """Commands typed into a shell of their own, ended afterwards with everything they started."""
    process = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def a_head_node(tmp_path: Path, mqtune_home: Path) -> dict[str, str]:
    """The environment of a machine with redis-server, mqtune and celery on its PATH."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "redis-server").symlink_to(find_binary().path)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "MQTUNE_HOME": str(mqtune_home)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_the_three_terminals_work_as_written(a_head_node: dict[str, str], tmp_path: Path):
    port = str(free_port())
    redis, second, third = (
        text.replace("@head:", "@127.0.0.1:").replace("6379", port)
        for text in blocks("")
        if "redis-server" in text or "MQTUNE_BROKER" in text
    )
    assert "mqtune worker" in second
    # Which other tests start.
    assert "celery -A workers.gpu worker" in README

    # Redis writes its files where it is started.
    with terminal(redis, a_head_node, cwd=tmp_path):
        url = f"redis://:secret@127.0.0.1:{port}/0"
        eventually(lambda: can_connect(url), 20)
        with terminal(second, a_head_node), contextlib.closing(connect(url)) as client:
            eventually(lambda: Fleet(client, patience_s=5).workers(), 30)
            # To its end it is driven by other tests, on a worker of its own.
            with terminal(third, a_head_node) as driver:
                eventually(lambda: driver.poll() is not None or ended(), 90)
                assert driver.poll() is None, driver.communicate()

    assert {*ended()} <= {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}


def ended() -> list[TrialStatus]:
    """How trials have ended of the experiments that drivers on this machine have kept."""
    found: list[TrialStatus] = []
    for folder in saved_experiments():
        # Its driver may not have begun.
        with contextlib.suppress(ConfigurationError):
            found += [result.status for result in Results.load(folder) if result.status.is_terminal]
    return found


def can_connect(url: str) -> bool:
    with contextlib.suppress(Exception):
        connect(url, timing=Timing(connect_timeout_s=1.0)).close()
        return True
    return False


def test_the_script_works_as_written(tmp_path: Path, mqtune_home: Path):
    (script,) = blocks("python")
    (tmp_path / "tune.py").write_text(script)

    done = subprocess.run([sys.executable, "tune.py"], cwd=tmp_path, capture_output=True, text=True, timeout=150)

    assert done.returncode == 0, done.stderr
    results = Results.load("quickstart")
    assert len(results.trials) == 64
    assert done.stdout == f"{results.best.config} {results.budget}\n"
    # It shows what ASHA is for: trials are stopped before they have run to their ends.
    assert results.budget.used < results.budget.saved


def test_both_commands_of_the_readme_are_there_and_name_extras_that_exist():
    commands = [text.strip() for text in blocks("") if "pip install" in text]

    assert commands == ["pip install -e '.[demo]' && mqtune demo", "pip install -e . --group test && pytest"]


def test_every_link_of_the_docs_leads_somewhere():
    for page in (
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "benchmarks" / "README.md",
    ):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_picture_of_the_demo_shows_what_the_demo_shows_now():
    heads = [
        str(column.header) for column in trial_table(Experiment("e", metric="m", mode="min"), [], width=120).columns
    ]
    svg = html.unescape(re.sub(r"<[^>]+>", " ", (ROOT / "docs" / "demo.svg").read_text()))
    picture = svg.replace("\xa0", " ")

    assert re.search(r"\s+".join(heads), picture)
    assert re.search(r"\d+/150 trials: ", picture)
    assert re.search(r"best accuracy=0\.\d+ in trial \d{4}: width=", picture)
    said = re.findall(r'print\(f?"\\?n?([a-z][a-z 0-9]+)', (ROOT / "examples" / "digits.py").read_text())
    assert len(said) == 4
    assert all(words in picture for words in said)
