"""The systems on real trainings: each is a script as a user's, with its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from benchmarks.measurement import Variant
from benchmarks.work.training import MEMORY, PREFIX, TIME, TRAININGS, Training, measure, measure_memory

__all__ = ["variants"]

#: What the slowest takes on a machine of two busy cores, eight interpreters that import PyTorch at once.
DEADLINE_S: Final = 1_200.0
_RAY: Final = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
}


class Way(NamedTuple):
    """A way to run the trainings on a system: its script with arguments, and with how many slots memory is measured."""

    settings: str
    script: str
    arguments: tuple[str, ...] = ()
    slots: tuple[int, ...] = (2, 8)
    #: Of the timed run, where it is not two.
    timed_slots: int = 2
    environment: Mapping[str, str] = {}
    slow: bool = False


_HERE: Final = "embedded server, one local worker, all else as it comes"

WAYS: Final[Mapping[str, Mapping[str, Way]]] = {
    "mqtune": {
        "function": Way(f"{_HERE}: a fresh forked process for each trial", "run_mqtune.py", slots=(1, 2, 8)),
    },
    "ray": {
        "fresh": Way(
            "a fresh actor process for each trial, no result loggers", "run_ray.py", environment=_RAY, slow=True
        ),
        "reused": Way("reuse_actors=True, no result loggers", "run_ray.py", ("reuse",), environment=_RAY),
    },
    "syne": {
        "best": Way(
            "LocalBackend, its ASHA; sleep_time=0.01, no callbacks, save_tuner=False, no status table, rotate_gpus=False",
            "run_syne.py",
            slow=True,
        ),
    },
    "optuna": {
        "processes": Way(
            "as many processes as slots, forked once and lasting, JournalStorage in one file, RandomSampler, "
            "SuccessiveHalvingPruner",
            "run_optuna.py",
            ("processes",),
        ),
        "in process": Way(
            "study.optimize in one process, one trial at a time, all in memory, RandomSampler, SuccessiveHalvingPruner",
            "run_optuna.py",
            slots=(1,),
            timed_slots=1,
        ),
    },
}


def variants(system: str) -> dict[str, tuple[Variant, ...]]:
    """Return a system's variants of all trainings, by their workloads' names."""
    found: dict[str, tuple[Variant, ...]] = {}
    for training in TRAININGS.values():
        ways = WAYS[system].items()
        found[f"{PREFIX}/{training.name}/{TIME}"] = tuple(_timed(training, name, way) for name, way in ways)
        found[f"{PREFIX}/{training.name}/{MEMORY}"] = tuple(
            variant for name, way in ways for variant in _memory(training, name, way)
        )
    return found


def _timed(training: Training, name: str, way: Way) -> Variant:
    return Variant(
        name=name,
        settings=way.settings,
        measure=measure(training, way.script, *way.arguments),
        sizes={"slots": way.timed_slots},
        slow=way.slow,
        deadline_s=DEADLINE_S,
        environment=way.environment,
    )


def _memory(training: Training, name: str, way: Way) -> Iterator[Variant]:
    for slots in way.slots:
        yield Variant(
            name=f"{name}, {slots} slot{'s' if slots > 1 else ''}",
            settings=way.settings,
            measure=measure_memory(training, way.script, *way.arguments),
            sizes={"slots": slots},
            slow=way.slow,
            deadline_s=DEADLINE_S,
            environment=way.environment,
        )
