"""Reproducible experiments in virtual time, for the contract suites."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import pytest

from mqtune.backends.simulated import Delay, Simulated
from mqtune.core.callback import Callback
from mqtune.core.codec import encode_value
from mqtune.core.events import CheckpointsDropped, DriverStarted, Event, ExperimentCreated, ExperimentEnded
from mqtune.core.objective import Metric
from mqtune.core.trial import Config, Metrics, Report
from mqtune.driver.setup.options import Failures, RunOptions
from mqtune.results.results import Results
from mqtune.search.domains import uniform
from mqtune.testing.play import play_unsaved
from mqtune.tuner import Tuner

SPACE: Final[Mapping[str, Any]] = {"lr": uniform(0, 1), "momentum": uniform(0, 1)}

_ODD: Final = (float("nan"), float("inf"), -float("inf"))

_numbers = itertools.count(1)


class InVirtualTime:
    """Base of test suites with experiments in virtual time. Each test has its own home folder."""

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MQTUNE_HOME", str(tmp_path / "home"))


@dataclass(frozen=True, slots=True)
class World:
    """The conditions of a reproducible experiment. Times are means in virtual seconds."""

    seed: int = 0
    trials: int = 8
    slots: int = 3
    #: Number of reports of a trial that is not stopped.
    length: int = 12
    #: Delay of a report on its way to the driver.
    report_s: float = 0.0
    #: Delay of a decision on its way to the trial.
    decision_s: float = 0.0
    #: Time that a trial needs to stop.
    stop_s: float = 0.0
    #: Time after which a worker is lost. 0: never.
    life_s: float = 0.0
    #: Probability that an attempt fails.
    failing: float = 0.0
    #: Probability that a report's metric is NaN, infinite or missing.
    odd: float = 0.0

    def run(
        self, new_arguments: Callable[[], dict[str, Any]], *, cut_after: Sequence[int] = (), time_attr: str = ""
    ) -> Results:
        """Run a new experiment to its end.

        Args:
            new_arguments: returns the tuner's arguments, new ones for each driver.
            cut_after: for each driver except the last, the number of steps after which the next driver replaces it.
            time_attr: key under which reports also have their step. Empty for none.
        """
        name, backend = f"contract-{next(_numbers)}", self._backend(time_attr)
        for steps in cut_after:
            with closing(self._tuner(backend, name, **new_arguments())) as tuner:
                for _ in range(steps):
                    if not tuner.is_finished:
                        tuner.step(1.0)
        with closing(self._tuner(backend, name, **new_arguments())) as tuner:
            return tuner.run()

    def _backend(self, time_attr: str) -> Simulated:
        return Simulated(
            self._reports(time_attr),
            slots=self.slots,
            seed=self.seed,
            report_delay_s=_delay(self.report_s),
            decision_delay_s=_delay(self.decision_s),
            stop_delay_s=_delay(self.stop_s),
            life_s=_delay(self.life_s) if self.life_s else None,
            away_s=3.0,
            keep_journal=True,
        )

    def _tuner(self, backend: Simulated, name: str, *, callbacks: Sequence[Callback] = (), **arguments: Any) -> Tuner:
        usual = {"space": SPACE, "metric": "loss", "mode": "min", "max_trials": self.trials, "seed": self.seed}
        return Tuner(
            play_unsaved,
            backend=backend,
            name=name,
            failures=Failures(metric_required="eventually"),
            run=RunOptions(callbacks=callbacks, progress=False),
            **{**usual, **arguments},
        )

    def _reports(self, time_attr: str) -> Callable[[Config], Iterator[tuple[float, Metrics | Exception]]]:
        attempts: dict[str, int] = defaultdict(int)

        def reports(config: Config) -> Iterator[tuple[float, Metrics | Exception]]:
            name = f"{self.seed}:{config!r}"
            attempts[name] += 1
            curve, luck = random.Random(name), random.Random(f"{name}:{attempts[name]}")
            fails_at = luck.randint(1, self.length) if luck.random() < self.failing else 0
            for step in range(1, self.length + 1):
                seconds, metrics = curve.expovariate(1.0), {"loss": curve.random() / step, "accuracy": curve.random()}
                if curve.random() < self.odd:
                    metrics = {"loss": curve.choice(_ODD)} if curve.random() < 0.5 else {}
                if time_attr:
                    metrics[time_attr] = step
                yield seconds, RuntimeError("bad luck") if step == fails_at else metrics

        return reports


#: In all worlds except the last, which loses workers, replacing a driver makes no difference.
WORLDS: Final = {
    "one slot": World(seed=1, slots=1, trials=5),
    "more slots than trials": World(seed=2, slots=9, trials=4),
    "slow": World(seed=3, report_s=0.3, decision_s=3.0, stop_s=1.0),
    "failures": World(seed=4, failing=0.4),
    "odd values": World(seed=5, odd=0.4),
    "no number": World(seed=6, odd=1.0, trials=4),
    "lost workers": World(seed=7, life_s=20.0, decision_s=0.5, failing=0.2),
}

#: Pairs of a world and a metric for tests that replace a driver. One of them has an outcome constraint that half of the
#: reports satisfy.
REPLACED: Final[Sequence[tuple[str, Metric]]] = (
    ("slow", "loss"),
    ("failures", "loss"),
    ("failures", ["loss", "accuracy >= 0.5"]),
    ("odd values", "loss"),
)


def _delay(mean_s: float) -> Delay:
    return (lambda rng: rng.expovariate(1 / mean_s)) if mean_s else 0.0


def happened(results: Results) -> list[str]:
    """Return an experiment's events as texts, without events that depend on its drivers."""
    drivers = DriverStarted | CheckpointsDropped | ExperimentCreated | ExperimentEnded
    return [_text(event) for event in results.events() if not isinstance(event, drivers)]


def _text(event: Event | Report) -> str:
    # Compare texts, because NaN is not equal to itself.
    if isinstance(event, Report):
        return repr(event)
    values = {
        attribute.name: getattr(event, attribute.name) for attribute in fields(event) if attribute.name != "cursor"
    }
    return f"{type(event).__name__} {values}"


def check_plain(description: Mapping[str, object]) -> bytes:
    """Return the encoded form of a description. Fail if it is not a dict of plain values."""
    assert isinstance(description, dict), f"describe() returned {description!r}, and not a dict"
    return encode_value(description)
