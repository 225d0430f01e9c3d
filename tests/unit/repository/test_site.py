"""The site builds without a warning, fetches nothing, and its reference matches the code."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest
from built_site import built_site
from cli_page import with_causes
from pages import CODE, ROOT, nodes_of
from walkthrough import blocks_of

import mqtune
from mqtune.core import errors, events

REFERENCE: Final = ROOT / "docs" / "reference"
#: The test that runs the Python of each page.
RUN_BY: Final = {
    "adapters.md": "unit/repository/test_adapters.py",
    "ax.md": "acceptance/test_tutorials.py",
    "checkpoints.md": "unit/repository/test_docs.py",
    "deciding.md": "unit/repository/test_docs.py",
    "extensions.md": "unit/repository/test_docs.py",
    "how-to/after-the-search.md": "acceptance/test_tutorials.py",
    "how-to/from-*.md": "acceptance/test_tutorials.py",
    "how-to/several-machines.md": "acceptance/test_several_machines.py",
    "how-to/what-if.md": "unit/results/test_whatif.py",
    "how-to/shared-fleet.md": "unit/repository/test_site.py",
    "loggers.md": "unit/integrations/test_loggers.py",
    "outside.md": "acceptance/test_asking_and_telling.py",
    "results.md": "unit/repository/test_docs.py",
    "processes.md": "unit/repository/test_docs.py",
    "search.md": "unit/repository/test_docs.py",
    "how-to/tune.md": "acceptance/test_tune.py",
    "trials.md": "unit/repository/test_docs.py",
    "tutorials/*.md": "acceptance/test_tutorials.py",
    "workers.md": "unit/repository/test_site.py",
}
#: Variables that only mqtune's own processes set for each other.
OWN_VARIABLES: Final = {
    f"MQTUNE_{name}" for name in ["CHILD_NOTE", "IMPORTER_FD", "OWNER_FD", "RELAY", "SUBMISSION", "WORKER"]
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_site(tmp_path_factory.getbasetemp())


@pytest.mark.slow
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\s\"'>]*)")
    pages = [*site.rglob("*.html")]

    assert len(pages) > 20
    assert {found for page in pages for found in loaded.findall(page.read_text())} == set()
    fetching = re.compile(r"(?:url\(|@import)\W*https?:")
    assert [sheet for sheet in site.rglob("*.css") if fetching.search(sheet.read_text())] == []


def test_each_page_with_python_has_a_test_that_runs_it() -> None:
    docs = ROOT / "docs"
    programs = {page.relative_to(docs): blocks_of(page) for page in docs.rglob("*.md")}
    with_python = {page for page, blocks in programs.items() if any(block.language == "python" for block in blocks)}

    assert {page for page in with_python if not any(fnmatch(str(page), known) for known in RUN_BY)} == set()
    assert [test for test in RUN_BY.values() if not (ROOT / "tests" / test).is_file()] == []
    for page, blocks in programs.items():
        for block in blocks:
            if block.language == "python":
                compile(block.text, str(page), "exec")


@pytest.mark.parametrize("page", ["workers.md", "how-to/shared-fleet.md"])
def test_the_example_of_a_tuner_is_taken(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (block,) = [block for block in blocks_of(ROOT / "docs" / page) if block.language == "python"]
    names = {"mqtune": mqtune, "train": "train.py", "space": {"lr": mqtune.uniform(0, 1)}}

    exec(block.text, names)

    assert isinstance(names["tuner"], mqtune.Tuner)


def test_each_public_name_has_one_entry() -> None:
    text = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    entries = Counter(re.findall(r"^::: mqtune\.(?:[\w.]+\.)?(\w+)$", text, re.MULTILINE))
    homes = (mqtune, mqtune.schedulers, mqtune.schedulers.stopping, mqtune.search)

    for name in {name for home in homes for name in home.__all__} - {"__version__", "stopping"}:
        assert entries[name] == 1, name


def test_each_event_has_an_entry() -> None:
    kinds = {name for name, kind in vars(events).items() if inspect.isclass(kind) and "KIND" in vars(kind)}

    told = set(re.findall(r"^        - (\w+)$", (REFERENCE / "wire.md").read_text(), re.MULTILINE))
    assert {name for name in kinds if not name.startswith("_")} <= told


def test_each_error_is_told_with_its_cause_and_a_way_out() -> None:
    page = with_causes((REFERENCE / "errors.md").read_text())
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    rows = {cells[0].strip("`"): cells[1:] for cells in lines}

    assert sorted(rows) == sorted(name for name, kind in vars(errors).items() if inspect.isclass(kind))
    assert [name for name, cells in rows.items() if len(cells) != 2 or not all(cells)] == []
    assert rows["SpaceError"][0] == "A search space, or a value for it, is invalid."


def test_each_variable_of_the_environment_is_told() -> None:
    named = {
        found
        for path in (ROOT / "mqtune").rglob("*.py")
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in re.findall(r"^MQTUNE_\w+$", node.value)
    }

    pages = ("cli.md", "processes.md")
    told = {name for page in pages for name in CODE.findall((ROOT / "docs" / page).read_text())}
    workers = set(re.findall(r"MQTUNE_\w+", (ROOT / "workers" / "worker.env.example").read_text()))
    assert named - told - workers - OWN_VARIABLES == set()
    assert {name for name in told if name.startswith("MQTUNE_")} <= named | workers
