"""The trainables of the backend tests. The config says what a trial does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import mqtune
from mqtune.core.trial import Config, Metrics

#: A number of reports that no test waits for.
ENDLESS: Final = 100_000
#: The value of ``fails_after`` of a trial that does not fail.
NEVER: Final = -1

#: A trial makes ``length`` reports, one every ``every_s`` seconds, with a loss of ``x`` / step. It fails after the
#: report ``fails_after``.
SPACE: Final[dict[str, Any]] = {
    "x": mqtune.uniform(0, 10),
    "length": mqtune.randint(0, ENDLESS + 1),
    "every_s": mqtune.uniform(0, 600),
    "fails_after": mqtune.randint(NEVER, ENDLESS + 1),
}

#: Seconds between two checks whether to save a checkpoint, while a trial waits for its next report.
_POLL_S: Final = 0.005


def played(length: int = 3, *, x: float = 1.0, every_s: float = 0.01, fails_after: int = NEVER) -> Config:
    """Return the config of a trial; see ``SPACE``."""
    return {"x": float(x), "length": length, "every_s": float(every_s), "fails_after": fails_after}


def reports(config: Config) -> Iterator[tuple[float, Metrics | Exception]]:
    """Yield the delays and reports of a simulated trial, for ``mqtune.Simulated``."""
    for step in range(1, config["length"] + 1):
        if config["fails_after"] == step - 1:
            yield 0.0, _failure(step - 1)
        yield config["every_s"], _metrics(config, step)
    if config["fails_after"] == config["length"]:
        yield 0.0, _failure(config["length"])


def play(config: Config) -> None:
    """Run a real trial that saves a checkpoint with each report, and continues from it."""
    checkpoint = mqtune.get_checkpoint()
    _play(config, 0 if checkpoint is None else checkpoint.data["step"], saves=True)


def play_unsaved(config: Config) -> None:
    """Run a real trial without checkpoints."""
    _play(config, 0, saves=False)


def _play(config: Config, done: int, *, saves: bool) -> None:
    print(f"continues after step {done}", flush=True)  # noqa: T201 - a test reads it
    print("and says so", file=sys.stderr, flush=True)  # noqa: T201
    for step in range(done, config["length"] + 1):
        # An attempt that continues after the failed step does not fail again. Simulations do the same.
        if config["fails_after"] == step and (step > done or not done):
            raise _failure(step)
        if step < config["length"]:
            _wait(config["every_s"], step if saves else None)
            mqtune.report(_metrics(config, step + 1), {"step": step + 1} if saves else None)


def _wait(seconds: float, step: int | None) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(left, _POLL_S))
        if step is not None and mqtune.should_checkpoint():
            mqtune.save_checkpoint({"step": step})


def _metrics(config: Config, step: int) -> Metrics:
    return {"loss": config["x"] / step, "step": step}


def _failure(step: int) -> Exception:
    return RuntimeError(f"failed as planned after step {step}")
