"""What the README says works when it is done as it says."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from pages import ROOT
from waiting import eventually
from walkthrough import Block, walkthrough

from mqtune.core.errors import ConfigurationError
from mqtune.core.trial import TrialStatus
from mqtune.results.experiments import saved_experiments
from mqtune.results.results import Results

README = (ROOT / "README.md").read_text()
#: The code blocks, without the indentation they have in a list: each with its language.
BLOCKS = [
    (language, textwrap.dedent(text))
    for language, text in re.findall(r"^ *```(\w*)\n(.*?)^ *```$", README, re.MULTILINE | re.DOTALL)
]


def test_the_three_terminals_work_as_written(tmp_path: Path):
    terminals = [text.replace("@head:", "@127.0.0.1:") for _, text in BLOCKS if "6379" in text]
    # Which other tests start.
    assert "celery -A workers.gpu worker" in README

    with walkthrough(tmp_path / "code") as walked:
        shutil.copytree(ROOT / "examples", tmp_path / "code" / "examples")
        for text, shown in zip(terminals, ("… Ready to accept connections\n", "… ready.\n", ""), strict=True):
            typed = "".join(f"$ {line}\n" for line in text.splitlines())
            walked.take(Block("console", "Terminal", typed + shown))
        # To its end it is driven by other tests, on a worker of its own.
        eventually(ended, 90)

    assert {*ended()} <= {TrialStatus.COMPLETED, TrialStatus.EARLY_STOPPED}


def ended() -> list[TrialStatus]:
    found: list[TrialStatus] = []
    for folder in saved_experiments():
        # Its driver may not have begun.
        with contextlib.suppress(ConfigurationError):
            found += [result.status for result in Results.load(folder) if result.status.is_terminal]
    return found


def test_the_script_works_as_written(tmp_path: Path):
    (script,) = [text for language, text in BLOCKS if language == "python"]
    (tmp_path / "tune.py").write_text(script)

    done = subprocess.run([sys.executable, "tune.py"], cwd=tmp_path, capture_output=True, text=True, timeout=150)

    assert done.returncode == 0, done.stderr
    results = Results.load("quickstart")
    assert len(results.trials) == 64
    assert done.stdout == f"{results.best.config} {results.budget}\n"
    # It shows what ASHA is for: trials are stopped before they have run to their ends.
    assert results.budget.used < results.budget.saved


def test_every_link_of_the_docs_leads_somewhere():
    pages = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")
    for page in (*map(ROOT.joinpath, pages), *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
