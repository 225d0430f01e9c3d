"""The kernel knows no service, services use its ports and facades, and each can be removed."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from itertools import combinations, permutations
from pathlib import Path
from typing import Final

import pytest
from pages import ROOT, nodes_of
from test_layers import imports_of

from mqtune.services import driver, settings, worker

PACKAGE: Final = ROOT / "mqtune"
SERVICES: Final = sorted(path.name for path in (PACKAGE / "services").iterdir() if (path / "__init__.py").is_file())
#: Services import the facades and the ports of these folders alone.
BY_FACADE: Final = ("backends", "driver", "journal", "trainable", "worker")
KERNEL: Final = (*BY_FACADE, "checkpoints", "core", "schedulers", "search")


def kernel_that_imports_services(root: Path) -> list[str]:
    parts = tuple(f"{part}/" for part in KERNEL)
    return [
        str(each)
        for each in imports_of(root)
        if each.module.startswith("mqtune.services") and each.file.startswith(parts)
    ]


def services_beside_the_ports(root: Path) -> Iterator[str]:
    """Yield imports of services other than ports, facades and services in the docstring."""
    for each in imports_of(root):
        found = re.match(r"services/(\w+)/", each.file)
        parts = each.module.split(".")[1:]
        if found is None or each.module.partition(".")[0] != "mqtune":
            continue
        if parts[0] in BY_FACADE and is_inside(root / parts[0], parts[1]) and parts[1] != "ports":
            yield str(each)
        if parts[0] == "services" and parts[1] != found[1]:
            doc = (root / "services" / found[1] / "__init__.py").read_text()
            if f"``{parts[1]}``" not in doc:
                yield str(each)


def is_inside(folder: Path, name: str) -> bool:
    """Return whether a name is a module or a room of a folder, and not a name of its facade."""
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def test_the_kernel_imports_no_service_and_services_meet_it_at_ports_and_facades() -> None:
    assert kernel_that_imports_services(PACKAGE) == []
    assert [*services_beside_the_ports(PACKAGE)] == []


def test_such_imports_are_found(tmp_path: Path) -> None:
    for file, text in {
        "worker/loop/runtime.py": "from mqtune.services.health import check",
        "worker/ports.py": "",
        "services/health/__init__.py": '"""It needs ``usage``."""',
        "services/health/worker.py": (
            "import mqtune.services.usage.worker\nfrom mqtune.worker import ports\nimport mqtune.worker.loop.runtime\nimport mqtune.services.logs.worker"
        ),
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)

    assert kernel_that_imports_services(tmp_path) == ["worker/loop/runtime.py:1 imports mqtune.services.health.check"]
    assert [*services_beside_the_ports(tmp_path)] == [
        "services/health/worker.py:3 imports mqtune.worker.loop.runtime",
        "services/health/worker.py:4 imports mqtune.services.logs.worker",
    ]


def test_each_service_with_a_part_for_a_side_is_in_the_list_of_that_side() -> None:
    for side, listed in {"worker": worker.SERVICES, "driver": driver.SERVICES}.items():
        folders = {path.parent.name for path in (PACKAGE / "services").glob(f"*/{side}.py")}
        # The settings ask these, before there is a driver.
        of_settings = (*driver.PROJECTS, *driver.CHECKS) if side == "driver" else ()
        planned = {make.__module__.split(".")[2] for make in of_settings}

        assert {make.__module__.split(".")[2] for make in listed} | planned == folders


def test_each_service_with_settings_of_a_worker_is_in_their_list() -> None:
    folders = {path.parent.name for path in (PACKAGE / "services").glob("*/settings.py")}

    assert {kind.__module__.split(".")[2] for kind in settings.SETTINGS} == folders


def doc_of(service: str) -> str:
    return (PACKAGE / "services" / service / "__init__.py").read_text()


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_names_its_places_outside_its_folder(service: str) -> None:
    _, found, text = doc_of(service).partition("Other places: ")
    places = {name for name in re.findall(r"`([\w./-]+)`", text) if "/" in name or "." in name}
    importers = {
        f"mqtune/{each.file}"
        for each in imports_of(PACKAGE)
        if each.module.startswith(f"mqtune.services.{service}.") and not each.file.startswith("services/")
    }

    assert found
    assert [place for place in sorted(places) if not (ROOT / place).exists()] == []
    assert importers - places == set()


def hooks_in_code(service: str) -> set[str]:
    """The hooks that a service overrides, without those that the table leaves out."""
    hooks: set[str] = set()
    for port, name in {"worker": "WorkerService", "driver": "DriverService"}.items():
        known = {
            each.name for each in class_in(PACKAGE / port / "ports.py", name).body if isinstance(each, ast.FunctionDef)
        }
        for path in (PACKAGE / "services" / service).rglob("*.py"):
            for node in nodes_of(path):
                if isinstance(node, ast.ClassDef) and name in map(ast.unparse, node.bases):
                    hooks |= known & {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return hooks - {"start", "drain", "close"}


def class_in(path: Path, name: str) -> ast.ClassDef:
    classes = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef))
    return next(node for node in classes if node.name == name)


def test_the_table_of_the_services_names_their_hooks() -> None:
    section = (ROOT / "docs" / "design.md").read_text().split("## The services")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")][2:]
    listed: dict[str, set[str]] = {}
    service = ""
    for cells in rows:
        service = cells[0].strip(" `") or service
        listed.setdefault(service, set()).update(re.findall(r"`(\w+)`", "".join(cells[2:])))

    assert listed == {service: hooks_in_code(service) for service in SERVICES}


SCRIPT: Final = """
import sys
import mqtune

