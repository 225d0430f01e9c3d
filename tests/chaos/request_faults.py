"""People who steer experiments from other processes at any moment, and change what each gets of the fleet.

Some ask twice, some lose the answer and ask again. A part of them has the operator's account of ``mqtune fleet acl`` alone, and now and
then tries what that may not do.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import redis
from lone import OPERATOR, connected
from looks import QUOTAS
from observed import lines, seat_of
from server_faults import answer, celery_of
from waiting import eventually
from world import Experiment

from mqtune.core.codec import encode_value
from mqtune.core.keys import CONTROL_EXCHANGE, TASK_NAME, control_channel

if TYPE_CHECKING:
    from campaign import Campaign as Run

#: How often it is tried to have a trial go on that was paused.
_RESUME_EVERY_S: Final = 2.0
_TERMINAL: Final = ("COMPLETED", "EARLY_STOPPED", "FAILED", "ABANDONED")
#: Orders and hints that no driver gives.
_NONSENSE: Final = (
    "save:" + "9" * 400,
    "go:" + "9" * 5_000,
    "go:x:" + "y" * 100_000,
    "save:",
    ":",
    "save:-1",
    "\xff:\x00",
)
#: Appends a word to the orders of an attempt that goes on, which intents end.
_FORGE: Final = """
local orders = redis.call('HGET', KEYS[1], 'orders')
if not orders or redis.call('HGET', KEYS[1], 'state') ~= 'running' then return 0 end
if orders ~= '' and not string.find(orders, ':', 1, true) then return 0 end
redis.call('HSET', KEYS[1], 'orders', orders .. ' ' .. ARGV[1] .. ' save:' .. string.rep('9', 400))
return 1
"""


def ask_once_or(run: Run, how: str) -> str:
    """Ask once; "twice", at the same time and by one id; or "again", after being killed meanwhile."""
    if (experiment := experiment_under_way(run)) is None:
        return ""
    action, arguments = run.random.choice(_requests(run, experiment))
    # There may be no such trial yet.
    is_on_all = action in ("add", "set", "end")
    trial = "" if is_on_all else f"{run.random.randint(1, experiment.plan['max_trials']):04d}"
    request = _request(run, action, trial, arguments)
    as_operator = run.random.random() < 0.4
    ask = partial(run.world.ask, experiment, request, as_operator=as_operator)
    first = ask()
    if how == "twice":
        ask()
    if how == "again":
        # Sometimes before the request is made, sometimes while the answer is waited for.
        run.later(run.random.uniform(0.2, 1.5), first.kill)
        run.later(run.random.uniform(0.3, 3.0), ask)
    if action == "pause":
        run.later(_RESUME_EVERY_S, lambda: _resume(run, experiment, request, set()))
    by = "by the operator" if as_operator else ""
    return " ".join(filter(None, [f"{experiment.name}:", action, trial, str(arguments or ""), how, by]))


def ask_of(run: Run, experiment: Experiment, trial: str, action: str, **arguments: Any) -> None:
    """Ask something of a trial, or of the experiment, and have a trial go on if that is a pause."""
    request = _request(run, action, trial, arguments)
    run.world.ask(experiment, request)
    if action == "pause":
        run.later(_RESUME_EVERY_S, lambda: _resume(run, experiment, request, set()))


def experiment_under_way(run: Run) -> Experiment | None:
    """Return an experiment that is under way: a trial has run, and not all have ended."""
    under_way = [each for each in run.world.experiments if run.world.has_begun(each) and not each.results.exists()]
    return run.random.choice(under_way) if under_way else None


def _requests(run: Run, experiment: Experiment) -> list[tuple[str, dict[str, Any]]]:
    config = {"config": {"x": round(run.random.random(), 3)}}
    most = {"max_trials": experiment.plan["max_trials"] + run.random.randint(1, 4)}
    can_be = [*((action, {}) for action in ("stop", "abandon", "pause", "pause", "save", "restart", "end"))]
    can_be += [("complete", {"reason": "good enough"}), ("fail", {"reason": "it diverges"}), ("end", {"now": True})]
    can_be += [("restart", config), ("add", config), ("add", config), ("set", most)]
    can_be += [("set", {"max_concurrent": run.random.randint(2, 6)})]
    nobody_can = [("add", {"config": {"no such": 1}}), ("set", {"max_trials": 0}), ("end", {"now": "perhaps"})]
    return [*can_be, *nobody_can, ("dance", {})]


def _request(run: Run, action: str, trial: str, arguments: dict[str, Any]) -> dict[str, Any]:
    id_ = f"{run.random.getrandbits(64):016x}"
    return {"id": id_, "action": action, "trial": trial, "arguments": arguments, "wait_s": 5.0}


def _resume(run: Run, experiment: Experiment, pause: dict[str, Any], asked: set[str]) -> None:
    """Have a trial go on, again and again until it does or has ended.

    What was answered before the pause was says nothing: that may be carried out late, perhaps behind a request to resume.
    """
    said = lines(experiment.said)
    if experiment.results.exists() or any(_is_over(line) for line in said if line["id"] in asked):
        return
    request = _request(run, "resume", pause["trial"], {})
    run.world.ask(experiment, request)
    if any(line["id"] == pause["id"] for line in said):
        asked = asked | {request["id"]}
    run.later(_RESUME_EVERY_S, lambda: _resume(run, experiment, pause, asked))


def _is_over(answer: dict[str, Any]) -> bool:
    return bool(answer.get("done")) or any(status in answer.get("reason", "") for status in _TERMINAL)


def task_revoked(run: Run) -> str:
    """Celery's revoke of an attempt's task, waiting or running, which a worker that joins later has not heard."""
    experiment = experiment_under_way(run)
    if experiment is None:
        return ""
    keys = experiment.keys
    with contextlib.suppress(redis.RedisError), connected(run.world.server) as client:
        trials = [*client.zrange(keys.staged, 0, -1), *client.zrange(keys.leases, 0, -1)]
        if not trials:
            return ""
        name = run.random.choice(trials).decode()
        number = client.hget(keys.trial(name), "attempt")
        return "" if number is None else revoke(run, experiment, name, int(number))
    return ""


def revoke(run: Run, experiment: Experiment, name: str, attempt: int) -> str:
    """Revoke the task of an attempt, or of a seat of it, which then *name* says."""
    world = run.world
    if not _tell_workers(run, f"{experiment.name}/{name}/{attempt}"):
        return ""
    run.revoked(experiment, seat_of(name)[0], attempt)
    if run.random.random() < 1 / 2:
        seat = run.random.randrange(world.seats)
        run.later(run.random.uniform(0.0, 2.0), lambda: world.start_worker(seat))
    return f"{experiment.name}: {name} attempt {attempt}"


def _tell_workers(run: Run, task_id: str) -> bool:
    """Revoke a task, and one that never was; some people also have what runs end, or killed."""
    how = run.random.choice([{}, {"terminate": True}, {"terminate": True, "signal": "SIGKILL"}])
    with celery_of(run, "flower") as app:
        app.conf.control_exchange = CONTROL_EXCHANGE
        app.control.revoke([task_id, "no such task"], **how)
        return True
    return False


def orders_forged(run: Run) -> str:
    """Somebody with a team's account writes orders for its own trial that make no sense, and such hints.

    Its worker serves the trials of others too. Orders of the driver's stay beside them.
    """
    experiment = run.random.choice(run.world.experiments)
    trials = [f"{number:04d}" for number in range(1, experiment.plan["max_trials"] + 1)]
    run.random.shuffle(trials)
    nonsense = run.random.choice(_NONSENSE)
    with contextlib.suppress(redis.ConnectionError, redis.TimeoutError), connected(run.world.server) as client:
        for trial in trials:
            if client.eval(_FORGE, 1, experiment.keys.trial(trial), nonsense):
                hint = encode_value([[experiment.name, trial, 1, nonsense], nonsense, [1, 2]])
                for worker in run.world.living_workers():
                    client.publish(control_channel(worker.name), hint)
                return f"{nonsense[:20]!r} for trial {trial} of {experiment.name}"
    return ""


def operator_oversteps(run: Run) -> str:
    """Try with the operator's account what only drivers, workers and the Redis's owner may do."""
    keys, queue = run.random.choice(run.world.experiments).keys, run.world.queue
    commands = [
        *("FLUSHALL", "KEYS *", "CONFIG SET maxmemory 1", f"ACL SETUSER {OPERATOR} +@all", "GET shop:stock"),
        *(
            f"DEL {keys.journal}",
            f"XTRIM {keys.journal} MAXLEN 0",
            f"HGET {keys.driver} holder",
            f"DEL {keys.requests}",
        ),
        *(f"HSET {keys.trial('0001')} intent stop", f"DEL {keys.trial('0001')}", f"ZADD {keys.leases} 0 0001"),
        *(f"ZREM {keys.staged} 0001", f"HGETALL {keys.checkpoints}", f"LPUSH {queue} none", f"LRANGE {queue} 0 -1"),
        *(f"PUBLISH /0.{CONTROL_EXCHANGE}.pidbox none", f"PUBLISH /0.{TASK_NAME} none"),
    ]
    run.random.shuffle(commands)
    refused, server = 0, run.world.server
    with contextlib.suppress(redis.ConnectionError, redis.TimeoutError), connected(server, OPERATOR) as client:
        for command in commands:
            refused += _is_refused(run, partial(client.execute_command, *command.split()), command)
    return f"{refused} commands"


def _is_refused(run: Run, command: Callable[[], object], what: str) -> bool:
    """Whether a command is refused for want of rights; take note of it if the Redis carries it out instead."""
    try:
        command()
    except redis.exceptions.NoPermissionError:
        return True
    except redis.AuthenticationError as error:
        run.wrong("account", f"the operator's account is gone: {error}")
    except redis.BusyLoadingError:
        # It has just been started.
        pass
    except redis.ResponseError as error:
        run.wrong("account", f"the operator may {what}: {error}")
    else:
        run.wrong("account", f"the operator may {what}")
    return False


def quota_changed(run: Run) -> str:
    """``mqtune fleet quota``: up, down, to nothing, and away again."""
    names = [experiment.name for experiment in run.world.experiments]
    family = f"{names[0].rpartition('-')[0]}-*"
    pattern = run.random.choice([*names, family, family, "*"])
    steps = run.random.choices((0, 0, 1, 2, 3, 5, 8), k=run.random.randint(1, 3))
    holds = [run.random.uniform(0.5, 5.0) for _ in steps]
    as_operator = run.random.random() < 0.5
    if pattern in run.world.quotas:
        return ""
    run.world.quotas.add(pattern)

    def change(left: list[tuple[int, float]]) -> None:
        if not left:
            _lift(run, pattern, [], as_operator=as_operator)
            return
        slots, for_s = left[0]
        command = run.world.command("fleet", "quota", pattern, str(slots), as_operator=as_operator)
        run.later(0.2, lambda: _then(run, command, for_s, lambda: change(left[1:])))

    change(list(zip(steps, holds, strict=True)))
    return f"{pattern}: {', '.join(map(str, steps))}, none"


def _then(run: Run, command: subprocess.Popen[bytes], for_s: float, action: Any) -> None:
    """Do something some seconds after a command has ended, however: a Redis that is away refuses it."""
    if command.poll() is None:
        run.later(0.2, lambda: _then(run, command, for_s, action))
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
    run.later(1.0, lambda: _lift(run, pattern, drops, as_operator=as_operator, was_gone=was_gone))


def lift_quotas(run: Run) -> None:
    """Drop what quotas the end of a run has kept from being lifted: who reads an experiment that was ended early goes on with it."""
    for pattern in sorted(run.world.quotas):
        eventually(partial(_is_lifted, run, pattern, []), 60.0, f"the quota {pattern!r} can't be lifted")


def _is_lifted(run: Run, pattern: str, drops: list[Any], *, as_operator: bool = False) -> bool:
    """Whether a quota is gone; drop it, unless a command to do that is under way."""
    if drops and drops[-1].poll() is None:
        return False
    if _has_quota(run, pattern):
        drops.append(run.world.command("fleet", "quota", pattern, "none", as_operator=as_operator))
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
    as_operator = run.random.random() < 0.5
    run.world.command("set", experiment.name, *changes, as_operator=as_operator)
    return f"{experiment.name}: {' '.join(changes)}"
