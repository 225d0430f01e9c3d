"""``mqtune doctor``: each problem is found, and has its way out."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accounts import Accounts
from click.testing import CliRunner
from fleets import impairment, worker
from waiting import eventually

from mqtune.backends import EmbeddedServer
from mqtune.cli import doctor, group
from mqtune.core.impairment import Impairment
from mqtune.core.version import __version__, minor


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MQTUNE_BROKER", raising=False)


def findings(*options: str, code: int = 0) -> dict[str, dict[str, str]]:
    done = CliRunner().invoke(group, ["doctor", "--json", *options])
    assert done.exit_code == code, done.output
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert all(each["way_out"] for each in found.values() if each["state"] != "ok")
    return found


@pytest.mark.usefixtures("server_binary")
def test_gpus_are_named_and_mps_where_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert findings()["GPUs"]["text"] == "2 for workers here: 0, 1"

    daemon = tmp_path / "nvidia-cuda-mps-control"
    daemon.symlink_to(Path(shutil.which("sleep") or "").resolve())
    with subprocess.Popen([str(daemon), "60"]) as running:
        try:
            shared = "0, 1; CUDA MPS is running, so trials that share a GPU compute at the same time"
            # The kernel tells its name a moment after it has begun.
            eventually(lambda: findings()["GPUs"]["text"].endswith(shared))
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
            assert findings()["GPUs"]["text"] == "none here"
        finally:
            running.kill()


@pytest.mark.usefixtures("redis_client")
def test_a_server_is_looked_at_and_one_without_workers_is_a_warning(redis_server: EmbeddedServer) -> None:
    found = findings("--broker", redis_server.url)

    assert found["broker"]["state"] == found["account"]["state"] == found["clock"]["state"] == "ok"
    assert found["workers"] == {
        "check": "workers",
        "state": "warning",
        "text": "no worker is connected",
        "way_out": "start one on each machine, in the folder of your code: mqtune worker",
    }


@pytest.mark.usefixtures("redis_client")
def test_a_workers_account_is_sound_although_it_may_not_list_experiments(redis_server: EmbeddedServer) -> None:
    with contextlib.closing(Accounts(redis_server.url)) as accounts:
        worker = accounts.make("worker")
        of_team = accounts.make("worker", "of-team", experiments="team-a-*")
        for url in (worker, of_team):
            found = findings("--broker", url)
            assert found["account"]["text"] == "a worker's, which can't list experiments"

        accounts.admin.execute_command("ACL", "SETUSER", "lame", "on", ">x", "+@connection", "+info", "+time")
        assert findings("--broker", accounts.url_of("lame", "x"), code=1)["account"]["state"] == "problem"


def test_a_server_that_does_not_answer_is_a_problem_with_a_way_out() -> None:
    shown = CliRunner().invoke(group, ["doctor", "--broker", "redis://127.0.0.1:1"])

    assert shown.exit_code == 1
    assert "PROBLEM  broker: no Redis answers at redis://127.0.0.1:1" in shown.stdout
    assert "→ see docs/cli.md (MQTUNE_BROKER)" in shown.stdout


@pytest.mark.parametrize(
    ("code", "named", "problem"),
    [
        ("def train(config): ...", "its_code:train", ""),
        ("def train(config): ...", "its_code.py:train", ""),
        ("import no_such_module", "its_code:train", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)", "its_code:train", "SystemExit: 3"),
        ("import mqtune\nclass Train(mqtune.Trainable):\n def step(self): ...", "its_code:Train", ""),
        ("train = 3", "its_code:train", "does not define the function 'train'"),
        ("", "its_code", "script 'its_code' of trainable 'its_code' is not below the code root"),
        ("", "json:loads", "module 'json' of trainable 'loads' is not below the code root"),
    ],
)
def test_a_trainable_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, named: str, problem: str
) -> None:
    (tmp_path / "its_code.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "its_code", raising=False)

    found = {each.check: each for each in [doctor.check_trainable(named)]}["trainable"]

    assert found.state == ("problem" if problem else "ok")
    assert problem in found.text


def test_what_a_server_says_of_its_memory_is_judged() -> None:
    full = {"used_memory": 95, "maxmemory": 100, "maxmemory_policy": "allkeys-lru", "aof_enabled": 0}

    states = {each.check: each.state for each in doctor.check_memory(full)}
    assert states == {"memory": "warning", "eviction": "problem", "persistence": "warning"}
    assert [each.state for each in doctor.check_memory({"used_memory": 95, "maxmemory": 0, "aof_enabled": 1})] == ["ok"]
    assert [doctor.check_clock(seconds).state for seconds in (-3600.0, 0.1, 60.0)] == ["warning", "ok", "warning"]


@pytest.mark.parametrize(
    ("version", "impairments", "state"),
    [
        (__version__, [], None),
        (f"{minor(__version__)}.99", [], None),
        ("0.0.9", [], "problem"),
        (__version__, [impairment()], "warning"),
    ],
)
def test_another_version_is_a_problem(version: str, impairments: list[Impairment], state: str | None) -> None:
    found = doctor.check_worker(worker(version=version, impairments=impairments))

    assert (found and found.state) == state