def train(config):
    for step in range(3):
        mqtune.report({"loss": config["lr"] / (step + 1)})

if __name__ == "__main__":
    results = mqtune.Tuner(
        train, {"lr": mqtune.uniform(0, 1)}, metric="loss", mode="min", max_trials=3, name="without", searcher="random", run=mqtune.RunOptions(progress=False)
    ).run()
    print([trial.status.value for trial in results.trials], len([*results.reports()]))
    print(*sorted(name for name in sys.modules if name.startswith("mqtune.services.")))
"""


#: For any two services one of these runs has the first and not the second, so that none can lean on another unnoticed.
#: A service is missing from its own half of the runs.
RUNS: Final = 6
MISSING: Final = dict(zip(SERVICES, combinations(range(RUNS), RUNS // 2), strict=False))


def without(services: Collection[str], folder: Path) -> Path:
    """Copy the package to a folder, without some services and their lines in the lists."""
    shutil.copytree(PACKAGE, folder / "mqtune", ignore=shutil.ignore_patterns("__pycache__"))
    for service in services:
        shutil.rmtree(folder / "mqtune" / "services" / service)
        for side in ("driver", "settings", "worker"):
            path = folder / "mqtune" / "services" / f"{side}.py"
            text = path.read_text()
            listed = re.findall(rf"^from mqtune\.services\.{service}\.settings import (\w+)$", text, re.MULTILINE)
            text = re.sub(rf"^from mqtune\.services\.{service}\b.* import .*\n", "", text, flags=re.MULTILINE)
            entry = "|".join([rf"{service}\.\w*for_(?:{side}|settings)", *listed])
            path.write_text(re.sub(rf"\b(?:{entry}),?", "", text))
    return folder


def test_each_service_is_missing_from_a_run_that_has_any_other() -> None:
    assert MISSING.keys() == set(SERVICES)
    assert all(set(MISSING[one]) - set(MISSING[other]) for one, other in permutations(SERVICES, 2))


@pytest.mark.slow
@pytest.mark.parametrize("run", range(RUNS))
def test_without_some_services_trials_run_all_the_same(run: int, tmp_path: Path) -> None:
    missing = [service for service, runs in MISSING.items() if run in runs]
    place = without(missing, tmp_path / "package")
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(place), "MQTUNE_HOME": str(tmp_path / "home")}

    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )

    assert done.returncode == 0, f"without {missing}: {done.stderr}"
    trials, imported = done.stdout.splitlines()
    assert trials == "['completed', 'completed', 'completed'] 9"
    assert not [service for service in missing if f"mqtune.services.{service}" in imported]


#: The lines of the kernel's files that a reader of a trial's whole life needs. Lower it; the aim is 12,000.
MOST_LINES: Final = 14_719
#: The most modules of mqtune that a loop imports, by its file.
MOST_IMPORTS: Final = {"driver/loop/loop.py": 14}


def test_the_list_of_the_kernel_names_files_that_are_there_and_does_not_grow() -> None:
    page = (ROOT / "docs" / "design.md").read_text()
    section = page.split("## The kernel, in reading order")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in section.splitlines() if line.startswith("|")][2:]
    files = [PACKAGE / name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row)]

    assert len(files) == len(set(files)) > 30
    assert sum(len(file.read_text().splitlines()) for file in files) <= MOST_LINES


@pytest.mark.parametrize(("file", "most"), MOST_IMPORTS.items())
def test_a_loop_knows_only_the_parts_that_it_works_with(file: str, most: int) -> None:
    names = [each.module for each in imports_of(PACKAGE) if each.file == file and each.module.startswith("mqtune.")]

    assert 0 < len({name.rpartition(".")[0] for name in names}) <= most
