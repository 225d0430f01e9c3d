"""Servers with TLS and accounts, started with what ``deploy/`` has for them: three with Sentinels, and Kubernetes' and Compose's one."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis
import trainables_counting
import yaml
from kept_port import KeptPort
from pages import ROOT
from running import running_worker
from servers import the_server
from waiting import eventually

import mqtune
from mqtune.core.keys import ExperimentKeys
from mqtune.core.trial import TrialStatus

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]

HOSTS: Final = ("redis-1", "redis-2", "redis-3")
#: How long servers may take to be up and to agree, on a machine that runs other tests.
UP_S: Final = 60.0
STEPS: Final = 60
#: What KEDA's scaler for Redis asks, for lists and for sorted sets.
KEDA_ASKS: Final = """
local kind = redis.call('type', KEYS[1]).ok
return redis.call(kind == 'zset' and 'zcard' or 'llen', KEYS[1])
"""


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is prepared for each host, and the accounts of all."""
    folder = tmp_path_factory.mktemp("deployed") / "secrets"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    subprocess.run([ROOT / "deploy/sentinel/prepare.sh", folder, *HOSTS], env=environment, check=True)
    subprocess.run([ROOT / "deploy/certificates.sh", folder, "mqtune-redis,redis"], env=environment, check=True)
    return folder


@pytest.fixture(scope="module")
def passwords(secrets: Path) -> dict[str, str]:
    return dict(re.findall(r"^REDIS_(\w+)_PASSWORD=(.+)$", (secrets / "passwords.env").read_text(), re.MULTILINE))


class Server:
    """A server, or a Sentinel, on a port of this machine."""

    def __init__(self, command: list[str], ca: Path, port: KeptPort, **login: str) -> None:
        self._kept = port
        self.port = port.number
        self.client: Any = redis.Redis(
            "localhost", self.port, ssl=True, ssl_ca_certs=str(ca), socket_timeout=UP_S, **login
        )
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        eventually(self._answers, UP_S)

    def _answers(self) -> bool:
        assert self._process.poll() is None, "it has ended"
        with contextlib.suppress(redis.exceptions.ConnectionError):
            return bool(self.client.ping())
        return False

    def close(self) -> None:
        self.client.close()
        self._process.kill()
        self._process.wait()
        self._kept.close()


class Fleet:
    """The servers and Sentinels of all hosts, with their files as they are but for names, ports and folders."""

    def __init__(self, secrets: Path, passwords: dict[str, str], folder: Path) -> None:
        self._secrets, self._folder = secrets, folder
        self.servers: list[Server] = []
        self.sentinels: list[Server] = []
        self._undo = contextlib.ExitStack()
        ports = {each: KeptPort() for each in HOSTS}
        with self._undo:
            for host in HOSTS:
                login = {"username": "sentinel", "password": passwords["SENTINEL"]}
                self.servers.append(self._begin(host, "redis.conf", ports[host], ports, **login))
            for host in HOSTS:
                login = {"password": passwords["SENTINELS"]}
                self.sentinels.append(self._begin(host, "sentinel.conf", KeptPort(), ports, **login))
            eventually(self.is_whole, UP_S)
            self._undo = self._undo.pop_all()
        where = ",".join(f"localhost:{each.port}" for each in self.sentinels)
        options = f"sentinel_password={passwords['SENTINELS']}&ssl_ca_certs={secrets / 'ca.crt'}"
        self.url = {
            role: f"rediss+sentinel://mqtune-{role}:{passwords[role.upper()]}@{where}/tuning/0?{options}"
            for role in ("driver", "worker")
        }

    def _begin(self, host: str, file: str, port: KeptPort, ports: dict[str, KeptPort], **login: str) -> Server:
        folder = self._folder / f"{host}-{file}"
        folder.mkdir()
        text = (self._secrets / host / file).read_text()
        for other, its in ports.items():
            text = text.replace(f"{other} 6379", f"localhost {its.number}").replace(other, "localhost")
        text = text.replace("/etc/redis", str(self._secrets / host)).replace("/var/lib/redis", str(folder))
        text = re.sub(r"tls-port \d+", f"tls-port {port.number}\nbind 127.0.0.1 -::1", text)
        # A failover takes these 5 s.
        text = text.replace("milliseconds tuning 5000", "milliseconds tuning 500")
        (folder / file).write_text(f"{text}repl-diskless-sync-delay 0\n" if file == "redis.conf" else text)
        mode = ["--sentinel"] if file == "sentinel.conf" else []
        command = [str(the_server().path), str(folder / file), *mode]
        server = Server(command, self._secrets / "ca.crt", port, **login)
        self._undo.callback(server.close)
        return server

    def is_whole(self) -> bool:
        """Whether each Sentinel knows all servers and Sentinels, and both replicas follow."""
        states = [each.client.sentinel_master("tuning") for each in self.sentinels]
        others = len(HOSTS) - 1
        known = all((each["num-slaves"], each["num-other-sentinels"]) == (others, others) for each in states)
        return known and self.servers[0].client.info("replication").get("min_slaves_good_slaves") == others

    @property
    def master(self) -> Server:
        _, port = self.sentinels[0].client.sentinel_get_master_addr_by_name("tuning")
        return next(each for each in self.servers if each.port == port)

    def close(self) -> None:
        self._undo.close()


def test_an_experiment_outlives_the_master_of_three_servers_as_they_are_deployed(
    secrets: Path, passwords: dict[str, str], tmp_path: Path
) -> None:
    failed = list[BaseException]()
    with contextlib.closing(Fleet(secrets, passwords, tmp_path)) as fleet:
        admin = redis.Redis(
            "localhost",
            fleet.master.port,
            ssl=True,
            ssl_ca_certs=str(secrets / "ca.crt"),
            username="mqtune-driver",
            password=passwords["DRIVER"],
        )

        def lose_the_master() -> None:
            try:
                eventually(lambda: len(admin.xrange(ExperimentKeys("deployed-tls").journal, count=20)) == 20, UP_S)
                master = fleet.master
                master.close()
                eventually(lambda: fleet.master is not master, UP_S)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=lose_the_master, daemon=True)
        with running_worker(fleet.url["worker"], tmp_path / "worker.log", "--gpus", "0", "--slots", "2"):
            thread.start()
            results = mqtune.Tuner(
                trainables_counting.counts,
                {"steps": STEPS, "step_s": 0.02, "saves": False, "x": mqtune.uniform(0, 1)},
                metric="loss",
                mode="min",
                backend=fleet.url["driver"],
                run=mqtune.RunOptions(progress=False),
                name="deployed-tls",
                max_trials=2,
            ).run()
        thread.join(UP_S)
        admin.close()

    assert failed == []
    assert [trial.status for trial in results.trials] == [TrialStatus.COMPLETED] * 2
    for trial in results.trials:
        last = [each.metrics["step"] for each in results.reports(trial.id) if each.attempt == len(trial.attempts)]
        assert last == list(range(1, STEPS + 1))
