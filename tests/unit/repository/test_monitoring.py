"""What stands in deploy/monitoring is what Prometheus and Grafana take, and asks for metrics, and labels, that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft202012Validator
from pages import ROOT

from mqtune.worker import WorkerFigures

pytest.importorskip("prometheus_client")
from mqtune.cli import FleetReader
from mqtune.integrations import FigureCollector, figures_of_worker

PAGE: Final = ROOT / "docs" / "how-to" / "monitoring.md"
FOLDER: Final = ROOT / "deploy" / "monitoring"
ALERTS: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())
RULES: Final[list[dict[str, Any]]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: Final[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: Final[list[dict[str, Any]]] = DASHBOARD["panels"]
promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is Prometheus' own judge")


@pytest.fixture(scope="module")
def metrics() -> dict[str, set[str]]:
    """The labels of each metric that the exporter of a fleet and those of workers really serve."""
    worker = WorkerFigures(
        worker="w", slots=1, usable=1, busy=1, ended={("0", "failed"): 1}, heartbeat_at=1.0, gpu_memory={"0": 1.0},
        gpu_load={"0": 1.0}, gpu_power={"0": 1.0}, redis=None,
    )  # fmt: skip
    # Nothing answers there, and each metric has its name all the same.
    figures = FleetReader("redis://127.0.0.1:1/0")()
    served = {sample.name for family in FigureCollector(lambda: figures).collect() for sample in family.samples}
    assert served == {"mqtune_redis_up"}
    of_workers = {
        sample.name: {*sample.labels}
        for family in FigureCollector(lambda: figures_of_worker(worker)).collect()
        for sample in family.samples
    }
    return {figure.name: {*figure.labels} for figure in figures} | of_workers


def queries() -> Iterator[tuple[str, str]]:
    """Each expression of the dashboard, with the title of its panel, as Prometheus gets it."""
    for panel in PANELS:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m")
            yield panel["title"], re.sub(r"\$(owner|experiment)", ".*", text)


def wrong_names(expression: str, metrics: dict[str, set[str]]) -> list[str]:
    """The metrics of an expression that there are not, and the labels that one is asked for and has not."""
    wrong = []
    for name, selector in re.findall(r"\b(mqtune_\w+)(\{[^}]*\})?", expression):
        labels = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
        wrong += (
            [name] if name not in metrics else [f"{name} {label}" for label in labels if label not in metrics[name]]
        )
    known = set().union(*(metrics.get(name, set()) for name in re.findall(r"\bmqtune_\w+", expression)))
    grouped = {each for found in re.findall(r"\b(?:by|on)\s*\(([\w, ]*)\)", expression) for each in found.split(", ")}
    return wrong + sorted(grouped - known - {""})


def test_alerts_and_panels_ask_for_what_is_served(metrics: dict[str, set[str]]) -> None:
    asked = [(rule["alert"], rule["expr"]) for rule in RULES] + [*queries()]

    assert len(asked) > 40
    assert [(title, wrong) for title, text in asked if (wrong := wrong_names(text, metrics))] == []
    # What is mistyped would be noticed.
    assert wrong_names('sum by (queu) (mqtune_queue_waitin{priority="low"})', metrics) == [
        "mqtune_queue_waitin",
        "queu",
    ]
    assert wrong_names('mqtune_queue_waiting{prio="low"}', metrics) == ["mqtune_queue_waiting prio"]


def test_texts_name_labels_that_the_alert_or_the_panel_has(metrics: dict[str, set[str]]) -> None:
    for rule in RULES:
        known = set().union(*(metrics[name] for name in re.findall(r"\bmqtune_\w+", rule["expr"])))
        assert set(rule["annotations"]) == {"summary", "description"}
        assert set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))) <= known, rule["alert"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
    for panel in PANELS:
        for target in panel.get("targets", ()):
            names = re.findall(r"\bmqtune_\w+", target["expr"])
            known = set().union(*(metrics[name] for name in names))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, panel["title"]
    variables = [each["definition"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    for metric, label in re.findall(r"label_values\((\w+)[^,]*, (\w+)\)", " ".join(variables)):
        assert label in metrics[metric]


def test_grafana_takes_the_dashboard_and_no_panel_lies_upon_another() -> None:
    schema = json.loads((ROOT / "tests" / "schemas" / "grafana.json").read_text())
    problems = [f"{each.json_path}: {each.message}" for each in Draft202012Validator(schema).iter_errors(DASHBOARD)]
    assert problems == []

    ids = [panel["id"] for panel in PANELS]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_page_has_each_alert_and_names_metrics_that_there_are(metrics: dict[str, set[str]]) -> None:
    page = PAGE.read_text()

    assert set(re.findall(r"`(Mqtune\w+)`", page)) == {rule["alert"] for rule in RULES}
    assert set(re.findall(r"`(mqtune_\w+)`", page)) <= metrics.keys()
    shortened = {name.removeprefix("…") for name in re.findall(r"`(…?\w+)`", page)}
    of_fleet = [name for name in metrics if not name.startswith("mqtune_worker_")]
    assert [name for name in of_fleet if not any(name.endswith(each) for each in shortened)] == []


def judged(*arguments: str, folder: Path) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@promtool
def test_prometheus_takes_the_alerts_and_each_query_of_the_dashboard(tmp_path: Path) -> None:
    recorded = [{"record": f"panel:{number}", "expr": text} for number, (_, text) in enumerate(queries())]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))

    judged("check", "rules", str(FOLDER / "alerts.yml"), "panels.yml", folder=tmp_path)
    shutil.copy(FOLDER / "alerts.yml", tmp_path)
    (settings,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(settings)
    judged("check", "config", "prometheus.yml", folder=tmp_path)


def owned(metric: str, values: str, **more: str) -> dict[str, str]:
    labels = {"experiment": "digits", "owner": "ada", "account": "team-a", **more}
    return {
        "series": metric + "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}",
        "values": values,
    }


def ended(device: str, end: str, values: str) -> dict[str, str]:
    return {
        "series": f'mqtune_fleet_attempts_ended_total{{worker="w",device="{device}",end="{end}"}}',
        "values": values,
    }


def impaired(worker: str, device: str, kind: str) -> dict[str, str]:
    return {
        "series": f'mqtune_fleet_impaired_seconds{{worker="{worker}",device="{device}",kind="{kind}"}}',
        "values": "0+60x60",
    }


#: By what happens, the figures of each minute, how long it is looked at, and which alerts fire then.
CASES: Final[dict[str, tuple[list[dict[str, str]], str, list[str]]]] = {
    "all is well": (
        [
            {"series": "mqtune_redis_up", "values": "1x60"},
            {"series": "mqtune_redis_memory_bytes", "values": "9e8x60"},
            # No limit.
            {"series": "mqtune_redis_memory_limit_bytes", "values": "0x60"},
            owned("mqtune_experiment_driver_up", "1x60"),
            owned("mqtune_experiment_driver_behind_seconds", "2x60"),
            owned("mqtune_experiment_journal_bytes", "9e8x60"),
            owned("mqtune_experiment_journal_limit_bytes", "0x60"),
            {"series": 'mqtune_queue_workers{queue="q", version="0.2.0"}', "values": "1x60"},
            ended("0", "failed", "0+1x60"),
            ended("0", "completed", "0+3x60"),
        ],
        "60m",
        [],
    ),
    "a device waits for its memory, another was disabled, a disk is full, and a password was changed": (
        [
            {"series": "mqtune_redis_up", "values": "1x60"},
            impaired("w", "0", "memory"),
            impaired("w", "1", "by_hand"),
            impaired("leaves", "", "leaving"),
            impaired("full", "", "logs"),
            impaired("rotated", "", "account"),
        ],
        "15m",
        ["MqtuneLoginRefused", "MqtuneLogsNotKept", "MqtuneWorkerImpaired"],
    ),
    "nobody looks": ([], "10m", ["MqtuneExporterGone"]),
    "Redis is away": ([{"series": "mqtune_redis_up", "values": "0x10"}], "5m", ["MqtuneRedisDown"]),
    "Redis is nearly full": (
        [
            {"series": "mqtune_redis_up", "values": "1x20"},
            {"series": "mqtune_redis_memory_bytes", "values": "90x20"},
            {"series": "mqtune_redis_memory_limit_bytes", "values": "100x20"},
        ],
        "10m",
        ["MqtuneRedisNearlyFull"],
    ),
    "a laptop sleeps, and nobody has started a worker": (
        [
            {"series": "mqtune_redis_up", "values": "1x60"},
            owned("mqtune_experiment_driver_up", "0x60"),
            owned("mqtune_experiment_driver_up", "1x60", experiment="other"),
        ],
        "30m",
        ["MqtuneExperimentWithoutDriver", "MqtuneNoWorkers"],
    ),
    "a submitted script waits for a full Redis": (
        [
            {"series": "mqtune_redis_up", "values": "1x60"},
            {"series": "mqtune_redis_memory_bytes", "values": "101x60"},
            {"series": "mqtune_redis_memory_limit_bytes", "values": "100x60"},
            {"series": 'mqtune_queue_workers{queue="q", version="0.2.0"}', "values": "1x60"},
            owned("mqtune_experiment_driver_up", "0x60"),
            owned("mqtune_experiment_script_up", "1x60"),
        ],
        "30m",
        ["MqtuneRedisFull", "MqtuneRedisNearlyFull"],
    ),
    "a low experiment gets nothing for hours": (
        [
            {"series": "mqtune_redis_up", "values": "1x300"},
            owned("mqtune_experiment_starved_seconds", "0+60x300", priority="low"),
        ],
        "4h",
        ["MqtuneExperimentStarved"],
    ),
    "one of two devices is broken": (
        [
            {"series": "mqtune_redis_up", "values": "1x60"},
            ended("0", "failed", "0+3x60"),
            ended("1", "completed", "0+1x60"),
            ended("1", "failed", "0x60"),
        ],
        "30m",
        ["MqtuneDeviceFails"],
    ),
    "all code fails everywhere": (
        [
            {"series": "mqtune_redis_up", "values": "1x60"},
            ended("0", "failed", "0+3x60"),
            ended("1", "failed", "0+3x60"),
        ],
        "30m",
        [],
    ),
}


@promtool
def test_an_alert_fires_when_it_should_and_else_does_not(tmp_path: Path) -> None:
    severity = {rule["alert"]: rule["labels"]["severity"] for rule in RULES}
    tests = [
        {
            "name": case,
            "interval": "1m",
            "input_series": series,
            # How many of an alert fire, by its name.
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": at,
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in fires],
                }
            ],
        }
        for case, (series, at, fires) in CASES.items()
    ]
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [str(FOLDER / "alerts.yml")], "tests": tests}))

    assert {name for _, _, fires in CASES.values() for name in fires} <= set(severity)
    judged("test", "rules", "test.yml", folder=tmp_path)
