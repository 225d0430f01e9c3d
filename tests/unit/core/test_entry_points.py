"""Entry points: found by name, imported when asked for, and otherwise not looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqtune.core.entry_points import load_point, names_in
from mqtune.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("package", "name", "said"),
    [
        ("theirs", "absent", "absent can't be imported (No module named 'not_there'); reinstall theirs"),
        ("mqtune", "optuna", "optuna can't be imported (No module named 'not_there'); pip install"),
        ("theirs", "other", "no installed package adds 'other' to mqtune.tests.theirs.other; there are: present"),
    ],
)
def test_an_entry_point_that_can_not_be_had_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, name: str, said: str
) -> None:
    group = f"mqtune.tests.{package}.{name}"
    info = tmp_path / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    registered = "present" if name == "other" else name
    (info / "entry_points.txt").write_text(f"[{group}]\n{registered} = not_there:Thing\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert names_in(group) == [registered]
    with pytest.raises(ConfigurationError) as raised:
        load_point(group, name)
    assert said in str(raised.value)
