"""What definitions say is fixed: experiments that are under way go on with a later mqtune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

import mqtune
from mqtune.core.codec import decode_value, encode_value
from mqtune.driver import DefinitionWriter
from mqtune.search.space import Space

RECORDED: Final = Path(__file__).parents[2] / "definitions" / "definitions.v1.json"
#: What differs between machines and versions.
OF_THE_MACHINE: Final = ("code_root", "code_files", "version")
#: The arguments of the driver that is recorded.
ARGUMENTS: Final = ["train.py", "--epochs", "3"]
SPACE: Final[dict[str, Any]] = {
    "lr": mqtune.loguniform(1e-5, 1),
    "net": {"width": mqtune.qrandint(8, 64, 8)},
    "depth": 3,
}


def trainable(config: dict[str, Any]) -> None:
    """It is named, and never called."""


def stops(trial: object, report: object) -> bool:
    """It is named, and never called."""
    return False


class Reusable(mqtune.Trainable):
    def step(self) -> dict[str, Any]:
        return {}

    def reset_config(self, config: dict[str, Any]) -> bool:
        return True


class MyScheduler(mqtune.ASHA):
    pass


class MySearcher(mqtune.RandomSearcher):
    pass


def many() -> dict[str, dict[str, Any]]:
    """Arguments of tuners, by the name under which what they say is recorded."""
    return {
        "plain": {},
        "seed": {"seed": 7},
        "grid": {"space": {"a": mqtune.grid_search([1, 2, 3]), "b": mqtune.uniform(0, 1)}},
        "conditions": {
            "space": {
                "opt": mqtune.choice([{"name": "adam", "lr": mqtune.uniform(0, 1)}, mqtune.randint(1, 3), None]),
                "grid": mqtune.grid_search([{"a": mqtune.grid_search([1, 2])}, 3]),
                "layers": [mqtune.uniform(0, 1), 4, {"width": mqtune.randint(1, 4)}],
            }
        },
        "points": {"searcher": mqtune.PointsFirst([{"lr": 0.1}, {"net": {"width": 16}}])},
        "points of a grid": {
            "space": {"a": mqtune.grid_search([1, 2]), "b": mqtune.uniform(0, 1)},
            "searcher": mqtune.PointsFirst([{"a": 1}, {"a": 2}, {"b": 0.5}]),
        },
        "searcher": {"searcher": mqtune.RandomSearcher(Space({"lr": mqtune.uniform(0, 1)}), 9)},
        "own searcher": {"searcher": MySearcher(Space(SPACE), 9), "scheduler": MyScheduler(9)},
        "limits": {
            "max_trials": 7,
            "run": mqtune.RunOptions(max_concurrent=3),
            "failures": mqtune.Failures(max_failures=-1, fail_fast="raise"),
            "process": mqtune.Process(ttl_s=1.5),
        },
        "scheduler": {
            "scheduler": mqtune.PBT(4, {"lr": mqtune.loguniform(1e-5, 1)}, seed=3),
            "process": mqtune.Process(sync="lockstep"),
        },
        "asha in brackets": {"scheduler": mqtune.ASHA(27, brackets=2, stop_last_trials=False)},
        "promotion by cost": {"scheduler": mqtune.PromotionASHA(27, cost="time_total_s")},
        "hyperband to the end": {"scheduler": mqtune.HyperBand(27, stop_last_trials=False)},
        "quarter": {"scheduler": mqtune.MedianStopping(cutoff=0.25, min_run_s=60)},
        "pasha": {"scheduler": mqtune.PASHA(27)},
        "rush": {"scheduler": mqtune.RUSH(27, 2)},
        "several": {"metric": ["loss", "speed"], "mode": ["min", "max"], "scheduler": mqtune.MOASHA(27)},
        "bounds": {"metric": ["loss", "latency<=10", "room >= 0.5"], "searcher": "tpe"},
        "counts": {"stop": mqtune.schedulers.stopping.TrialsEnded(9) | mqtune.schedulers.stopping.ReportsReceived(500)},
        "stop": {"stop": mqtune.TimeLimit(60) | {"loss": 0.1} | mqtune.TrialPlateau()},
        "stop function": {"stop": stops, "mode": "max", "metric": "accuracy"},
        "retention": {
            "checkpoints": mqtune.Checkpoints(keep_last=None, keep_best=2, score="accuracy", mode="max", delete=True)
        },
        "retention of some": {"checkpoints": mqtune.Checkpoints(keep_last=3, delete="all")},
        "resources": {"resources": mqtune.Resources(gpus=0.5, cpus=3, gpu_memory_gb=12, tags=["a100"])},
        "store": {
            "checkpoints": mqtune.Checkpoints("s3://bucket/folder"),
            "run": mqtune.RunOptions(queue_trials=False),
        },
        "loss": {"failures": mqtune.Failures(on_driver_loss="stop", driver_loss_grace_s=5)},
        "working directory": {
            "process": mqtune.Process(
                env={"HF_HOME": "/data/hf"}, working_dir="code", keep_working_dir="failed", code="strict"
            ),
        },
        "process": {
            "process": mqtune.Process(start_method="spawn", pass_config="json"),
            "failures": mqtune.Failures(accept_no_report=True),
        },
        "reports": {"failures": mqtune.Failures(metric_from="later", on_odd_report="fail")},
        "reuse": {"tuned": Reusable, "process": mqtune.Process(reuse=True)},
        "local": {"backend": mqtune.Local(slots=3)},
    }


def definition(**options: Any) -> dict[str, Any]:
    """What a tuner's experiment would be kept as."""
    usual: dict[str, Any] = {"metric": "loss", "mode": "min", "name": "x", "backend": "redis://h/0", "seed": 1}
    settings = {**usual, **options}
    tuner = mqtune.Tuner(settings.pop("tuned", trainable), settings.pop("space", SPACE), **settings)
    found: dict[str, Any] = decode_value(encode_value(DefinitionWriter(tuner._runner.plan).definition(None)))
    return {key: value for key, value in found.items() if key not in OF_THE_MACHINE}


@pytest.mark.parametrize("name", many())
def test_a_definition_is_as_it_was_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MQTUNE_BROKER", raising=False)
    monkeypatch.delenv("MQTUNE_REDIS_URL", raising=False)
    monkeypatch.setattr("mqtune.driver.definition.program_arguments", lambda: ARGUMENTS)

    assert definition(**many()[name]) == json.loads(RECORDED.read_text())[name]
