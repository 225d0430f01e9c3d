"""What the README says works when it is done as it says."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

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


def test_every_link_of_the_docs_leads_somewhere():
    for page in (
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "benchmarks" / "README.md",
    ):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
