"""What goes wrong with the Redis, and on the way to it; see faults."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import celery
import kombu.exceptions
import msgpack
import redis
from befalling import Run
from lone import KEEPER, Server
from observed import SET_BACK_S, entries_on
from replicated import Replicated
from world import Experiment

from mqtune.core.keys import TASK_NAME

#: Of that, what may pass between the moment that a replica is cut off and the death of its master, in seconds.
_LAGS_S: Final = SET_BACK_S - 0.3
#: How long after the failover the server is back that was the master, in seconds.
_BACK_S: Final = (0.0, 1.0, 4.0)
_LOOK_S: Final = 0.1
#: When a password that could not be given back is tried again, in seconds.
_LOGIN_AGAIN_S: Final = 0.5
#: How long an attempt goes on after the claim that is forgotten, and for how long nobody drives, in seconds.
_GOES_ON_S: Final = (0.2, 1.5)
_NOBODY_S: Final = (3.0, 9.0)
#: For how long a store can't be reached, in seconds.
_STORE_AWAY_S: Final = (0.5, 5.0)
#: What of the time by which a server is set back it may take to kill it.
_MARGIN_S: Final = 0.4
#: When it is looked whether a deletion is over, and how long that may take then, in seconds.
_DELETES_S: Final = 10.0
_DELETED_S: Final = 60.0


def _cut_off(run: Run, begin: str, seat: int) -> str:
    """Have nothing come through between a worker and the Redis for a time."""
    proxy = run.world.proxies[seat]
    workers = [worker for worker in run.world.living_workers() if worker.seat == seat]
    since = time.monotonic()
    getattr(proxy, begin)()
    for_s = run.random.choice([1.0, run.lease_s + 2.0])

    def undo() -> None:
        proxy.release()
        run.isolated(workers, since)

    run.later(for_s, undo)
    return f"seat {seat} for {for_s:.1f} s"


def lose_bytes_of(run: Run, seat: int) -> str:
    """A black hole between the workers of a seat and the Redis, from which nothing comes out; connections are reset in the end."""
    return _cut_off(run, "drop", seat)


def worker_cut_off(run: Run, begin: str) -> str:
    """A black hole, from which all comes out in the end, or nothing."""
    return _cut_off(run, begin, run.random.randrange(run.world.seats))


def worker_cut(run: Run) -> str:
    seat = run.random.randrange(run.world.seats)
    run.world.proxies[seat].cut()
    return f"seat {seat}"


def _slow(run: Run, proxy: Any, who: str) -> str:
    proxy.delay_s = run.random.uniform(0.05, 0.5)
    for_s = run.random.uniform(1.0, 3.0)

    def undo() -> None:
        proxy.delay_s = 0.0

    run.later(for_s, undo)
    return f"{who} by {proxy.delay_s * 1000:.0f} ms for {for_s:.1f} s"


def worker_slow(run: Run) -> str:
    seat = run.random.randrange(run.world.seats)
    return _slow(run, run.world.proxies[seat], f"seat {seat}")


def driver_slow(run: Run) -> str:
    return _slow(run, run.world.driver_proxy, "the drivers")


def driver_cut(run: Run) -> str:
    run.world.driver_proxy.cut()
    return "the drivers"


def driver_cut_off(run: Run, begin: str) -> str:
    getattr(run.world.driver_proxy, begin)()
    for_s = run.random.choice([0.5, 2.0, run.lock_s + 1.0])
    run.later(for_s, run.world.driver_proxy.release)
    return f"the drivers for {for_s:.1f} s"


def redis_killed(run: Run) -> str:
    server = run.world.server
    if not isinstance(server, Server) or not server.is_up:
        return ""
    server.kill()
    for_s = run.random.choice([0.0, 0.5, 2.0])
    run.later(for_s, server.start)
    return f"for {for_s:.1f} s"


def redis_frozen(run: Run) -> str:
    server = run.world.server
    if not isinstance(server, Server) or server.process is None or not server.is_up:
        return ""
    process = server.process
    process.send_signal(signal.SIGSTOP)
    for_s = run.random.choice([0.5, 2.0, run.lease_s + 1.0])

    def thaw() -> None:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)

    run.later(for_s, thaw)
    return f"for {for_s:.1f} s"


def tell(run: Run, *command: str | int, user: str = "default") -> bool:
    """Tell the Redis something, unless it is away; whether it was told."""
    server = run.world.server
    with (
        # The store may be away.
        contextlib.suppress(redis.RedisError, OSError),
        redis.Redis(
            port=server.port, username=user, password=server.password, socket_timeout=1.0, protocol=2
        ) as client,
    ):
        client.execute_command(*command)
        return True
    return False


def clients_killed(run: Run, kind: str = "normal") -> str:
    return "all" if tell(run, "CLIENT", "KILL", "TYPE", kind) else ""


def login_refused(run: Run) -> str:
    """The password of all is another one for some seconds, and every connection has to log in again."""
    if not tell(run, "ACL", "SETUSER", "default", "resetpass", ">another one", user=KEEPER):
        return ""
    for kind in ("normal", "pubsub"):
        tell(run, "CLIENT", "KILL", "TYPE", kind, user=KEEPER)
    for_s = run.random.choice([1.0, run.lease_s + 2.0])

    def undo() -> None:
        # A server that was killed meanwhile has read its accounts again.
        if not tell(run, "ACL", "SETUSER", "default", "resetpass", f">{run.world.server.password}", user=KEEPER):
            run.later(_LOGIN_AGAIN_S, undo)

    run.later(for_s, undo)
    return f"for {for_s:.1f} s"


def clients_paused(run: Run) -> str:
    for_ms = run.random.choice([300, 1500])
    mode = run.random.choice(["ALL", "WRITE"])
    return f"{mode} for {for_ms} ms" if tell(run, "CLIENT", "PAUSE", for_ms, mode) else ""


def _lose_data(run: Run, server: Server, lose: Callable[[], None]) -> None:
    """Have the server back with other data, of which no worker can have heard before."""
    begin = time.monotonic()
    workers = list(run.world.workers)
    server.kill()
    lose()
    server.start()
    run.isolated(workers, begin)
    run.forgot(begin)


def redis_emptied(run: Run) -> str:
    server = run.world.server
    if not isinstance(server, Server) or not server.is_up:
        return ""
    _lose_data(run, server, server.forget)
    return "all"


def redis_set_back(run: Run) -> str:
    server = run.world.server
    if not isinstance(server, Server) or not server.is_up:
        return ""
    copy = server.keep_copy()
    by_s = run.random.uniform(0.1, SET_BACK_S)

    def set_back() -> None:
        if server.is_up:
            _lose_data(run, server, partial(server.set_back, copy))

    run.later(by_s, set_back)
    return f"by {by_s:.1f} s"


def claim_forgotten(run: Run) -> str:
    """The drivers of an experiment are killed, and once a worker has claimed another attempt, the server is set back to before that."""
    server, living = run.world.server, run.world.living_drivers()
    if not isinstance(server, Server) or not server.is_up or not living or not tell(run, "PING"):
        return ""
    experiment = run.random.choice(living).experiment
    goes_on_s, nobody_s = run.random.uniform(*_GOES_ON_S), run.random.uniform(*_NOBODY_S)
    for driver in run.world.living_drivers(experiment):
        driver.process.kill()
        driver.process.wait()
    run.undriven(experiment, nobody_s)
    begin, claims = time.monotonic(), _claims(run, experiment)
    copy = server.keep_copy()

    def look() -> None:
        """Wait for a claim; the attempt goes on for a moment, and may report and save."""
        left_s = begin + SET_BACK_S - _MARGIN_S - time.monotonic()
        if _claims(run, experiment) > claims:
            run.later(min(goes_on_s, left_s), set_back)
        elif left_s > 0:
            run.later(_LOOK_S, look)

    def set_back() -> None:
        if server.is_up:
            _lose_data(run, server, partial(server.set_back, copy))

    look()
    return f"of {experiment.name}, {goes_on_s:.1f} s later; nobody drives it for {nobody_s:.1f} s"


def _claims(run: Run, experiment: Experiment) -> int:
    """Return how many claims an experiment's journal has; 0 while the server doesn't answer."""
    server = run.world.server
    with (
        contextlib.suppress(redis.RedisError),
        redis.Redis(port=server.port, password=server.password, socket_timeout=1.0, protocol=2) as client,
    ):
        keys, store = experiment.keys, run.world.folder / "store" / experiment.name
        found, _ = entries_on(client, keys.journal, keys.chapters, store)
        return sum(msgpack.unpackb(data, strict_map_key=False)[1] == "started" for _, data in found)
    return 0


def store_away(run: Run) -> str:
    """The folder with an experiment's checkpoints, and the oldest entries of its journal, can't be reached for some seconds."""
    # A trial that saves a folder meanwhile fails, and rightly so.
    saving_dicts = [each for each in run.world.experiments if each.plan["constants"]["saves"] == "dict"]
    stores = [store for each in saving_dicts if (store := run.world.folder / "store" / each.name).is_dir()]
    if not stores:
        return ""
    store = run.random.choice(stores)
    for_s = run.random.uniform(*_STORE_AWAY_S)
    away = store.with_name(f"{store.name}.away")
    store.rename(away)
    # Nobody makes a new one in its place.
    store.touch()

    def undo() -> None:
        store.unlink()
        away.rename(store)

    run.later(for_s, undo)
    return f"{store.name} for {for_s:.1f} s"


def copy_deleted(run: Run) -> str:
    """The Redis is copied by its file, and somebody deletes an experiment on the copy, while that goes on here."""
    server = run.world.server
    if not isinstance(server, Server) or not server.is_up:
        return ""
    name = run.random.choice(run.world.experiments).name
    copy = server.start_copy()
    home = copy.folder / "home"
    home.mkdir()

    def delete() -> None:
        command = [sys.executable, "-m", "mqtune", "delete", name, "--yes", "--broker", copy.url]
        environment = {**os.environ, "MQTUNE_HOME": str(home)}
        deleting = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        run.later(_DELETES_S, lambda: check(deleting))

    def check(deleting: subprocess.Popen[str]) -> None:
        try:
            said, _ = deleting.communicate(timeout=_DELETED_S)
        except subprocess.TimeoutExpired:
            deleting.kill()
            said, _ = deleting.communicate()
        copy.stop()
        # That the checkpoints are there in the end is checked with all others.
        # "the checkpoints in file:… stay" is what it is to say.
        if re.search(r"\d checkpoints in file:", said):
            run.wrong("a copy deletes no checkpoints", f"mqtune delete {name} on a copy of the Redis: {said}")

    # The lock of the driver that the copy knows has run out by then.
    run.later(run.lock_s + _MARGIN_S, delete)
    return f"{name}, on {copy.url.rpartition('@')[2]}"


def failover(run: Run) -> str:
    """The master is killed, and the replica takes its place, perhaps without what the master took last; the other comes back as a replica."""
    server = run.world.server
    if not isinstance(server, Replicated) or not server.begin_failover():
        return ""
    lags_s = run.random.choice([0.0, run.random.uniform(0.2, _LAGS_S)])
    back_s = run.random.choice(_BACK_S)
    if lags_s:
        server.cut_off_replica()
    run.later(lags_s, lambda: _kill_master(run, server, back_s))
    return f"without the last {lags_s:.1f} s, and the other is back {back_s:.0f} s later"


def _kill_master(run: Run, server: Replicated, back_s: float) -> None:
    begin = time.monotonic()
    workers = list(run.world.workers)
    server.kill_master()

    def look() -> None:
        if not server.has_failed_over():
            run.later(_LOOK_S, look)
            return
        # Replication is asynchronous: also a replica that was not cut off may lack the last writes.
        run.isolated(workers, begin)
        run.forgot(begin)
        run.later(back_s, server.bring_back)

    look()


def queue_lost(run: Run) -> str:
    """The messages that wait are gone, as those are that a broker loses between a queue and a worker."""
    return run.world.queue if tell(run, "DEL", run.world.queue) else ""


def key_lost(run: Run) -> str:
    """One key of an experiment is deleted, as by an operator's mistake or an eviction: of a trial, a lease or what is staged."""
    experiment = run.random.choice(run.world.experiments)
    trial = f"{run.random.randint(1, max(1, experiment.plan['max_trials'] // 2)):04d}"
    if experiment.plan["gang"] and run.random.random() < 1 / 2:
        trial = f"{trial}~1"
    begin = time.monotonic()
    what = run.random.choice(["trial", "lease", "leases", "staged entry", "staged"])
    keys = experiment.keys
    command: dict[str, tuple[str, ...]] = {
        "trial": ("DEL", keys.trial(trial)),
        "lease": ("ZREM", keys.leases, trial),
        "leases": ("DEL", keys.leases),
        "staged entry": ("ZREM", keys.staged, trial),
        "staged": ("DEL", keys.staged),
    }
    if not tell(run, *command[what]):
        return ""
    # The worker of an attempt that is given up for it learns so with its next heartbeat or report.
    run.isolated(run.world.workers, begin)
    return f"{what} {trial} of {experiment.name}"


def foreign_traffic(run: Run) -> str:
    """Another team's Celery on the same Redis: it shuts its workers down, and fills queues with what is no attempt."""
    server = run.world.server
    # Celery would wait for one that is frozen, and who is to thaw it is this very thread.
    if not tell(run, "PING"):
        return ""
    with (
        contextlib.suppress(OSError, kombu.exceptions.OperationalError),
        celery.Celery("shop", broker=server.url) as shop,
    ):
        shop.conf.broker_transport_options = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
        shop.control.shutdown()
        for arguments in ([], ["chaos-0-1"], ["\udcff", "0001", 1, "", ""], [1, 2, 3]):
            shop.send_task("shop.sell", arguments, retry=False)
            shop.send_task(TASK_NAME, arguments, queue=run.world.queue, retry=False)
        shop.send_task(TASK_NAME, ["x"], queue=run.world.queue, retry=False, headers={"timelimit": "soon"})
        return "shutdown, and nine tasks"
    return ""
