"""Types of the public interface, as a user's type checker sees them; mypy reads this file, and nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

import mqtune
from mqtune.client import ExperimentHandle


def train(config: dict[str, Any]) -> None:
    mqtune.report({"loss": config["lr"]})
    mqtune.report({"loss": 1.0}, checkpoint={"step": 1})
    assert_type(mqtune.get_checkpoint(), mqtune.Checkpoint | None)


tuner = mqtune.Tuner(
    train,
    {"lr": mqtune.loguniform(1e-5, 1e-1), "layers": mqtune.choice([1, 2])},
    metric="loss",
    mode="min",
    scheduler=mqtune.ASHA(max_t=27),
    max_trials=8,
    run=mqtune.RunOptions(progress=False),
)
results = tuner.run()
assert_type(results, mqtune.Results)
assert_type(results.best.config, dict[str, Any])
assert_type(mqtune.Results.load("name"), mqtune.Results)
assert_type(mqtune.Client("redis://head").experiment("name"), ExperimentHandle)
for trial in results:
    assert_type(trial.status, mqtune.TrialStatus)
mqtune.Tuner(train, {}, metric="loss", mode="smallest")  # type: ignore[arg-type]
