"""People who steer an experiment from other processes at any moment: some ask twice, some lose the answer and ask again.

A part of them has the operator's account of ``mqtune acl`` alone, and now and then tries what that may not do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import redis
from lone import OPERATOR, connected
from observed import lines, seat_of
from server_faults import celery_of
from world import Experiment

from mqtune.core.codec import encode_value
from mqtune.core.keys import CONTROL_EXCHANGE, TASK_NAME, control_channel

if TYPE_CHECKING:
    from campaign import Campaign as Run

#: For how long an answer is waited for, in seconds.
_TIMEOUT_S: Final = 5.0
#: After how long somebody who has lost the answer asks again, in seconds.
_AGAIN_S: Final = (0.3, 3.0)
#: How often it is tried to have a trial go on that was paused.
_RESUME_EVERY_S: Final = 2.0
_TERMINAL: Final = ("COMPLETED", "EARLY_STOPPED", "FAILED", "ABANDONED")
#: Actions on the experiment, and not on one of its trials.
_ON_ALL: Final = frozenset({"add", "set", "end"})
#: The share of requests that are made with the operator's account.
_BY_OPERATOR: Final = 0.4
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
#: How long after a revoke another worker joins, which can't have heard it, in seconds.
_JOINS_S: Final = (0.0, 2.0)


def ask_once_or(run: Run, how: str) -> str:
    """Ask once; "twice", at the same time and by one id; or "again", after being killed meanwhile."""
    if (experiment := experiment_under_way(run)) is None:
        return ""
    action, arguments = run.random.choice(_requests(run, experiment))
    # There may be no such trial yet.
    trial = "" if action in _ON_ALL else f"{run.random.randint(1, experiment.plan['max_trials']):04d}"
    request = _request(run, action, trial, arguments)
    as_operator = run.random.random() < _BY_OPERATOR
    ask = partial(run.world.ask, experiment, request, as_operator=as_operator)
    first = ask()
    if how == "twice":
        ask()
    if how == "again":
        # Sometimes before the request is made, sometimes while the answer is waited for.
        run.later(run.random.uniform(0.2, 1.5), first.kill)
        run.later(run.random.uniform(*_AGAIN_S), ask)
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
        ("set", {"max_trials": experiment.plan["max_trials"] + run.random.randint(1, 4)}),
        ("end", {}),
        ("end", {"now": True}),
        # Nobody can do that.
        ("add", {"config": {"no such": x}}),
        ("set", {"max_trials": 0}),
        ("end", {"now": "perhaps"}),
        ("dance", {}),
    ]


def _request(run: Run, action: str, trial: str, arguments: dict[str, Any]) -> dict[str, Any]:
    id_ = f"{run.random.getrandbits(64):016x}"
    return {"id": id_, "action": action, "trial": trial, "arguments": arguments, "timeout_s": _TIMEOUT_S}


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
        run.later(run.random.uniform(*_JOINS_S), lambda: world.start_worker(seat))
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
    commands: list[tuple[str | int, ...]] = [
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("CONFIG", "SET", "maxmemory", 1),
        ("ACL", "SETUSER", OPERATOR, "+@all"),
        ("GET", "shop:stock"),
        ("DEL", keys.journal),
        ("XTRIM", keys.journal, "MAXLEN", 0),
        ("HGET", keys.driver, "holder"),
        ("HSET", keys.trial("0001"), "intent", "stop"),
        ("DEL", keys.trial("0001")),
        ("ZADD", keys.leases, 0, "0001"),
        ("ZREM", keys.staged, "0001"),
        ("HGETALL", keys.checkpoints),
        ("DEL", keys.requests),
        ("LPUSH", queue, "no message"),
        ("LRANGE", queue, 0, -1),
        ("PUBLISH", f"/0.{CONTROL_EXCHANGE}.pidbox", "no command"),
        ("PUBLISH", f"/0.{TASK_NAME}", "no event"),
    ]
    run.random.shuffle(commands)
    refused, server = 0, run.world.server
    with contextlib.suppress(redis.ConnectionError, redis.TimeoutError), connected(server, OPERATOR) as client:
        for command in commands:
            refused += is_refused(run, lambda command=command: client.execute_command(*command), str(command))
    return f"{refused} commands"


def is_refused(run: Run, command: Callable[[], object], what: str) -> bool:
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
