"""Imports point down the floors of the design, and few parts import other libraries."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from pages import nodes_of

import mqtune

ROOT: Final = Path(mqtune.__file__).parent

#: The floor of each module or folder, by its path below the package; the longest path counts.
FLOORS: Final = {
    "core": 0,
    "checkpoints": 1,
    "schedulers": 1,
    "search": 1,
    "trainable": 1,
    "journal": 2,
    "backends": 3,
    "worker": 3,
    "client": 4,
    "driver": 4,
    "extend": 4,
    "integrations": 4,
    "results": 4,
    "services": 4,
    "background": 4,
    "tuner": 4,
    "user_loop": 4,
    "__main__": 5,
    "cli": 5,
    "testing": 5,
}
#: Parts of one floor that never import each other.
APART: Final = frozenset({("backends", "worker"), ("worker", "backends")})
#: The rooms of a folder, from the lowest up: a room imports only those before it. Modules beside the rooms stand in the
#: same order. Those of one line are one room.
ROOMS: Final = {
    "journal": (
        "server",
        "exchange",
        "base",
        "files",
        "lock memory memory_server published redis states stream",
    ),
    "worker": ("host", "programs", "reports", "ports", "hooks", "attempts", "loop", "tasks"),
    "driver": ("setup", "writing", "ports", "hooks", "rules", "path", "loop", "driver", "trials"),
}
#: Modules that alone may import something from outside, by the import.
ALONE: Final = {
    "celery": {"worker/tasks/app.py", "backends/celery.py"},
    "kombu": {"worker/tasks/app.py", "worker/tasks/transport.py", "backends/celery.py"},
    "redis": {"journal/", "services/", "backends/local/server.py"},
    "click": {"cli/", "__main__.py"},
    "rich": {"results/", "cli/"},
    "matplotlib": {"results/plots/by_matplotlib.py"},
    "plotly": {"results/plots/by_plotly.py"},
    "prometheus_client": {"services/exporter/prometheus.py"},
    "starlette": {"cli/ui/"},
    "uvicorn": {"cli/ui/"},
}
ALONE.update(
    (name, {"integrations/"})
    for name in (
        "ax", "optuna", "syne_tune", "keras", "lightgbm", "lightning", "opentelemetry", "transformers", "xgboost"
    )
)  # fmt: skip
#: Imports that never enter a trial's process: each would cost each spare its start, and memory.
NOT_IN_TRIALS: Final = (
    "celery", "kombu", "redis", "numpy", "rich", "click", "optuna", "ax", "syne_tune", "matplotlib", "plotly",
    "starlette", "uvicorn", "asyncio", "msgspec", "multiprocessing",
)  # fmt: skip
#: Packages of extras: only ``mqtune/integrations`` imports it.
PARTNERS: Final = {
    "ax", "keras", "lightgbm", "lightning", "optuna", "ray", "syne_tune", "torch", "transformers", "xgboost",
}  # fmt: skip


#: Files in which the name of a module is no import, but that of a process, a group of entry points, a folder, or an attribute.
BY_NAME: Final = frozenset(
    {"backends/local/worker.py", "core/entry_points.py", "integrations/opentelemetry.py", "journal/server/script.py"}
)


class Import(NamedTuple):
    file: str
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


@cache
def imports_of(root: Path) -> list[Import]:
    """Every import in a package, also those inside functions or by a string; names are absolute."""
    return [*_imports_of(root)]


def _imports_of(root: Path) -> Iterator[Import]:
    modules = {f"mqtune.{name}" for name in modules_of(root)}
    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root).as_posix()
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                yield from (Import(file, node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    folder = ("mqtune", *path.relative_to(root).parts)[: -node.level]
                    base = ".".join([*folder, base] if base else folder)
                # The name may be a module of its own.
                yield from (Import(file, node.lineno, f"{base}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Call) and _last_name(node.func) in ("import_module", "__import__"):
                yield from (Import(file, node.lineno, name) for name in _named(node.args[0], modules))
            elif isinstance(node, ast.Constant) and node.value in modules and file not in BY_NAME:
                own = ".".join(("mqtune", *path.relative_to(root).parent.parts))
                if node.value != own:
                    yield Import(file, node.lineno, str(node.value))


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _named(module: ast.expr, modules: set[str]) -> list[str]:
    """Return the package's modules that an argument of ``import_module`` may name."""
    if isinstance(module, ast.Constant):
        return [name for name in [str(module.value)] if name.startswith("mqtune.")]
    begin = module.values[0] if isinstance(module, ast.JoinedStr) else None
    if not isinstance(begin, ast.Constant):
        return []
    return sorted(name for name in modules if name.startswith(str(begin.value)))


