"""Random worlds for the schedulers: fleets with delays, deaths and failures, and a scheduler that is watched."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from hypothesis import strategies as st
from simulation import SPACE, Simulation

from mqtune import (
    ASHA,
    FIFO,
    PASHA,
    PBT,
    HyperBand,
    MedianStopping,
    PromotionASHA,
    RandomSearcher,
    WilcoxonStopping,
    uniform,
)
from mqtune.backends import Simulated
from mqtune.core.objective import Metric
from mqtune.core.trial import Config, Decision, Report, Trial
from mqtune.schedulers import Scheduler
from mqtune.testing.schedulers import Watched

__all__ = ["MAX_T", "SCHEDULERS", "Repeating", "World", "worlds"]

MAX_T: Final = 9
#: The latencies above this are not reported.
_REPORTED: Final = 0.8

#: Every scheduler, by name; those with levels end at MAX_T.
SCHEDULERS: Final[dict[str, Callable[[], Scheduler]]] = {
    "fifo": FIFO,
    "fifo-batches": lambda: FIFO(batch=2),
    "asha": lambda: ASHA(MAX_T),
    "asha-2": lambda: ASHA(MAX_T, grace_period=2, reduction_factor=1.5),
    "asha-brackets": lambda: ASHA(MAX_T, brackets=3),
    "promotion": lambda: PromotionASHA(MAX_T),
    "promotion-2": lambda: PromotionASHA(MAX_T, grace_period=2, reduction_factor=2),
    "promotion-brackets": lambda: PromotionASHA(MAX_T, reduction_factor=2, brackets=3),
    "promotion-pasha": lambda: PASHA(MAX_T, reduction_factor=2),
    "hyperband": lambda: HyperBand(MAX_T),
    "hyperband-2": lambda: HyperBand(MAX_T, reduction_factor=2),
    "median": lambda: MedianStopping(grace_period=2, min_samples=2),
    "median-completed": lambda: MedianStopping(against="completed", min_samples=1, min_completed=1),
    "wilcoxon": lambda: WilcoxonStopping(p_threshold=0.4),
    "pbt": lambda: PBT(2, {"lr": uniform(0, 1)}, quantile_fraction=0.5),
    "pbt-turns": lambda: PBT(4, {"lr": uniform(0, 1)}, quantile_fraction=0.5, population_size=5),
    "pbt-generations": lambda: PBT(
        4, {"lr": uniform(0, 1)}, quantile_fraction=0.5, population_size=4, synchronous=True
    ),
}


@dataclass(frozen=True)
class World:
    """What a simulation is made of; the same world gives the same simulation.

    Mean seconds of each delay; 0 for none.
    """

    seed: int
    trials: int = 6
    slots: int = 3
    length: int = MAX_T + 2
    checkpoints: bool = True
    start_s: float = 0.0
    report_s: float = 0.0
    decision_s: float = 0.0
    stop_s: float = 0.0
    life_s: float = 0.0
    #: How likely an attempt fails, at a report drawn from its length.
    failing: float = 0.0
    max_failures: int = 0
    #: How likely a report's metric is NaN, or one of a few values that many trials have.
    odd: float = 0.0
    #: Whether the experiment has an outcome constraint, which every second report keeps to and every fifth behind a trial's first lacks
    #: the metric of.
    limited: bool = False
    lockstep: bool = False

    def but(self, **changes: Any) -> World:
        """Return a world that differs in these."""
        return replace(self, **changes)

    @property
    def metric(self) -> Metric:
        """What the experiment optimises."""
        return ["loss", "latency <= 0.4"] if self.limited else "loss"

    def simulation(self, scheduler: Callable[[], Scheduler], **options: Any) -> Simulation:
        """Return a simulation that has not begun."""
        return Simulation(
            Simulated(
                self._reports(),
                slots=self.slots,
                checkpoints=self.checkpoints,
                seed=self.seed,
                start_delay_s=_delay(self.start_s),
                report_delay_s=_delay(self.report_s),
                decision_delay_s=_delay(self.decision_s),
                stop_delay_s=_delay(self.stop_s),
                life_s=_delay(self.life_s) if self.life_s else None,
                away_s=3.0,
                **options,
            ),
            scheduler=scheduler,
            searcher=lambda: RandomSearcher(SPACE, seed=self.seed),
            metric=self.metric,
            max_failures=self.max_failures,
            lockstep=self.lockstep,
            max_trials=self.trials,
        )

    def _reports(self) -> Callable[[Config], Iterator[Any]]:
        attempts: dict[str, int] = defaultdict(int)

        def reports(config: Config) -> Iterator[Any]:
            name = f"{self.seed}:{config!r}"
            attempts[name] += 1
            curve, luck = random.Random(name), random.Random(f"{name}:{attempts[name]}")
            latency = random.Random(f"latency {name}")
            fails_at = luck.randint(1, self.length) if luck.random() < self.failing else 0
            for step in range(1, self.length + 1):
                seconds, loss = curve.expovariate(1.0), curve.random() / step
                if curve.random() < self.odd:
                    loss = curve.choice([float("nan"), 0.5, float("inf")])
                if step == fails_at:
                    yield seconds, RuntimeError("bad luck")
                drawn = latency.random()
                late = {"latency": drawn} if self.limited and (step == 1 or drawn < _REPORTED) else {}
                yield seconds, {"loss": loss, "training_iteration": step, **late}

        return reports


def _delay(mean_s: float) -> Any:
    return (lambda rng: rng.expovariate(1 / mean_s)) if mean_s else 0.0


@st.composite
def worlds(draw: st.DrawFn, **fixed: Any) -> World:
    """Any world; *fixed* says what is not drawn."""
    mean = st.sampled_from([0.0, 0.0, 0.3, 3.0])
    fields: dict[str, Any] = {
        "seed": st.integers(0, 10_000),
        "trials": st.integers(1, 14),
        "slots": st.integers(1, 7),
        "checkpoints": st.booleans(),
        "start_s": mean,
        "report_s": mean,
        "decision_s": mean,
        "stop_s": mean,
        "life_s": st.sampled_from([0.0, 0.0, 0.0, 40.0]),
        "failing": st.sampled_from([0.0, 0.0, 0.3]),
        "max_failures": st.sampled_from([0, 1, -1]),
        "odd": st.sampled_from([0.0, 0.3]),
        "limited": st.booleans(),
        "lockstep": st.booleans(),
    }
    return World(**{name: fixed[name] if name in fixed else draw(strategy) for name, strategy in fields.items()})


class Repeating(Watched):
    """A watched scheduler that is shown again what it was shown before; nothing may come of it but the decision that stands."""

    def __init__(self, inner: Scheduler, *, seed: int) -> None:
        super().__init__(inner)
        self._seen: dict[str, list[Report]] = defaultdict(list)
        self._rng = random.Random(seed)

    def on_report(self, trial: Trial, report: Report) -> Decision:
        decision = super().on_report(trial, report)
        seen = self._seen[trial.id]
        seen.append(report)
        for old in (report, self._rng.choice(seen)):
            assert self.inner.on_report(trial, old) == decision
        return decision
