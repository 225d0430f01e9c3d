"""The requirement and the command with which pip installs this mqtune again."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

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
