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

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="passwords are made with openssl")

PAGE = ROOT / "docs/security.md"


class Folder:
    """A folder with accounts, as somebody who deploys Redis has it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": programs, "PYTHONPATH": str(ROOT)}

    def write(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "deploy/accounts.sh"), str(self.path), *words]
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
        file.write("user erin on #00 ~x\nuser fay on #01 ~z\nuser own-driver on #00 ~y\n")

    again = folder.write("c", "--drop", "team-a", "--drop", "erin")

    assert again.returncode == 0, again.stderr
    added = folder.accounts["c-driver"]
    kept = {**first, "c-driver": added, "fay": "on #01 ~z", "own-driver": "on #00 ~y"}
    assert folder.accounts == {name: rules for name, rules in kept.items() if name != "team-a-driver"}
    assert folder.passwords.items() >= {name: word for name, word in passwords.items() if name != "TEAM_A"}.items()
    assert "fay stays as it is; --drop fay removes it" in again.stderr
    assert "team-a-driver is dropped" in again.stderr


class Deployed(KeptServer):
    def __init__(self, folder: Folder, place: Path) -> None:
        assert folder.write("team-a").returncode == 0
        self.folder = folder
        self.accounts_file = place / "users.acl"
        shutil.copy(folder.path / "users.acl", self.accounts_file)
        super().__init__(place, folder.passwords["ADMIN"], username="admin")
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--aclfile", str(self.accounts_file), "--save", "")
        self.command = [str(the_server().path), "--dir", str(place), *options]
        self.start()

    def client_of(self, user: str, password: str) -> Any:
        return redis.Redis(port=self.port, username=user, password=password)

    def lets_in(self, user: str, password: str) -> bool:
        with contextlib.closing(self.client_of(user, password)) as client:
            try:
                return bool(client.ping())
            except redis.exceptions.AuthenticationError:
                return False


@pytest.fixture
def deployed(folder: Folder, tmp_path: Path) -> Iterator[Deployed]:
    with contextlib.closing(Deployed(folder, tmp_path)) as deployed:
        yield deployed


def test_a_password_is_rotated_as_the_page_says_and_both_are_valid_meanwhile(deployed: Deployed) -> None:
    steps = dict(re.findall(r'^ *```bash title="([^"]*)"\n(.*?)^ *```$', PAGE.read_text(), re.MULTILINE | re.DOTALL))
    old = deployed.folder.passwords["TEAM_A"]
    used = deployed.client_of("team-a-driver", old)
    used.ping()
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
    assert [deployed.lets_in("team-a-driver", password) for password in (old, new)] == [True, True]
    used.ping()

    run("Remove the old password")

    assert [deployed.lets_in("team-a-driver", password) for password in (old, new)] == [False, True]
    with pytest.raises(redis.exceptions.ConnectionError):
        used.ping()
    used.close()

    deployed.kill()
    deployed.start()

    assert not deployed.lets_in("team-a-driver", old), "a restart keeps it"
    assert hashlib.sha256(new.encode()).hexdigest() in deployed.folder.accounts["team-a-driver"]
