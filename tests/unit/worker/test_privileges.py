"""What of a worker its trials don't get; each in a process of its own, which has nothing to lose."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from mqtune.core.errors import ConfigurationError
from mqtune.worker import become, home_of, without_secrets

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

CONCEALS = """
import os, subprocess, sys
from pathlib import Path
from mqtune.worker.host.privileges import conceal

environ = Path("/proc/self/environ")
assert b"s3cr3t" in environ.read_bytes()
conceal()
conceal()
assert b"s3cr3t" not in environ.read_bytes(), environ.read_bytes()
assert b"MQTUNE_BROKER=*" in environ.read_bytes()
assert b"OTHER=stays" in environ.read_bytes()
assert os.environ["MQTUNE_BROKER"] == "redis://:s3cr3t@head", "a restart in place needs it"
child = subprocess.run([sys.executable, "-c", "import os; print(os.environ['MQTUNE_BROKER'], os.environ['OTHER'])"], capture_output=True)
assert child.stdout == b"redis://:s3cr3t@head stays\\n", child
os.environ["LATER"] = "too"
"""

BECOMES = """
import os, sys
from pathlib import Path
from mqtune.worker.host.privileges import become

become("nobody")
assert os.getuid() == os.geteuid() != 0
assert os.getgid() != 0 and 0 not in os.getgroups()
assert os.environ["USER"] == "nobody"
become("nobody")
for path in (f"/proc/{sys.argv[1]}/environ", "/proc/self/environ"):
    try:
        Path(path).read_bytes()
    except PermissionError:
        continue
    assert path.startswith("/proc/self"), f"{path} can be read"
try:
    os.setuid(0)
except PermissionError:
    print("for good")
"""


def run(code: str, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@linux
def test_the_brokers_url_is_not_in_what_others_can_read_of_the_environment() -> None:
    run(CONCEALS, MQTUNE_BROKER="redis://:s3cr3t@head", CELERY_BROKER_URL="redis://:s3cr3t@head", OTHER="stays")


def test_children_get_everything_but_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MQTUNE_BROKER", "MQTUNE_REDIS_URL", "MQTUNE_ACL_PASSWORD", "CELERY_BROKER_URL", "OTHER"):
        monkeypatch.setenv(name, "x")

    given = without_secrets()

    assert given["OTHER"] == "x"
    assert not [name for name in given if name.startswith(("MQTUNE_B", "MQTUNE_R", "MQTUNE_A", "CELERY_B"))]


@linux
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_becomes_another_user_for_good_and_can_read_nobody_elses_environment() -> None:
    assert run(BECOMES, str(os.getpid())) == "for good\n"


def test_whoever_it_is_already_needs_no_rights_and_only_root_becomes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    me = pwd.getpwuid(os.geteuid())

    become(me.pw_name)

    assert home_of(me.pw_name) == Path(me.pw_dir)
    with pytest.raises(ConfigurationError, match="--user nobody-at-all: this machine has no such user"):
        become("nobody-at-all")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigurationError, match="only root can become another user"):
        become("root")
