"""An arrow may only point down: the floors of the design, and what each part may import from outside."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

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
    "integrations": 4,
    "results": 4,
    "tuner": 4,
    "__main__": 5,
    "cli": 5,
    "testing": 5,
}
#: Parts of one floor that never import each other.
APART: Final = frozenset({("backends", "worker"), ("worker", "backends")})
#: Modules that alone may import something from outside, by what they import.
ALONE: Final = {
    "celery": {"worker/app.py", "backends/celery.py"},
    "kombu": {"worker/app.py", "backends/celery.py"},
    "redis": {"journal/", "backends/local/server.py"},
    "click": {"cli/", "__main__.py"},
    "ax": {"integrations/"},
    "optuna": {"integrations/"},
    "optuna_dashboard": {"integrations/"},
    "syne_tune": {"integrations/"},
    "keras": {"integrations/"},
    "lightgbm": {"integrations/"},
    "lightning": {"integrations/"},
    "opentelemetry": {"integrations/"},
    "transformers": {"integrations/"},
    "xgboost": {"integrations/"},
    "rich": {"results/", "cli/"},
    "matplotlib": {"results/plots/by_matplotlib.py"},
    "plotly": {"results/plots/by_plotly.py"},
    "starlette": {"cli/ui/"},
    "uvicorn": {"cli/ui/"},
}
#: What never enters a trial's process: it would cost each spare its start, and memory.
NOT_IN_TRIALS: Final = (
    "celery",
    "kombu",
    "redis",
    "numpy",
    "rich",
    "click",
    "optuna",
    "ax",
    "syne_tune",
    "matplotlib",
    "plotly",
    "starlette",
    "uvicorn",
    "asyncio",
    "multiprocessing",
)
#: Other tuners, and what trains: only ``mqtune/integrations`` imports it, once it is asked for.
PARTNERS: Final = {name for name, places in ALONE.items() if places == {"integrations/"}} - {"opentelemetry"} | {
    "ray",
    "torch",
}
#: Modules that import each other, until they don't.
CYCLES_TO_GO: Final[list[set[str]]] = []


class Import(NamedTuple):
    """One import in the package."""

    file: str
    line: int
    module: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


@cache
def imports_of(root: Path) -> list[Import]:
    """Every import in a package, also those inside functions; names are absolute."""
    return [*_imports_of(root)]


def _imports_of(root: Path) -> Iterator[Import]:
    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (Import(file, node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    folder = ("mqtune", *path.relative_to(root).parts)[: -node.level]
                    base = ".".join([*folder, base] if base else folder)
                # The name may be a module of its own.
                yield from (Import(file, node.lineno, f"{base}.{alias.name}") for alias in node.names)


def part_of(path: str) -> str:
    """The part of the package that a file or module belongs to."""
    return path.removesuffix(".py").split("/")[0].split(".")[0]


def arrows_up(root: Path) -> list[str]:
    """The imports that point up, or between parts that are apart."""
    found = []
    for each in imports_of(root):
        # The package itself only passes names on, when they are used.
        here, there = part_of(each.file), part_of(each.module.partition(".")[2])
        if here not in FLOORS or each.module.split(".")[0] != "mqtune":
            continue
        if there not in FLOORS:
            # The package itself, through which everything can be had, or a name of it.
            there = "tuner"
        if FLOORS[there] > FLOORS[here] or (here, there) in APART:
            found.append(str(each))
    return found


def strangers(root: Path) -> list[str]:
    """The imports of something from outside where it has no business."""
    return [
        str(each)
        for each in imports_of(root)
        if (allowed := ALONE.get(each.module.split(".")[0])) is not None
        and not any(each.file.startswith(place) for place in allowed)
    ]


def modules_of(root: Path) -> dict[str, str]:
    """The files of a package by the names of their modules, relative to the package; its own face is left out."""
    files = (path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return {
        file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file
        for file in files
        if file != "__init__.py"
    }


def cycles(root: Path) -> list[set[str]]:
    """The groups of modules that import each other, also in functions or for type checking alone."""
    modules = modules_of(root)
    names = {file: name for name, file in modules.items()}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for each in imports_of(root):
        target = each.module.partition(".")[2]
        there = target if target in modules else target.rpartition(".")[0]
        if each.file in names and there in modules and each.module.startswith("mqtune."):
            graph[names[each.file]].add(there)
    return [group for group in _strongly_connected(graph) if len(group) > 1]


def _strongly_connected(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of nodes each of which can be reached from each other one."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {frozenset(other for other in reached[name] if name in reached[other]) | {name} for name in graph}
    return sorted(map(set, groups), key=sorted)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def test_no_modules_import_each_other() -> None:
    assert [group for group in cycles(ROOT) if group not in CYCLES_TO_GO] == []
    assert [group for group in CYCLES_TO_GO if group not in cycles(ROOT)] == [], "it is gone: take it out of the list"


def test_what_is_looked_for_is_found_also_in_functions_and_by_relative_imports(tmp_path: Path) -> None:
    for file, code in {
        "core/events.py": "def f():\n    from .. import driver",
        "worker/runtime.py": "if True:\n    from redis.exceptions import RedisError\n    import mqtune.backends.celery as c",
        "journal/a.py": "from mqtune.journal.b import f",
        "journal/b.py": "if TYPE_CHECKING:\n    from . import a",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(code)

    assert [each.partition(":")[0] for each in arrows_up(tmp_path)] == ["core/events.py", "worker/runtime.py"]
    assert len(strangers(tmp_path)) == 1
    assert cycles(tmp_path) == [{"journal.a", "journal.b"}]


def test_every_part_has_a_floor() -> None:
    parts = {part_of(path.relative_to(ROOT).as_posix()) for path in ROOT.rglob("*.py")} - {"__init__"}

    assert parts - set(FLOORS) == set()


def test_no_arrow_points_up() -> None:
    assert arrows_up(ROOT) == []


def test_libraries_stay_where_they_belong() -> None:
    assert strangers(ROOT) == []


@pytest.mark.parametrize(
    "code",
    [
        "import mqtune.trainable.process.importer",
        # What user code does in a trial.
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
    core = {"codec", "errors", "lazy", "machine", "text", "trial", "version"}
    assert {part_of(name) for name in own} <= {"checkpoints", "core", "trainable"}
    assert {name.removeprefix("core.") for name in own if name.startswith("core.")} <= core


def test_no_public_name_imports_a_partner() -> None:
    # Also none that is not installed here: what is tried counts.
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
