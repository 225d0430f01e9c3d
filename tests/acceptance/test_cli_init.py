"""``mqtune init``: the project that it writes works as it is."""

from __future__ import annotations

import configparser
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import yaml
from faces import said

from mqtune.cli import group
from mqtune.core.version import requirement, source
from mqtune.results.results import Results


def test_a_starter_project_runs_and_its_workers_and_containers_are_told_the_same(tmp_path: Path, mqtune_home: Path):
    folder = tmp_path / "My Project 1"
    assert said("init", str(folder)).endswith(f"try it: cd {shlex.quote(str(folder))} && python tune.py\n")

    environment = {name: value for name, value in os.environ.items() if name != "MQTUNE_BROKER"}
    done = subprocess.run(
        [sys.executable, "tune.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "best config: {'lr': " in done.stdout
    assert len(Results.load("my-project-1")) == 20

    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(folder / "mqtune-worker.service")
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert arguments == ["worker"]
    assert Path(program).name == "mqtune"
    assert unit["Service"]["WorkingDirectory"] == str(folder)
    variables = dict(line.split("=", 1) for line in (folder / ".env").read_text().splitlines())
    assert variables["MQTUNE_BROKER"] == f"redis://:{variables['REDIS_PASSWORD']}@127.0.0.1:6379/0"
    assert stat.S_IMODE((folder / ".env").stat().st_mode) == 0o600
    assert (folder / "requirements.txt").read_text() == f"{requirement()}\n"
    services = yaml.safe_load((folder / "compose.yml").read_text())["services"]
    build = services["worker"]["build"]
    # Where mqtune was installed from a folder, the image is built with that folder at the same path.
    assert build["additional_contexts"] == {"mqtune": source().path}
    assert f"RUN --mount=type=bind,from=mqtune,target={source().path},rw pip install" in build["dockerfile_inline"]
    assert {*services} == {"redis", "worker", "driver"}
    verb, *options = services["worker"]["command"][1:]
    command = group.get_command(group.make_context("mqtune", [], resilient_parsing=True), verb)
    assert command is not None
    assert command.make_context(verb, list(options), resilient_parsing=True).params["name"] == "worker"
    assert services["driver"]["command"] == ["python", "tune.py"]


def test_a_project_replaces_no_file(tmp_path: Path):
    (tmp_path / ".gitignore").write_text("*.pyc\n")

    assert "add to it: .env __pycache__/" in said("init", str(tmp_path))
    assert (tmp_path / ".gitignore").read_text() == "*.pyc\n"
    before = (tmp_path / ".env").read_text()
    assert "already; give another folder" in said("init", str(tmp_path), code=1)
    assert (tmp_path / ".env").read_text() == before
