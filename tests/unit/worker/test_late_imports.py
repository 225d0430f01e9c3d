"""Late imports of trials: which count, and which may precede a fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtune.trainable import EnvironmentReads

#: The code of a module, and the words of its refusal.
UNSAFE = {
    "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()": "started the thread",
    "import tempfile; file = tempfile.TemporaryFile()": "opened",
}


def imported(folder: Path, modules: dict[str, str], then: str) -> Any:
    """Return what *then* prints in a process of its own that finds these installed packages."""
    packages = folder / "site-packages"
    packages.mkdir()
    for name, source in modules.items():
        (packages / f"{name}.py").write_text(source)
    head = f"import sys, json; sys.path[:0] = [{str(packages)!r}, {str(folder)!r}]\n"
    head += "from mqtune.trainable.process.late_imports import ImportWatch, preload\n"
    # Processes of modules end with it.
    tail = "\nimport os, signal; sys.stdout.flush(); [os.kill(int(p), 9) for p in open('/proc/self/task/%d/children' % os.getpid()).read().split()]; os._exit(0)"
    done = subprocess.run([sys.executable, "-c", head + then + tail], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_module_is_imported_early_only_in_the_surroundings_in_which_the_trial_has_imported_it(tmp_path: Path) -> None:
    behind = ("after_a_library", "after_the_trial", "after_the_path")
    modules = {"sets": "import os; os.environ['SET_BY_A_LIBRARY'] = '1'\n", **dict.fromkeys(behind, "")}
    trial = """
import os
watch = ImportWatch()
watch.begin()
import sets, after_a_library
os.environ["SECRET"] = "swordfish"
import after_the_trial
del os.environ["SECRET"]
sys.path.insert(0, "/elsewhere")
import after_the_path
said = watch.end()
"""
    forget = """
for name in ("sets", "after_a_library", "after_the_trial", "after_the_path"):
    del sys.modules[name]
del os.environ["SET_BY_A_LIBRARY"], sys.path[0]
"""

    said, (loaded, unsafe) = imported(tmp_path, modules, trial + forget + "print(json.dumps([said, preload(said)]))")

    assert [names for _, names in said] == [["sets"], ["after_a_library"], ["after_the_trial"], ["after_the_path"]]
    assert "swordfish" not in str(said)
    assert (loaded, unsafe) == (["sets", "after_a_library"], None)


@pytest.mark.parametrize("source", UNSAFE)
def test_an_import_that_leaves_something_no_fork_should_have_is_not_safe(tmp_path: Path, source: str) -> None:
    modules = {"sound": "", "unsafe": source, "behind": ""}

    loaded, unsafe = imported(tmp_path, modules, "print(json.dumps(preload([({}, ['sound', 'unsafe', 'behind'])])))")

    assert loaded == ["sound"]
    assert unsafe[0] == "unsafe"
    assert UNSAFE[source] in unsafe[1]


@pytest.mark.parametrize(
    ("way", "sees"),
    [
        (lambda: os.getenv("LOOKED_AT"), True),
        (lambda: os.environ.get("LOOKED_AT"), True),
        (lambda: os.environ["LOOKED_AT"], True),
        (lambda: "LOOKED_AT" in os.environ, True),
        (lambda: os.environ.copy(), True),
        (lambda: os.environ["PATH"], False),
    ],
)
def test_each_read_of_a_variable_is_seen(
    monkeypatch: pytest.MonkeyPatch, way: Callable[[], object], sees: bool
) -> None:
    monkeypatch.setenv("LOOKED_AT", "0")
    before = os.environ, type(os.environ)
    reads = EnvironmentReads(["LOOKED_AT", "NOT_THERE"])
    with reads:
        way()
    os.environ["LOOKED_AT"]

    assert reads.seen == ({"LOOKED_AT"} if sees else set())
    assert (os.environ, type(os.environ)) == before
