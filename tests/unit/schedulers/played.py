"""The games that are recorded of each scheduler: all that it decided and chose while trials failed, paused, and were lost.

    python tests/unit/schedulers/played.py

plays them and writes ``games/NAME.txt`` anew: the first game of each scheduler in full, and a hash of each further one.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

from scheduler_play import Faults, Play, scattered

import mqtune
from mqtune.core.objective import Objective
from mqtune.core.trial import Config, Metrics
from mqtune.schedulers import PBTReplay, PolicyStep, Scheduler

FOLDER: Final = Path(__file__).parent / "games"
MAX_T: Final = 9
#: By its number a game has its slots, faults and checkpoints.
GAMES: Final = (1, 2, 3, 5, 6, 7)
LR: Final = {"lr": mqtune.uniform(0, 1)}
NAN, INF = math.nan, math.inf

#: The schedulers. Those whose names end in "max" maximise, and those in "bounded" have an outcome constraint.
KINDS: Final[dict[str, Callable[[], Scheduler]]] = {
    "fifo": lambda: mqtune.FIFO(batch=3),
    "asha": lambda: mqtune.ASHA(MAX_T, brackets=2, scope="last-2-avg"),
    "asha max": lambda: mqtune.ASHA(MAX_T, stop_last_trials=False),
    "asha bounded": lambda: mqtune.ASHA(MAX_T, reduction_factor=2),
    "promotion": lambda: mqtune.PromotionASHA(MAX_T, brackets=2, scope="avg"),
    "promotion max": lambda: mqtune.PromotionASHA(MAX_T, reduction_factor=2, stop_last_trials=False, most_paused=2),
    "promotion bounded": lambda: mqtune.PromotionASHA(MAX_T, reduction_factor=2, cost="cost"),
    "pasha": lambda: mqtune.PASHA(MAX_T, reduction_factor=2),
    "pasha bounded": lambda: mqtune.PASHA(MAX_T, reduction_factor=2),
    "rush": lambda: mqtune.RUSH(MAX_T, 3, reduction_factor=1.5),
    "hyperband": lambda: mqtune.HyperBand(MAX_T, reduction_factor=2, scope="all"),
    "hyperband max": lambda: mqtune.HyperBand(MAX_T, stop_last_trials=False, brackets=2),
    "hyperband bounded": lambda: mqtune.HyperBand(MAX_T, brackets=1),
    "median": lambda: mqtune.MedianStopping(min_samples=2, interval=2, grace_period=3),
    "median max": lambda: mqtune.MedianStopping(cutoff=0.25, min_run_s=2),
    "median bounded": lambda: mqtune.MedianStopping(min_samples=1, against="completed", min_completed=2),
    "wilcoxon": lambda: mqtune.WilcoxonStopping(p_threshold=0.3),
    "wilcoxon bounded": lambda: mqtune.WilcoxonStopping(p_threshold=0.3),
    "pbt": lambda: mqtune.PBT(2, LR, quantile_fraction=0.25, seed=3),
    "pbt max": lambda: mqtune.PBT(2, LR, quantile_fraction=0.5, population_size=5, grace_period=3),
    "pbt bounded": lambda: mqtune.PBT(2, LR, quantile_fraction=0.5, population_size=3),
    "generations": lambda: mqtune.PBT(2, LR, quantile_fraction=0.5, population_size=4, synchronous=True),
    "generations bounded": lambda: mqtune.PBT(3, LR, quantile_fraction=0.25, population_size=5, synchronous=True),
    "policy": lambda: PBTReplay([PolicyStep(0, {"lr": 1}), PolicyStep(4, {"lr": 2}), PolicyStep(6, {"lr": 3})]),
}


def curve(config: Config, now: int) -> Metrics | None:
    """Scores with many ties, NaN and infinities among them; some reports lack the metric, and trials end at 12."""
    key = hash_of(json.dumps(config))
    value = scattered(key, now, values=13)
    loss = {10: NAN, 11: INF}.get(value, value)
    metrics = {"cost": scattered(key, now + 50, values=5), "latency": scattered(key, now + 100, values=14)}
    return None if now > 12 else metrics | {"time_total_s": now} | ({} if value == 12 else {"loss": loss})


def hash_of(text: str) -> int:
    return int(sha256(text.encode()).hexdigest()[:8], 16)


def lines_of(kind: str, number: int) -> Iterator[str]:
    """Play one game, and yield what the scheduler was told and what it answered."""
    scheduler, rng = KINDS[kind](), random.Random(number)
    mode: Any = "max" if kind.endswith("max") else "min"
    metrics = ["loss", "latency <= 10"] if kind.endswith("bounded") else ["loss"]
    scheduler.check_objective(Objective.of(metrics, mode))
    scheduler.bind("loss", mode)
    likely = {"fail": 0.03, "lose": 0.05, "abandon": 0.03, "pause": 0.05, "resume": 0.05, "late": 0.3}
    game = Play(
        scheduler,
        curve,
        slots=1 + number % 7,
        trials=5 if kind == "policy" else 20,
        rng=rng,
        configs=lambda trial: {"lr": 1 if kind == "policy" else trial / 20},
        faults=Faults(**{name: odds * (number % 3 > 0) for name, odds in likely.items()}),
        checkpoints=number % 4 < 3,
        keeps_calls=True,
    ).run()
    game.check_end()
    for call in game.calls:
        answer = "" if call.answer is None else f" {call.answer.action.name} {call.answer.reason} {call.answer.source}"
        yield f"{call.method} {call.trial.id}{answer} | {' | '.join(map(str, call.choices))}"


def played(kind: str) -> str:
    games = ["\n".join(lines_of(kind, number)) for number in GAMES]
    return "\n".join([games[0], *(sha256(game.encode()).hexdigest()[:16] for game in games[1:]), ""])


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in KINDS:
        (FOLDER / f"{name}.txt").write_text(played(name))
