"""What docs/search.md says is so: its names are there, and its examples run as far as they need no worker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import mqtune
from mqtune.search.base import SEARCHERS

PAGE: Final = (Path(__file__).parents[3] / "docs" / "search.md").read_text()
BLOCKS: Final = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_every_domain_of_the_table_is_there_with_its_arguments() -> None:
    rows = [line for line in PAGE.partition("| domain | gives |")[2].partition("\n\n")[0].splitlines() if "(" in line]

    calls = [call for row in rows for call in re.findall(r"`(\w+)\(([^`]*)\)`", row.split("|")[1])]
    assert len(calls) >= 15
    for name, arguments in calls:
        parameters = getattr(mqtune, name).__code__.co_varnames
        assert list(parameters[: len(arguments.split(", "))]) == arguments.split(", "), name


def test_every_name_of_mqtune_on_the_page_is_there() -> None:
    for name in set(re.findall(r"\bmqtune\.([A-Za-z]\w*)", PAGE)) - {"integrations", "testing"}:
        assert hasattr(mqtune, name), name
    for named in SEARCHERS:
        assert f'"{named}"' in PAGE


# Of what Ax does by itself.
@pytest.mark.filterwarnings(r"ignore:::ax\b")
@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ("ax", "syne_tune"):
        if re.search(rf"integrations\.{extra}\w* ", BLOCKS[number]):
            # It also passes over what they warn of on import.
            pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "train.py").write_text("")

    exec(compile(BLOCKS[number], f"docs/search.md, example {number}", "exec"), {"mqtune": mqtune, "__name__": "page"})
