"""People who steer an experiment from other processes at any moment: some ask twice, some lose the answer and ask again."""

from __future__ import annotations

from typing import Any, Final

from befalling import Run
from observed import lines
from world import Experiment

#: For how long an answer is waited for, in seconds.
_TIMEOUT_S: Final = 5.0
#: After how long somebody who has lost the answer asks again, in seconds.
_AGAIN_S: Final = (0.3, 3.0)
#: How often it is tried to have a trial go on that was paused.
_RESUME_EVERY_S: Final = 2.0
_TERMINAL: Final = ("COMPLETED", "EARLY_STOPPED", "FAILED", "ABANDONED")


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
        run.later(_RESUME_EVERY_S, lambda: _resume(run, experiment, trial, set()))
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


def _resume(run: Run, experiment: Experiment, trial: str, asked: set[str]) -> None:
    """Have a trial go on, again and again until it does or has ended: the pause may be carried out late."""
    answers = [line for line in lines(experiment.said) if line["id"] in asked]
    if experiment.results.exists() or any(map(_is_over, answers)):
        return
    request = _request(run, "resume", trial, {})
    run.world.ask(experiment, request)
    run.later(_RESUME_EVERY_S, lambda: _resume(run, experiment, trial, asked | {request["id"]}))


def _is_over(answer: dict[str, Any]) -> bool:
    return bool(answer.get("done")) or any(status in answer.get("reason", "") for status in _TERMINAL)
