"""``deploy/accounts.sh``, run time and again: teams and other accounts outlive a run, and a person may administer Redis."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from pages import ROOT
from restartable import KeptServer
from servers import the_server

pytestmark = [
    pytest.mark.skipif(shutil.which("openssl") is None, reason="passwords are made with openssl"),
]

PAGE = ROOT / "docs/how-to/passwords.md"


class Folder:
    """A folder with accounts, as somebody who deploys Redis has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT)}

    def write(self, *words: str, script: str = "accounts.sh") -> subprocess.CompletedProcess[str]:
        """Run a script of ``deploy/`` for this folder."""
        command = [str(ROOT / "deploy" / script), str(self.path), *words]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)

    @property
    def accounts(self) -> dict[str, str]:
        return dict(re.findall(r"^user (\S+) (.*)$", (self.path / "users.acl").read_text(), re.MULTILINE))

    @property
    def passwords(self) -> dict[str, str]:
        return dict(re.findall(r"^REDIS_(\w+)_PASSWORD=(.+)$", (self.path / "passwords.env").read_text(), re.MULTILINE))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "secrets")


def test_teams_and_added_accounts_outlive_an_upgrade_and_are_dropped_by_name_alone(folder: Folder) -> None:
    assert folder.write("team-a", "b").returncode == 0
    first, passwords = folder.accounts, folder.passwords
    with (folder.path / "users.acl").open("a") as file:
        file.write("user erin on #00 ~x\nuser own-driver on #00 ~y\n")

    again = folder.write()

    assert again.returncode == 0, again.stderr
    assert folder.accounts == {**first, "erin": "on #00 ~x", "own-driver": "on #00 ~y"}
    assert folder.passwords == passwords
    assert "erin stays as it is; --drop erin removes it" in again.stderr

    dropped = folder.write("c", "--drop", "team-a", "--drop", "erin")

    assert "team-a-driver is dropped" in dropped.stderr
    assert folder.accounts.keys() == (first.keys() | {"c-driver", "own-driver"}) - {"team-a-driver"}


class Deployed(KeptServer):
    """A server that reads the accounts of a folder, from a file of its own."""

    def __init__(self, folder: Folder, place: Path) -> None:
        assert folder.write("team-a").returncode == 0
        self.folder = folder
        self.accounts_file = place / "users.acl"
        shutil.copy(folder.path / "users.acl", self.accounts_file)
        super().__init__(place, folder.passwords["ADMIN"], username="admin")
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--aclfile", str(self.accounts_file), "--save", "")
        self.command = [str(the_server().path), "--dir", str(place), *options]
        self.start()

    def logs_in(self, user: str, password: str) -> Any:
        """A connection by an account, or None where it is refused."""
        client = redis.Redis(port=self.port, username=user, password=password)
        try:
            client.ping()
        except redis.exceptions.AuthenticationError:
            client.close()
            return None
        return client


@pytest.fixture
def deployed(folder: Folder, tmp_path: Path) -> Iterator[Deployed]:
    with contextlib.closing(Deployed(folder, tmp_path)) as deployed:
        yield deployed


def hash_of(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


def test_a_password_is_rotated_as_the_page_says_and_both_are_valid_meanwhile(deployed: Deployed) -> None:
    steps = dict(re.findall(r'^ *```bash title="([^"]*)"\n(.*?)^ *```$', PAGE.read_text(), re.MULTILINE | re.DOTALL))
    old = deployed.folder.passwords["TEAM_A"]
    used = deployed.logs_in("team-a-driver", old)
    here = {
        "redis-1 redis-2 redis-3": "127.0.0.1",
        '-h "$host" --tls --cacert secrets/ca.crt': f'-e -h "$host" -p {deployed.port}',
        "deploy/accounts.sh": str(ROOT / "deploy/accounts.sh"),
        "secrets": str(deployed.folder.path),
    }
    assert all(words in "".join(steps.values()) for words in here)

    def run(title: str) -> None:
        text = f"set -e\n{steps['Who you are']}\nold={old}\n{steps[title]}"
        for words, own in here.items():
            text = text.replace(words, own)
        done = subprocess.run(
            ["bash", "-c", text], env=deployed.folder.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr

    run("Add the new password")
    new = deployed.folder.passwords["TEAM_A"]
    assert new != old
    for password in (old, new):
        client = deployed.logs_in("team-a-driver", password)
        assert client is not None
        client.close()
    used.ping()

    run("Remove the old password")

    assert deployed.logs_in("team-a-driver", old) is None
    changed = deployed.logs_in("team-a-driver", new)
    assert changed is not None
    changed.close()
    with pytest.raises(redis.exceptions.ConnectionError):
        used.ping()
    used.close()

    deployed.kill()
    deployed.start()

    assert deployed.logs_in("team-a-driver", old) is None, "a restart keeps it"
    assert hash_of(new) in deployed.folder.accounts["team-a-driver"]