def part_of(path: str) -> str:
    """The part of the package that a file or module belongs to."""
    return path.removesuffix(".py").split("/")[0].split(".")[0]


def test_no_arrow_points_up() -> None:
    found = []
    for each in imports_of(ROOT):
        # The package itself only passes names on, when they are used.
        here, there = part_of(each.file), part_of(each.module.partition(".")[2])
        if here not in FLOORS or each.module.split(".")[0] != "mqtune":
            continue
        if there not in FLOORS:
            # The package itself, through which everything can be had, or a name of it.
            there = "tuner"
        if FLOORS[there] > FLOORS[here] or (here, there) in APART:
            found.append(str(each))
    assert found == []


def arrows_up_in(root: Path, folder: str) -> list[str]:
    """Return the imports in a folder that point to a higher room or to the folder's facade."""
    order = {name: floor for floor, names in enumerate(ROOMS[folder]) for name in names.split()}
    found = []
    for each in imports_of(root):
        parts, target = each.file.removesuffix(".py").split("/"), each.module.split(".")
        if parts[0] != folder or parts[1] == "__init__" or target[:2] != ["mqtune", folder]:
            continue
        if order.get("".join(target[2:3]), len(order)) > order[parts[1]]:
            found.append(str(each))
    return found


@pytest.mark.parametrize("folder", ROOMS)
def test_within_a_folder_no_arrow_points_to_a_higher_room(folder: str) -> None:
    rooms = {part for line in ROOMS[folder] for part in line.split()}
    there = {
        path.stem for path in (ROOT / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    }

    assert there - {"__init__"} == rooms
    assert arrows_up_in(ROOT, folder) == []


def test_the_design_has_the_rooms_in_their_order() -> None:
    table = (ROOT.parent / "docs" / "design.md").read_text().split("**Rooms.**")[1].split("\n\n")[1]
    listed: dict[str, list[str]] = {}
    folder = ""
    for cells in (line.strip("|").split("|") for line in table.splitlines()[2:]):
        folder = cells[0].strip(" `/") or folder
        listed.setdefault(folder, []).extend(re.findall(r"`(\w+)(?:/|\.py)`", cells[1]))

    assert listed.keys() == ROOMS.keys()
    for folder, names in listed.items():
        order = {name: floor for floor, line in enumerate(ROOMS[folder]) for name in line.split()}
        floors = [order[name] for name in names]
        assert floors == sorted(floors, reverse=True)
        assert {name for name in order if (ROOT / folder / name).is_dir()} <= {*names}


def test_an_arrow_to_a_higher_room_or_to_the_facade_is_found(tmp_path: Path) -> None:
    for file, code in {
        "worker/host/devices.py": "from mqtune.worker.attempts import slots\nfrom mqtune.worker import Slots",
        "worker/attempts/slots.py": "from mqtune.worker.host.devices import SlotPlan\nimport mqtune.worker.ports",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(code)

    assert arrows_up_in(tmp_path, "worker") == [
        "worker/host/devices.py:1 imports mqtune.worker.attempts.slots",
        "worker/host/devices.py:2 imports mqtune.worker.Slots",
    ]


def test_libraries_stay_where_they_belong() -> None:
    found = [
        str(each)
        for each in imports_of(ROOT)
        if (allowed := ALONE.get(each.module.split(".")[0])) is not None
        and not any(each.file.startswith(place) for place in allowed)
    ]
    assert found == []


def modules_of(root: Path) -> dict[str, str]:
    """Return the files of a package by the names of their modules, without its own facade."""
    files = (path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return {
        file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file
        for file in files
        if file != "__init__.py"
    }


def a_cycle(root: Path) -> list[str]:
    """Return modules in a cycle of imports, or an empty list.

    Imports in functions and for type checking count.
    """
    modules = modules_of(root)
    names = {file: name for name, file in modules.items()}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for each in imports_of(root):
        target = each.module.partition(".")[2]
        there = target if target in modules else target.rpartition(".")[0]
        if each.file in names and there in modules and each.module.startswith("mqtune."):
            graph[names[each.file]] |= {there} - {names[each.file]}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [*error.args[1]]
    return []


def test_no_modules_import_each_other() -> None:
    assert a_cycle(ROOT) == []


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("import mqtune.journal.b", "from mqtune.journal import a"),
        ("from mqtune.journal.b import f", "def f():\n    from mqtune.journal.a import g"),
        ("import mqtune.journal.b", "if TYPE_CHECKING:\n    from . import a"),
        ("import mqtune.journal.b", "def f():\n    importlib.import_module('mqtune.journal.a')"),
        ("import mqtune.journal.b", "def f(end):\n    import_module(f'mqtune.journal.a{end}')"),
        ("import mqtune.journal.b", "HOMES = {'f': 'mqtune.journal.a'}"),
    ],
)
def test_a_cycle_is_found(tmp_path: Path, a: str, b: str) -> None:
    (tmp_path / "journal").mkdir()
    for name, code in {"a": a, "b": b, "c": "import mqtune.journal.a"}.items():
        (tmp_path / "journal" / f"{name}.py").write_text(code)

    assert set(a_cycle(tmp_path)) == {"journal.a", "journal.b"}


def test_every_part_has_a_floor() -> None:
    parts = {part_of(path.relative_to(ROOT).as_posix()) for path in ROOT.rglob("*.py")} - {"__init__"}

    assert parts - set(FLOORS) == set()


def test_integrations_import_public_packages_and_one_module_of_the_inside() -> None:
    allowed = re.compile(r"mqtune\.(integrations\.|extend\.)|mqtune\.((results|schedulers|search|checkpoints)\.)?\w+$")
    modules = {f"mqtune.{name}" for name in modules_of(ROOT)}

    inside = [
        str(each)
        for each in imports_of(ROOT)
        # The folder's own facade is no integration.
        if re.match(r"integrations/(?!__init__)", each.file) and each.module.startswith("mqtune.")
        if not allowed.match(each.module) or (each.module in modules and "integrations" not in each.module)
    ]

    assert inside == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import mqtune.trainable.process.importer",
        # The calls of user code in a trial.
        "import mqtune.trainable.process.importer; import mqtune; mqtune.report({'loss': 1}); mqtune.StopTrial",
    ],
)
def test_a_trial_process_is_light(code: str) -> None:
    probe = f"{code}\nimport sys\nprint(*sorted(sys.modules))"

    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    loaded = set(done.stdout.split())
    assert "mqtune.trainable.process.importer" in loaded
    assert {name for name in loaded if name.split(".")[0] in NOT_IN_TRIALS} == set()
    own = {name.removeprefix("mqtune.") for name in loaded if name.startswith("mqtune.")}
    core = {"calls", "codec", "errors", "labels", "lazy", "machine", "text", "trial", "version"}
    assert {part_of(name) for name in own} <= {"checkpoints", "core", "trainable"}
    assert {name.removeprefix("core.") for name in own if name.startswith("core.")} <= core


@pytest.mark.slow
def test_no_public_name_imports_a_partner() -> None:
    # An attempt counts, also for a partner that is not installed here.
    probe = f"""
import sys
tried = []
class Finder:
    def find_spec(name, path=None, target=None):
        tried.append(name.partition(".")[0])
sys.meta_path.insert(0, Finder)
import mqtune
for name in mqtune.__all__:
    getattr(mqtune, name)
print(*sorted(set(tried) & {PARTNERS!r}), "redis" in tried)
"""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    # The names that stand for code were looked up.
    assert done.stdout.split() == ["True"]
