"""The examples of docs/results.md run."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner
from pages import ROOT

from mqtune.cli import group

PAGE: Final = ROOT / "docs" / "results.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()

    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "results_page.py").write_text("import mqtune\n\n" + "\n\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("results_page")
    (tmp_path / "curves.png").unlink()
    commands = [shlex.split(line)[1:] for line in re.findall(r"^\$ (.*)$", text, re.MULTILINE)]
    done = [CliRunner().invoke(group, command) for command in commands]

    assert [each.stderr for each in done] == ["", "", ""]
    assert {path.name for path in tmp_path.glob("*.*")} >= {"curves.png", "importances.svg", "timeline.html"}
