"""Commands that install mqtune and its extras, and entry points of packages."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from mqtune.core.entry_points import load_point, names_in
from mqtune.core.errors import ConfigurationError
from mqtune.core.version import __version__, install_command, requirement

FOLDER = {"url": "file:///home/me/my%20code/mqtune", "dir_info": {}}
CHECKOUT = {**FOLDER, "dir_info": {"editable": True}}
COMMIT = {"url": "https://git.example/mqtune.git", "vcs_info": {"vcs": "git", "commit_id": "0123abc"}}


@pytest.mark.parametrize(
    ("installed_from", "required", "command"),
    [
        (CHECKOUT, f"mqtune @ {FOLDER['url']}", "pip install -e '/home/me/my code/mqtune[ui]'"),
        (FOLDER, f"mqtune @ {FOLDER['url']}", f"pip install 'mqtune[ui] @ {FOLDER['url']}'"),
        (COMMIT, f"mqtune @ git+{COMMIT['url']}@0123abc", f"pip install 'mqtune[ui] @ git+{COMMIT['url']}@0123abc'"),
        (None, f"mqtune=={__version__}", f"pip install 'mqtune[ui]=={__version__}'"),
    ],
)
def test_mqtune_is_installed_again_from_where_it_came(
    monkeypatch: pytest.MonkeyPatch, installed_from: object, required: str, command: str
) -> None:
    text = None if installed_from is None else json.dumps(installed_from)
    found = SimpleNamespace(read_text=lambda _: text)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: found)

    assert requirement() == required
    assert install_command("ui") == command


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
