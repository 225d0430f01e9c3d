"""An operator who changes what experiments get of the fleet while they run: quotas, priorities, shares."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from looks import QUOTAS
from request_faults import experiment_under_way
from server_faults import answer
from waiting import eventually

if TYPE_CHECKING:
    from campaign import Campaign as Run

#: How many trials may run at once; none, fewer than the slots, and more.
_SLOTS: Final = (0, 0, 1, 2, 3, 5, 8)
#: How many times a quota is changed at most until it is lifted, and how long each holds, in seconds.
_CHANGES: Final = 3
_HOLDS_S: Final = (0.5, 5.0)
#: After how long it is looked again whether a command has ended, or a quota is really gone, in seconds.
_LOOK_S: Final = 0.2
_AGAIN_S: Final = 1.0
#: By when a quota is gone once everything is in order, in seconds.
_LIFTED_S: Final = 60.0
#: The share of commands that are given with the operator's account.
_BY_OPERATOR: Final = 0.5


def quota_changed(run: Run) -> str:
    """``mqtune quota``: up, down, to nothing, and away again."""
    names = [experiment.name for experiment in run.world.experiments]
    family = f"{names[0].rpartition('-')[0]}-*"
    pattern = run.random.choice([*names, family, family, "*"])
    steps = run.random.choices(_SLOTS, k=run.random.randint(1, _CHANGES))
    holds = [run.random.uniform(*_HOLDS_S) for _ in steps]
    as_operator = run.random.random() < _BY_OPERATOR
    if pattern in run.world.quotas:
        return ""
    run.world.quotas.add(pattern)

    def change(left: list[tuple[int, float]]) -> None:
        if not left:
            _lift(run, pattern, [], as_operator=as_operator)
            return
        slots, for_s = left[0]
        command = run.world.command("quota", pattern, str(slots), as_operator=as_operator)
        run.later(_LOOK_S, lambda: _then(run, command, for_s, lambda: change(left[1:])))

    change(list(zip(steps, holds, strict=True)))
    return f"{pattern}: {', '.join(map(str, steps))}, none"


def _then(run: Run, command: subprocess.Popen[bytes], for_s: float, action: Any) -> None:
    """Do something some seconds after a command has ended, however: a Redis that is away refuses it."""
    if command.poll() is None:
        run.later(_LOOK_S, lambda: _then(run, command, for_s, action))
    else:
        run.later(for_s, action)


def _lift(run: Run, pattern: str, drops: list[Any], *, as_operator: bool, was_gone: bool = False) -> None:
    """Drop a quota until it is gone, and again where a Redis that was set back has it once more."""
    is_another_changes = was_gone and pattern in run.world.quotas
    if is_another_changes or all(experiment.results.exists() for experiment in run.world.experiments):
        return
    if _is_lifted(run, pattern, drops, as_operator=as_operator):
        run.world.quotas.discard(pattern)
        was_gone = True
    run.later(_AGAIN_S, lambda: _lift(run, pattern, drops, as_operator=as_operator, was_gone=was_gone))


def lift_quotas(run: Run) -> None:
    """Drop what quotas the end of a run has kept from being lifted: who reads an experiment that was ended early goes on with it."""
    for pattern in sorted(run.world.quotas):
        eventually(partial(_is_lifted, run, pattern, []), _LIFTED_S, f"the quota {pattern!r} can't be lifted")


def _is_lifted(run: Run, pattern: str, drops: list[Any], *, as_operator: bool = False) -> bool:
    """Whether a quota is gone; drop it, unless a command to do that is under way."""
    if drops and drops[-1].poll() is None:
        return False
    if _has_quota(run, pattern):
        drops.append(run.world.command("quota", pattern, "--drop", as_operator=as_operator))
        return False
    return True


def _has_quota(run: Run, pattern: str) -> bool:
    """Whether there is such a quota, or the Redis does not say."""
    return answer(run, "HEXISTS", QUOTAS, pattern) != 0


def standing_changed(run: Run) -> str:
    """``mqtune set``: another priority or share, or whether trials may be paused for others."""
    if (experiment := experiment_under_way(run)) is None:
        return ""
    values = {
        "priority": run.random.choice(["high", "normal", "low"]),
        "share": run.random.choice(["0.5", "1", "3"]),
        "preemptible": run.random.choice(["true", "true", "false"]),
    }
    names = run.random.sample(sorted(values), run.random.randint(1, len(values)))
    changes = [f"{name}={values[name]}" for name in names]
    as_operator = run.random.random() < _BY_OPERATOR
    run.world.command("set", experiment.name, *changes, as_operator=as_operator)
    return f"{experiment.name}: {' '.join(changes)}"
