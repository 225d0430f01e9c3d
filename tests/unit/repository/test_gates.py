"""That each partner has a gate: .ci/partners.toml names all modules, and tests and extras that exist."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[3]
PARTNERS: Final[dict[str, dict[str, Any]]] = tomllib.loads((ROOT / ".ci" / "partners.toml").read_text())
EXTRAS: Final[dict[str, list[str]]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
#: Modules that import no library.
OF_NO_LIBRARY: Final = {"__init__", "in_trials", "logger", "ray_folder"}


def test_each_integration_is_run_with_its_library_by_some_gate() -> None:
    checked = {path.stem for partner in PARTNERS.values() for each in partner["modules"] for path in ROOT.glob(each)}
    modules = {path.stem for path in (ROOT / "mqtune" / "integrations").glob("*.py")}

    assert modules - OF_NO_LIBRARY <= checked


@pytest.mark.parametrize("name", PARTNERS)
def test_a_partner_names_files_and_extras_that_exist(name: str) -> None:
    partner = PARTNERS[name]

    for pattern in [*partner["modules"], *partner["tests"], *partner.get("shared", ())]:
        assert list(ROOT.glob(pattern)), f"{pattern} of {name} matches no file"
    assert set(partner.get("extras", ())) <= EXTRAS.keys()
