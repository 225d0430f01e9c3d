"""People who steer an experiment from other processes at any moment: some ask twice, some lose the answer and ask again."""

from __future__ import annotations

from typing import Any, Final

from befalling import Run
from world import Experiment

#: For how long an answer is waited for, in seconds.
_TIMEOUT_S: Final = 5.0
#: After how long somebody who has lost the answer asks again, in seconds.
_AGAIN_S: Final = (0.3, 3.0)
#: How often it is tried to have a trial go on that was paused.
_RESUME_EVERY_S: Final = 1.0


def request_made(run: Run) -> str:
    """Ask once."""
    return _ask(run, "")


def request_doubled(run: Run) -> str:
    """Ask twice at the same time, by one id."""
    return _ask(run, "twice")


def answer_lost(run: Run) -> str:
    """Ask, be killed meanwhile, and ask again."""
    return _ask(run, "again")


def _ask(run: Run, how: str) -> str:
    open_ones = [each for each in run.world.experiments if not each.results.exists()]
    if not open_ones:
        return ""
    experiment = run.random.choice(open_ones)
    action, arguments = run.random.choice(_requests(run))
    of_all = action in ("add", "set")
    # There may be no such trial yet.
    trial = "" if of_all else f"{run.random.randint(1, experiment.plan['max_trials']):04d}"
    request = _request(run, action, trial, arguments)
    first = run.world.ask(experiment, request)
    if how == "twice":
        run.world.ask(experiment, request)
    if how == "again":
        # Sometimes before the request is made, sometimes while the answer is waited for.
        run.later(run.random.uniform(0.2, 1.5), first.kill)
        run.later(run.random.uniform(*_AGAIN_S), lambda: run.world.ask(experiment, request) and None)
    if action == "pause":
        run.later(_RESUME_EVERY_S, lambda: _resume(run, experiment, trial))
    return f"{experiment.name}: {action} {trial} {arguments or ''} {how}".strip()


def _requests(run: Run) -> list[tuple[str, dict[str, Any]]]:
    x = round(run.random.random(), 3)
    return [
        ("stop", {}),
        ("complete", {"reason": "good enough"}),
        ("abandon", {}),
        ("fail", {"reason": "it diverges"}),
        ("pause", {}),
        ("pause", {}),
        ("save", {}),
        ("restart", {}),
        ("restart", {"config": {"x": x}}),
        ("add", {"config": {"x": x}}),
        ("add", {"config": {"x": x}}),
        ("set", {"max_concurrent": run.random.randint(2, 6)}),
        # Nobody can do that.
        ("add", {"config": {"no such": x}}),
        ("set", {"max_trials": 0}),
        ("dance", {}),
    ]


def _request(run: Run, action: str, trial: str, arguments: dict[str, Any]) -> dict[str, Any]:
    id_ = f"{run.random.getrandbits(64):016x}"
    return {"id": id_, "action": action, "trial": trial, "arguments": arguments, "timeout_s": _TIMEOUT_S}


def _resume(run: Run, experiment: Experiment, trial: str) -> None:
    """Have a trial go on, again and again until the experiment is over: the pause may be carried out late."""
    if experiment.results.exists():
        return
    run.world.ask(experiment, _request(run, "resume", trial, {}) | {"timeout_s": 0.0})
    run.later(_RESUME_EVERY_S, lambda: _resume(run, experiment, trial))
