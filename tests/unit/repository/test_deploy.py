"""The files of deploy/ fit the schemas, shells and code that read them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft202012Validator
from pages import ROOT
from test_compose import check_command, compose, worker_variables
from waiting import DEADLINE_S, eventually

from mqtune.cli import settings_from_environment
from mqtune.core.keys import quota_key
from mqtune.core.priorities import PRIORITIES, lists_of
from mqtune.core.resources import queue_name
from mqtune.worker import shutdown_s

pytestmark = pytest.mark.slow
DEPLOY: Final = ROOT / "deploy"
BROKER: Final = "redis://head:6379/0"
#: The schemas of groups outside Kubernetes.
OF_OTHERS: Final = {"keda.sh": "keda", "monitoring.coreos.com": "prometheus-operator"}
#: A list of manifests, and no manifest itself.
KUSTOMIZATION: Final = DEPLOY / "kubernetes" / "kustomization.yaml"


@cache
def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "tests" / "schemas" / f"{name}.json").read_text())
    return found


def problems(document: object, of: dict[str, Any], definition: str = "") -> list[str]:
    whole = {**of, "$ref": f"#/$defs/{definition}"} if definition else of
    found = Draft202012Validator(whole).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in found]


def manifests() -> list[tuple[str, dict[str, Any]]]:
    files = [file for file in sorted((DEPLOY / "kubernetes").glob("*.yaml")) if file != KUSTOMIZATION]
    return [(file.stem, document) for file in files for document in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str, name: str) -> dict[str, Any]:
    (found,) = [each for _, each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def cloud_config() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "cloud-init" / "worker.yaml").read_text())
    return found


def kubernetes_problems(document: dict[str, Any]) -> list[str]:
    group, kind = document["apiVersion"].rpartition("/")[0], document["kind"]
    if group in OF_OTHERS:
        return problems(document, schema(OF_OTHERS[group]), kind)
    return problems(document, schema("kubernetes"), f"io.k8s.api.{group.removesuffix('.k8s.io') or 'core'}.v1.{kind}")


@pytest.mark.parametrize("document", [pytest.param(each, id=f"{file}-{each['kind']}") for file, each in manifests()])
def test_kubernetes_takes_the_manifest(document: dict[str, Any]) -> None:
    assert kubernetes_problems(document) == []


def worker_container() -> dict[str, Any]:
    (container,) = of_kind("Deployment", "mqtune-worker")["spec"]["template"]["spec"]["containers"]
    return container


def test_keda_counts_all_lists_of_the_queue_and_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in worker_container()["env"]:
        monkeypatch.setenv(each["name"], each.get("value", BROKER))
    plan = settings_from_environment().plan()
    queue = queue_name(plan.offer)

    spec = of_kind("ScaledObject", "mqtune-worker")["spec"]
    listed = {trigger["name"]: trigger["metadata"]["listName"] for trigger in spec["triggers"]}
    assert {**listed} == {**dict(zip(PRIORITIES, lists_of(queue), strict=False)), "running": quota_key("*")}
    modifiers = spec["advanced"]["scalingModifiers"]
    assert modifiers["formula"] == " + ".join([*listed, str(len(plan.devices))])
    assert modifiers["target"] == str(len(plan.devices))
    assert "mqtune fleet quota '*' " in (DEPLOY / "kubernetes" / "keda.yaml").read_text()
    limits = worker_container()["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == str(len(plan.devices))


def test_a_pods_worker_has_its_own_settings_and_time_to_hand_its_trials_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", BROKER)
    settings = {each["name"]: each.get("value") for each in worker_container()["env"]}

    assert set(settings) <= worker_variables()
    check_command(worker_container()["command"])
    for probe in ("startupProbe", "readinessProbe"):
        check_command(worker_container()[probe]["exec"]["command"])
    # A process for each look may be too slow on a node that trials keep busy, and kill the pod.
    asked = worker_container()["livenessProbe"]["httpGet"]
    assert asked["port"] in {port["name"] for port in worker_container()["ports"]}
    pod = of_kind("Deployment", "mqtune-worker")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > shutdown_s(float(settings["MQTUNE_GRACE"] or 0))


#: A worker, or a driver, that ends with this code when it gets SIGTERM, and by itself when there is a file that says so.
PROGRAM: Final = """#!/bin/bash
trap 'echo told >> "$JOB/said"; exit {code}' TERM
echo begun >> "$JOB/said"
while [[ ! -e $JOB/end ]]; do sleep 0.02; done
exit 7
"""


class Job:
    """A script for Slurm that runs with a fake worker or driver, and a fake ``scontrol``."""

    def __init__(self, script: Path, folder: Path, code: int) -> None:
        programs = folder / "bin"
        programs.mkdir()
        (folder / ".config" / "mqtune").mkdir(parents=True)
        (folder / ".config" / "mqtune" / "broker").write_text(BROKER)
        own = PROGRAM.format(code=code)
        for name, text in {"mqtune": own, "python": own, "scontrol": '#!/bin/bash\necho "$@" >> "$JOB/said"\n'}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.folder = folder
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), "JOB": str(folder)}
        environment |= {"SLURM_JOB_ID": "12", "SLURM_CPUS_PER_TASK": "2"}
        self.process = subprocess.Popen(
            ["bash", str(script), "tune.py"], env=environment, cwd=folder, start_new_session=True
        )

    @property
    def said(self) -> list[str]:
        said = self.folder / "said"
        return said.read_text().splitlines() if said.exists() else []


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[[str, int], Job]]:
    jobs: list[Job] = []

    def begin(name: str, code: int) -> Job:
        jobs.append(Job(DEPLOY / "slurm" / f"{name}.sbatch", tmp_path, code))
        eventually(lambda: jobs[-1].said == ["begun"])
        return jobs[-1]

    yield begin
    for one in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()


@pytest.mark.parametrize(
    ("name", "number", "code", "requeued"),
    [
        ("worker", signal.SIGUSR1, 0, True),
        ("worker", signal.SIGUSR1, 1, True),
        ("worker", signal.SIGTERM, 0, False),
        ("driver", signal.SIGUSR1, 143, True),
        ("driver", signal.SIGUSR1, 0, False),
        ("driver", signal.SIGTERM, 143, False),
    ],
)
def test_a_job_of_slurms_is_requeued_when_its_time_is_up_and_not_when_it_is_cancelled(
    job: Callable[[str, int], Job], name: str, number: signal.Signals, code: int, *, requeued: bool
) -> None:
    one = job(name, code)
    one.process.send_signal(number)

    assert one.process.wait(DEADLINE_S) == code
    assert one.said == ["begun", "told", *(["requeue 12"] if requeued else [])]


def test_cloud_init_takes_the_user_data(tmp_path: Path) -> None:
    text = (DEPLOY / "cloud-init" / "worker.yaml").read_text()
    modules = schema("cloud-config")["$defs"].values()
    known = {name for module in modules for name in module.get("properties", ())}

    assert text.startswith("#cloud-config\n")
    assert problems(cloud_config(), schema("cloud-config")) == []
    assert set(cloud_config()) <= known
    files = {each["path"]: each for each in cloud_config()["write_files"]}
    check_shell(files["/usr/local/bin/mqtune-spot"]["content"])
    assert files["/etc/mqtune/worker.env"]["permissions"] == "0600"
    assert set(re.findall(r"^(\w+)=", files["/etc/mqtune/worker.env"]["content"], re.MULTILINE)) <= worker_variables()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own judge")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    files = {each["path"]: each["content"] for each in cloud_config()["write_files"]}
    spot = files["/etc/systemd/system/mqtune-spot.service"]
    worker = (ROOT / "workers" / "mqtune-worker.service").read_text()
    units = []
    for name, text in (("mqtune-worker.service", worker), ("mqtune-spot.service", spot)):
        # The programs are not here.
        (tmp_path / name).write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
        units.append(str(tmp_path / name))

    judged = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True)

    assert [line for line in judged.stderr.splitlines() if "mqtune-" in line] == []


@pytest.mark.parametrize("file", sorted(each.name for each in ROOT.glob("docker-compose*.yml")))
def test_compose_takes_its_file(file: str) -> None:
    given = {"REDIS_PASSWORD": "r", "FLOWER_PASSWORD": "f", "MQTUNE_BROKER": BROKER, "MQTUNE_HOST": "node7"}
    given |= {f"REDIS_{role}_PASSWORD": "p" for role in ("FLOWER", "WORKER", "DRIVER")}

    assert problems(compose(file, **given), schema("compose")) == []


def check_shell(text: str) -> None:
    checks = [["bash", "-n"], *([["shellcheck", "-"]] if shutil.which("shellcheck") else [])]
    for check in checks:
        done = subprocess.run(check, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
