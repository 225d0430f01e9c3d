"""A Redis whose memory is used up, and what makes room in it; see faults."""

from __future__ import annotations

import contextlib
import subprocess
import time
from typing import TYPE_CHECKING, Final

import msgpack
import redis
from lone import PATIENCE_S
from request_faults import ask_of
from server_faults import answer, tell

from mqtune.core.errors import MqtuneError
from mqtune.core.events import START, ExperimentEnded
from mqtune.core.keys import ExperimentKeys
from mqtune.core.timing import Timing
from mqtune.journal import RedisJournal, connect

if TYPE_CHECKING:
    from campaign import Campaign as Run

#: How much an experiment that has ended takes, in bytes; half of that is enough for all that a run needs.
_BALLAST: Final = 24_000_000
#: After what time a server has given back the memory that took in the ballast, in seconds.
_AGAIN_S: Final = 0.2
#: Within what time an experiment ends on a full Redis: a request, the stop ladder, and a loaded machine.
_ENDS_S: Final = 60.0


def memory_full(run: Run) -> str:
    """No memory is left for some seconds: what writes is refused."""
    if not tell(run, "CONFIG", "SET", "maxmemory", 1):
        return ""
    for_s = run.random.choice([0.5, 2.0, run.lease_s + 1.0])
    run.later(for_s, lambda: _make_room(run))
    return f"for {for_s:.1f} s"


def _make_room(run: Run) -> None:
    # A server that was killed meanwhile has forgotten its limit.
    if not tell(run, "CONFIG", "SET", "maxmemory", 0):
        run.later(_AGAIN_S, lambda: _make_room(run))


def memory_made(run: Run) -> str:
    """No memory is left until somebody deletes an experiment that has ended; with that the run gets along to its end."""
    name = f"ended-{len(run.world.commands)}"
    if not tell(run, "PING") or not _begin_and_end(run, name):
        return ""
    for_s = run.random.choice([0.5, 2.0, run.lease_s + 1.0])

    def fill() -> None:
        used = (answer(run, "INFO", "memory") or {"used_memory": 0})["used_memory"]
        if used > _BALLAST:
            tell(run, "CONFIG", "SET", "maxmemory", used - _BALLAST // 2)
            run.later(for_s, lambda: _delete(run, name))
        elif used:
            # It was emptied or set back meanwhile, and has room.
            _delete(run, name)
        else:
            run.later(_AGAIN_S, fill)

    run.later(1.5, fill)
    return f"for {for_s:.1f} s, until {name} is deleted"


def memory_ended(run: Run) -> str:
    """No memory is left and no experiment has ended, until a person ends one of several: it ends, and there is memory again.

    The others continue then, as each run ends with all its experiments.
    """
    running = [each for each in run.world.experiments if run.world.has_begun(each) and run.world.living_drivers(each)]
    if any(each.results.exists() for each in run.world.experiments) or len(running) < 2:
        return ""
    ended = run.random.choice(running)
    drivers = run.world.living_drivers(ended)
    if not tell(run, "CONFIG", "SET", "maxmemory", 1):
        return ""
    full_s = run.random.choice([0.0, 2.0])
    end_by = time.monotonic() + full_s + _ENDS_S
    run.later(full_s, lambda: ask_of(run, ended, "", "end", now=True))

    def look() -> None:
        has_ended, is_driven = ended.results.exists(), any(driver.lives for driver in drivers)
        if not has_ended and is_driven and time.monotonic() < end_by and _is_full(run):
            run.later(_AGAIN_S, look)
            return
        # A driver that was killed has another one, which waits until it may begin.
        if not has_ended and is_driven and _is_full(run):
            run.wrong("full", f"{ended.name} has not ended on a full Redis within {_ENDS_S:g} s")
        _make_room(run)

    run.later(full_s, look)
    return f"{ended.name}: end on a full Redis, after {full_s:g} s"


def _is_full(run: Run) -> bool:
    """Return whether the Redis still has its limit, which a restart forgets; True while it doesn't answer."""
    said = answer(run, "CONFIG GET", "maxmemory")
    return said is None or said["maxmemory"] == "1"


def _begin_and_end(run: Run, name: str) -> bool:
    """Have the Redis keep an experiment that has ended; whether it does."""
    url = run.world.server.url
    with (
        contextlib.suppress(MqtuneError, redis.RedisError),
        contextlib.closing(connect(url, timing=Timing(connect_timeout_s=1.0))) as client,
    ):
        journal = RedisJournal(client, name, patience_s=PATIENCE_S)
        journal.lock("chaos", "the campaign", _AGAIN_S)
        over = ExperimentEnded(outcome="finished", reason="", at=0.0, cursor=START)
        journal.record(over.encode(), definition=msgpack.packb({}))
        client.hset(ExperimentKeys(name).checkpoints, "m-0001-1-1", bytes(_BALLAST))
        return True
    return False


def _delete(run: Run, name: str) -> None:
    """Delete the experiment, again and again until it is gone: a Redis that is away can't be asked."""
    _look(run, name, run.world.command("delete", name, "--yes"))


def _look(run: Run, name: str, command: subprocess.Popen[bytes]) -> None:
    if command.poll() is None:
        # The run may be over, and then this is not put off.
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.wait(_AGAIN_S / 10)
        run.later(_AGAIN_S, lambda: _look(run, name, command))
    elif command.returncode and answer(run, "EXISTS", ExperimentKeys(name).meta) != 0:
        run.later(_AGAIN_S, lambda: _delete(run, name))
