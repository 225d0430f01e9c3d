"""What trials do in the contract of backends: each plays what its config says, on real workers and on simulated ones."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import mqtune
from mqtune.core.trial import Config, Metrics

__all__ = ["ENDLESS", "NEVER", "SPACE", "play", "play_unsaved", "played", "reports"]

#: More reports than any test waits for, and the place of a failure that never comes.
ENDLESS: Final = 100_000
NEVER: Final = -1

#: ``length`` reports, one ``every_s`` seconds, whose loss falls as x/step; behind so many reports an error.
SPACE: Final[dict[str, Any]] = {
    "x": mqtune.uniform(0, 10),
    "length": mqtune.randint(0, ENDLESS + 1),
    "every_s": mqtune.uniform(0, 600),
    "fails_after": mqtune.randint(NEVER, ENDLESS + 1),
}

#: How often a real trial looks whether it should save while it waits for its next report.
_LOOK_S: Final = 0.005


def played(length: int = 3, *, x: float = 1.0, every_s: float = 0.01, fails_after: int = NEVER) -> Config:
    """Return the config of a trial that plays this."""
    return {"x": float(x), "length": length, "every_s": float(every_s), "fails_after": fails_after}


def reports(config: Config) -> Iterator[tuple[float, Metrics | Exception]]:
    """Yield what a simulated trial reports; give it to ``mqtune.Simulated``."""
    for step in range(1, config["length"] + 1):
        if config["fails_after"] == step - 1:
            yield 0.0, _failure(step - 1)
        yield config["every_s"], _metrics(config, step)
    if config["fails_after"] == config["length"]:
        yield 0.0, _failure(config["length"])


def play(config: Config) -> None:
    """Play for real, with a dict as checkpoint in each report; an attempt goes on behind the one that it starts from."""
    checkpoint = mqtune.get_checkpoint()
    _play(config, 0 if checkpoint is None else checkpoint.data["step"], saves=True)


def play_unsaved(config: Config) -> None:
    """Play for real, without checkpoints."""
    _play(config, 0, saves=False)


def _play(config: Config, done: int, *, saves: bool) -> None:
    print(f"goes on behind step {done}", flush=True)  # noqa: T201 - a test reads it
    print("and says so", file=sys.stderr, flush=True)  # noqa: T201
    for step in range(done, config["length"] + 1):
        # What had failed at this place before doesn't do so again, as it does in a simulation.
        if config["fails_after"] == step and (step > done or not done):
            raise _failure(step)
        if step < config["length"]:
            _wait(config["every_s"], step if saves else None)
            mqtune.report(_metrics(config, step + 1), {"step": step + 1} if saves else None)


def _wait(seconds: float, step: int | None) -> None:
    """Wait for the next report, and save *step* meanwhile if that is asked for."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_S))
        if step is not None and mqtune.should_checkpoint():
            mqtune.save_checkpoint({"step": step})


def _metrics(config: Config, step: int) -> Metrics:
    return {"loss": config["x"] / step, "step": step}


def _failure(step: int) -> Exception:
    return RuntimeError(f"it was to fail behind step {step}")
