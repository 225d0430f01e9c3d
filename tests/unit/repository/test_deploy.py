"""What stands in deploy/ is what the programs that read it take: schemas, shells, and the names of mqtune's own code."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
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
from mqtune.core.resources import queue_name
from mqtune.core.shares import PRIORITIES, lists_of
from mqtune.core.version import __version__, minor
from mqtune.trainable import KEY_VARIABLE
from mqtune.worker import GRACE_S, shutdown_s

DEPLOY: Final = ROOT / "deploy"
SCRIPTS: Final = sorted(DEPLOY.rglob("*.sbatch"))
BROKER: Final = "redis://head:6379/0"
#: The schemas of what is no part of Kubernetes, by its group.
OF_OTHERS: Final = {"keda.sh": "keda", "monitoring.coreos.com": "prometheus-operator"}
#: A list of manifests, and no manifest itself.
KUSTOMIZATION: Final = DEPLOY / "kubernetes" / "kustomization.yaml"
#: What each team's or one person's cluster has to say itself.
GUIDE: Final = ROOT / "docs" / "how-to" / "kubernetes.md"


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


def test_a_mistyped_manifest_would_be_noticed() -> None:
    scaled, worker = of_kind("ScaledObject", "mqtune-worker"), of_kind("Deployment", "mqtune-worker")
    scaled["spec"]["minReplicas"] = 1
    worker["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["periodSecond"] = 1

    job, monitor = of_kind("Job", "mqtune-driver"), of_kind("PodMonitor", "mqtune-worker")
    budget, policy = of_kind("PodDisruptionBudget", "mqtune-redis"), of_kind("NetworkPolicy", "mqtune-redis")
    for document, name in ((job, "backofLimit"), (monitor, "endpoints"), (budget, "maxAvailable"), (policy, "ingres")):
        document["spec"][name] = 1
        assert name in kubernetes_problems(document)[0]
    assert "minReplicas" in kubernetes_problems(scaled)[0]
    assert "periodSecond" in kubernetes_problems(worker)[0]
    assert problems({"write_files": [{"pth": "/x"}]}, schema("cloud-config")) != []


def worker_container() -> dict[str, Any]:
    (container,) = of_kind("Deployment", "mqtune-worker")["spec"]["template"]["spec"]["containers"]
    return container


def test_keda_counts_all_lists_of_the_queue_of_the_deployments_slots_and_what_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for each in worker_container()["env"]:
        monkeypatch.setenv(each["name"], each.get("value", BROKER))
    plan = settings_from_environment().plan()
    queue = queue_name(plan.offer)

    spec = of_kind("ScaledObject", "mqtune-worker")["spec"]
    listed = {trigger["name"]: trigger["metadata"]["listName"] for trigger in spec["triggers"]}
    assert {**listed} == {
        **dict(zip(PRIORITIES, lists_of(queue), strict=False)),
        "running": quota_key("*"),
    }
    modifiers = spec["advanced"]["scalingModifiers"]
    assert modifiers["formula"] == " + ".join([*listed, str(len(plan.devices))])
    assert modifiers["target"] == str(len(plan.devices))
    assert "mqtune quota '*' " in (DEPLOY / "kubernetes" / "keda.yaml").read_text()
    limits = worker_container()["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == str(len(plan.devices))


def pod_templates() -> list[dict[str, Any]]:
    specs = [each["spec"].get("jobTemplate", each)["spec"] for _, each in manifests()]
    return [spec["template"] for spec in specs if "template" in spec]


def selected(selector: dict[str, Any]) -> set[str]:
    """The pods that a selector of Kubernetes' matches, by their label ``app``."""
    apps = {each["metadata"]["labels"]["app"] for each in pod_templates()}
    for name, value in selector.get("matchLabels", {}).items():
        assert name == "app"
        apps &= {value}
    for each in selector.get("matchExpressions", ()):
        assert (each["key"], each["operator"]) == ("app", "In")
        assert set(each["values"]) <= apps, "a pod that is not there"
        apps &= set(each["values"])
    return apps


