"""What stands in deploy/monitoring is what Prometheus and Grafana take, and asks for metrics, and labels, that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft202012Validator
from pages import ROOT

from mqtune.services.exporter.figures import WorkerFigures
from mqtune.services.exporter.fleet import FleetReader

pytest.importorskip("prometheus_client")
from mqtune.services.exporter.prometheus import FigureCollector, figures_of_worker

FOLDER: Final = ROOT / "deploy" / "monitoring"
ALERTS: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "alerts.yml").read_text())
RULES: Final[list[dict[str, Any]]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: Final[dict[str, Any]] = json.loads((FOLDER / "dashboard.json").read_text())
PANELS: Final[list[dict[str, Any]]] = DASHBOARD["panels"]


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


def test_grafana_takes_the_dashboard() -> None:
    schema = json.loads((ROOT / "tests" / "schemas" / "grafana.json").read_text())
    problems = [f"{each.json_path}: {each.message}" for each in Draft202012Validator(schema).iter_errors(DASHBOARD)]
    assert problems == []
