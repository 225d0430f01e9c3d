"""What mqtune uses of other tuners that they keep private: it is bounded, and stands here."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

import mqtune

FOLDER: Final = Path(mqtune.__file__).parent / "integrations"
#: Private members of other libraries, by the module that uses them.
KNOWN: Final = {
    "ax_private.py": {
        "_maybe_experiment",
        "_maybe_generation_strategy",
        "_data_rows",
        "_load_attempted",
    },
    "optuna_optimize.py": {
        "_thread_local",
        "_stop_flag",
        "_storage",
        "_study_id",
        "_trial_id",
        "_pop_waiting_trial_id",
        "_fixed_params",
    },
    "optuna_storage.py": {"_trial_id", "_backend"},
    "optuna_study.py": {"_storage"},
    "optuna_trial.py": {"_trial_id"},
}


def private_members(path: Path) -> set[str]:
    """The private attributes that a module uses of what is not its own: of anything but self and cls."""
    tree = ast.parse(path.read_text())
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and not is_of_self(node.value)
        and node.attr not in ("_replace", "_asdict", "_getframe")
    }


def is_of_self(node: ast.expr) -> bool:
    is_super = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    return is_super or (isinstance(node, ast.Name) and node.id in ("self", "cls"))


def test_private_members_of_other_tuners_are_used_in_these_modules_alone() -> None:
    found = {path.name: names for path in sorted(FOLDER.glob("*.py")) if (names := private_members(path))}

    assert found == KNOWN