def test_what_selects_pods_finds_those_that_are_there() -> None:
    ports = {port.get("name") for pod in pod_templates() for port in pod["spec"]["containers"][0].get("ports", ())}

    assert selected(of_kind("PodDisruptionBudget", "mqtune-worker")["spec"]["selector"]) == {"mqtune-worker"}
    assert selected(of_kind("PodDisruptionBudget", "mqtune-redis")["spec"]["selector"]) == {"mqtune-redis"}
    monitor = of_kind("PodMonitor", "mqtune-worker")["spec"]
    assert selected(monitor["selector"]) == {"mqtune-worker"}
    assert monitor["podMetricsEndpoints"][0]["port"] in ports
    policies = [of_kind("NetworkPolicy", name)["spec"] for name in ("mqtune-redis", "mqtune-pods")]
    assert [selected(policy["podSelector"]) for policy in policies] == [
        {"mqtune-redis"},
        selected({}) - {"mqtune-redis"},
    ]
    (clients, _), (to_metrics,) = policies[0]["ingress"][0]["from"], policies[1]["ingress"][0]["ports"]
    assert selected(clients["podSelector"]) == selected({}) - {"mqtune-redis"}
    assert to_metrics["port"] in ports


def test_the_figures_of_the_fleet_are_asked_for_where_they_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", BROKER)
    exporter = of_kind("Deployment", "mqtune-exporter")["spec"]
    (container,) = exporter["template"]["spec"]["containers"]
    (port,) = container["ports"]

    check_command(container["command"])
    assert container["command"][-1] == str(port["containerPort"])
    monitor = of_kind("PodMonitor", "mqtune-exporter")["spec"]
    assert selected(monitor["selector"]) == {"mqtune-exporter"}
    assert monitor["podMetricsEndpoints"][0]["port"] == port["name"]


def test_seats_of_a_trial_over_several_machines_reach_one_another_on_any_port() -> None:
    policy = of_kind("NetworkPolicy", "mqtune-seats")["spec"]
    (rule,) = policy["ingress"]
    (peers,) = rule["from"]

    assert selected(policy["podSelector"]) == selected(peers["podSelector"]) == {"mqtune-worker"}
    assert "ports" not in rule


def test_driver_slots_and_the_nightly_clean_up_call_commands_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", BROKER)
    drivers = of_kind("Deployment", "mqtune-drivers")["spec"]["template"]["spec"]
    cleanup = of_kind("CronJob", "mqtune-cleanup")["spec"]["jobTemplate"]["spec"]["template"]["spec"]

    for pod in (drivers, cleanup):
        (container,) = pod["containers"]
        check_command(container["command"])
        assert container["image"] == worker_container()["image"]
        assert {each["name"] for each in container["env"]} <= worker_variables() | {"MQTUNE_HOME", KEY_VARIABLE}
    assert drivers["terminationGracePeriodSeconds"] > shutdown_s(GRACE_S)


def test_the_kustomization_names_files_that_are_there_and_the_images_tag() -> None:
    kustomization = yaml.safe_load(KUSTOMIZATION.read_text())

    assert all((KUSTOMIZATION.parent / name).is_file() for name in kustomization["resources"])
    ((image, tag),) = [(each["name"], each["newTag"]) for each in kustomization["images"]]
    assert worker_container()["image"] == f"{image}:{tag}"
    assert KUSTOMIZATION.name in GUIDE.read_text()


def test_the_guides_command_makes_alert_rules_of_the_rule_file(tmp_path: Path) -> None:
    (command,) = re.findall(r"^(\(cat .*\)) \| kubectl apply -f -$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)

    made = yaml.safe_load(subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True).stdout)

    assert (made["apiVersion"], made["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert made["spec"] == yaml.safe_load((DEPLOY / "monitoring" / "alerts.yml").read_text())


def named_secrets(document: object) -> Iterator[str]:
    """The names of all secrets that a manifest refers to."""
    if isinstance(document, dict):
        for name, value in document.items():
            match name:
                case "secretKeyRef":
                    yield value["name"]
                case "secretTargetRef":
                    yield from (each["name"] for each in value)
                case "secretName":
                    yield value
            yield from named_secrets(value)
    elif isinstance(document, list):
        for each in document:
            yield from named_secrets(each)


def test_the_guide_makes_every_secret_and_names_every_manifest() -> None:
    guide = GUIDE.read_text()
    made = set(re.findall(r"kubectl create secret generic ([\w-]+)", guide))

    assert {name for _, each in manifests() for name in named_secrets(each)} == made
    for file in {file for file, _ in manifests()}:
        assert f"deploy/kubernetes/{file}.yaml" in guide, file


def test_a_driver_that_is_killed_is_followed_by_another_one_with_its_folder() -> None:
    job = of_kind("Job", "mqtune-driver")["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    (claim,) = [each["persistentVolumeClaim"] for each in pod["volumes"] if "persistentVolumeClaim" in each]

    # Kubernetes asks for Never where exit codes decide.
    assert pod["restartPolicy"] == "Never"
    assert mounts[str(environment["MQTUNE_HOME"])] == "results"
    assert claim["claimName"] == of_kind("PersistentVolumeClaim", "mqtune-results")["metadata"]["name"]
    # As mqtune ends after SIGTERM.
    codes = [rule["onExitCodes"]["values"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert codes == [[128 + signal.SIGTERM]]
    assert container["image"] == worker_container()["image"]


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


@pytest.mark.parametrize("script", sorted(DEPLOY.rglob("*.sh")), ids=lambda script: script.stem)
def test_a_script_that_prepares_a_deployment_is_a_shell_script_that_says_how_it_is_called(script: Path) -> None:
    check_shell(script.read_text())
    called = subprocess.run([script], capture_output=True, text=True)

    assert called.returncode == 2
    assert called.stderr.startswith(f"usage: {script}")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_for_slurm_is_a_shell_script_with_what_slurm_needs(script: Path) -> None:
    text = script.read_text()

    check_shell(text)
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))
    assert options.keys() >= {"job-name", "time", "requeue", "signal"}
    assert options["signal"].startswith("B:USR1@")
    assert options["open-mode"] == "append", "a job that is requeued goes on with its log"


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


@pytest.mark.parametrize("name", ["worker", "driver"])
def test_a_job_of_slurms_whose_program_ends_by_itself_ends_as_that_does(
    job: Callable[[str, int], Job], tmp_path: Path, name: str
) -> None:
    one = job(name, 0)
    (tmp_path / "end").touch()

    assert one.process.wait(DEADLINE_S) == 7
    assert one.said == ["begun"]


def test_images_of_mqtune_are_tagged_with_its_minor_version() -> None:
    files = [*ROOT.glob("docker-compose*.yml"), *(DEPLOY / "kubernetes").glob("*.yaml"), GUIDE]
    tags = {tag for file in files for tag in re.findall(r"\bmqtune:(\d[\w.]*)", file.read_text())}

    assert tags == {minor(__version__)}


def test_slurm_leaves_the_worker_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQTUNE_BROKER", BROKER)
    text = (DEPLOY / "slurm" / "worker.sbatch").read_text()
    (before,) = re.findall(r"--signal=B:USR1@(\d+)", text)
    (grace,) = re.findall(r"MQTUNE_GRACE=(\d+)", text)

    assert int(before) > shutdown_s(float(grace))
    assert set(re.findall(r"\b(MQTUNE_\w+)=", text)) <= worker_variables()
    (command,) = re.findall(r"^(mqtune .*) &$", text, re.MULTILINE)
    check_command(shlex.split(command.replace("$SLURM_JOB_ID", "12")))


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


def test_the_machine_of_cloud_init_is_as_the_unit_wants_it() -> None:
    unit = (ROOT / "workers" / "mqtune-worker.service").read_text()
    commands = [" ".join(each) for each in cloud_config()["runcmd"]]

    assert "User=mqtune" in unit
    assert "mqtune" in [each["name"] for each in cloud_config()["users"] if isinstance(each, dict)]
    (env_file,) = re.findall(r"^EnvironmentFile=(.*)$", unit, re.MULTILINE)
    assert env_file in [each["path"] for each in cloud_config()["write_files"]]
    (code,) = re.findall(r"^WorkingDirectory=(.*)$", unit, re.MULTILINE)
    assert any(command.startswith("git clone") and command.endswith(code) for command in commands)
    (program,) = re.findall(r"^ExecStart=(\S*)/bin/mqtune ", unit, re.MULTILINE)
    assert any(command.startswith("python3 -m venv") and command.endswith(program) for command in commands)
    (stop_s,) = re.findall(r"^TimeoutStopSec=(.*)$", unit, re.MULTILINE)
    # The machine's settings leave the grace as it is.
    assert float(stop_s) > shutdown_s(GRACE_S)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd's own judge")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    spot = {each["path"]: each["content"] for each in cloud_config()["write_files"]}[
        "/etc/systemd/system/mqtune-spot.service"
    ]
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
