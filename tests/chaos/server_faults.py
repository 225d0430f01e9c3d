"""What goes wrong with the Redis, and on the way to it; see faults."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import celery
import kombu.exceptions
import msgpack
import redis
from lone import KEEPER, PATIENCE_S, Server, connected
from observed import SET_BACK_S, entries_on
from replicated import Replicated
from world import Driver, Experiment, Worker

from mqtune.core.keys import TASK_NAME

if TYPE_CHECKING:
    from campaign import Campaign as Run

#: Of that, what may pass between the moment that a replica is cut off and the death of its master, in seconds.
_LAGS_S: Final = SET_BACK_S - 0.3
#: How long after the failover the server is back that was the master, in seconds.
_LOOK_S: Final = 0.1
#: What of the time by which a server is set back it may take to kill it.
_MARGIN_S: Final = 0.4
#: On a starved machine a process waits for so long, and then runs for a slice: about the share that it has at a load of
#: fifteen for each core.
_STOPPED_S: Final = 0.7
_SLICE_S: Final = 0.05
#: How long a restart of Redis takes.
_RESTART_S: Final = 0.3


def _network(run: Run, *, of_drivers: bool) -> tuple[Any, str]:
    """Return the network of the drivers, or that of one of the workers, and whose it is."""
    if of_drivers:
        return run.world.driver_proxy, "the drivers"
    seat = run.random.randrange(run.world.seats)
    return run.world.proxies[seat], f"seat {seat}"


def cut(run: Run, *, of_drivers: bool) -> str:
    proxy, who = _network(run, of_drivers=of_drivers)
    proxy.cut()
    return who


def slow(run: Run, *, of_drivers: bool) -> str:
    proxy, who = _network(run, of_drivers=of_drivers)
    proxy.delay_s = run.random.uniform(0.05, 0.5)
    for_s = run.random.uniform(1.0, 3.0)
    run.later(for_s, lambda: setattr(proxy, "delay_s", 0.0))
    return f"{who} by {proxy.delay_s * 1000:.0f} ms for {for_s:.1f} s"


def driver_cut_off(run: Run, begin: str) -> str:
    getattr(run.world.driver_proxy, begin)()
    for_s = run.random.choice([0.5, 2.0, run.lock_s + 1.0])
    run.later(for_s, run.world.driver_proxy.release)
    return f"the drivers for {for_s:.1f} s"


def worker_cut_off(run: Run, begin: str, seat: int | None = None) -> str:
    """A black hole between the workers of a seat and the Redis, from which all comes out in the end ("hold"), or nothing ("drop")."""
    seat = run.random.randrange(run.world.seats) if seat is None else seat
    proxy, since = run.world.proxies[seat], time.monotonic()
    workers = [worker for worker in run.world.living_workers() if worker.seat == seat]
    getattr(proxy, begin)()
    for_s = run.random.choice([1.0, run.lease_s + 2.0])

    def undo() -> None:
        proxy.release()
        run.isolated(workers, since)

    run.later(for_s, undo)
    return f"seat {seat} for {for_s:.1f} s"


def on_lone(strike: Callable[[Run, Server], str]) -> Callable[[Run], str]:
    """Have something befall a Redis that is up and has no replica; nothing befalls any other."""

    def struck(run: Run) -> str:
        server = run.world.server
        return strike(run, server) if isinstance(server, Server) and server.is_up else ""

    return struck


@on_lone
def redis_killed(run: Run, server: Server) -> str:
    server.kill()
    for_s = run.random.choice([0.0, 0.5, 2.0])
    run.later(for_s, server.start)
    return f"for {for_s:.1f} s"


@on_lone
def redis_frozen(run: Run, server: Server) -> str:
    server.freeze()
    for_s = run.random.choice([0.5, 2.0, run.lease_s + 1.0])
    run.later(for_s, server.thaw)
    return f"for {for_s:.1f} s"


def answer(run: Run, *command: str | int, user: str = "default") -> Any:
    """Return what the Redis answers; None while it is away."""
    with contextlib.suppress(redis.RedisError, OSError), connected(run.world.server, user) as client:
        return client.execute_command(*command)
    return None


def tell(run: Run, *command: str | int, user: str = "default") -> bool:
    """Tell the Redis something, unless it is away; whether it was told."""
    return answer(run, *command, user=user) is not None


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
            run.later(0.5, undo)

    run.later(for_s, undo)
    return f"for {for_s:.1f} s"


def clients_paused(run: Run) -> str:
    for_ms = run.random.choice([300, 1500])
    mode = run.random.choice(["ALL", "WRITE"])
    return f"{mode} for {for_ms} ms" if tell(run, "CLIENT", "PAUSE", for_ms, mode) else ""


def _lose_data(run: Run, server: Server, lose: Callable[[], None]) -> None:
    """Have the server back with other data, of which no worker can have heard before."""
    begin, workers = time.monotonic(), list(run.world.workers)
    server.kill()
    lose()
    server.start()
    run.isolated(workers, begin)
    run.forgot(begin)


@on_lone
def head_starved(run: Run, server: Server) -> str:
    """Starve the head node: its drivers run for a fraction of the time, and its Redis is restarted meanwhile.

    Workers are elsewhere, so nothing is lost: an attempt whose worker renews again isn't ended by a late driver.
    """
    if not run.world.living_drivers():
        return ""
    begin, for_s = time.monotonic(), run.lease_s + 3.0
    starved: list[Driver] = []

    def stop() -> None:
        starved[:] = [driver for driver in run.world.living_drivers() if not driver.is_frozen]
        for driver in starved:
            driver.is_frozen = True
            driver.process.send_signal(signal.SIGSTOP)
        run.later(_STOPPED_S, go_on)

    def go_on() -> None:
        for driver in starved:
            driver.is_frozen = False
            if driver.lives:
                driver.process.send_signal(signal.SIGCONT)
        if time.monotonic() - begin < for_s:
            run.later(_SLICE_S, stop)

    stop()
    run.later(for_s / 3, lambda: redis_restarted(run))
    return f"for {for_s:.1f} s"


def redis_restarted(run: Run) -> None:
    """Restart a Redis that is up."""
    server = run.world.server
    if isinstance(server, Server) and server.is_up:
        server.kill()
        run.later(_RESTART_S, server.start)


@on_lone
def redis_emptied(run: Run, server: Server) -> str:
    _lose_data(run, server, server.forget)
    return "all"


def _set_back(run: Run, server: Server, copy: Path) -> None:
    if server.is_up:
        _lose_data(run, server, partial(server.set_back, copy))


@on_lone
def redis_set_back(run: Run, server: Server) -> str:
    copy, by_s = server.keep_copy(), run.random.uniform(0.1, SET_BACK_S)
    run.later(by_s, lambda: _set_back(run, server, copy))
    return f"by {by_s:.1f} s"


@on_lone
def claim_forgotten(run: Run, server: Server) -> str:
    """The drivers of an experiment are killed, and once a worker has claimed another attempt, the server is set back to before that."""
    living = run.world.living_drivers()
    if not living or not tell(run, "PING"):
        return ""
    experiment = run.random.choice(living).experiment
    goes_on_s, nobody_s = run.random.uniform(0.2, 1.5), run.random.uniform(3.0, 9.0)
    run.world.kill_drivers(experiment)
    run.undriven(experiment, nobody_s)
    begin, claims = time.monotonic(), _claims(run, experiment)
    copy = server.keep_copy()

    def look() -> None:
        """Wait for a claim; the attempt goes on for a moment, and may report and save."""
        left_s = begin + SET_BACK_S - _MARGIN_S - time.monotonic()
        if _claims(run, experiment) > claims:
            run.later(min(goes_on_s, left_s), lambda: _set_back(run, server, copy))
        elif left_s > 0:
            run.later(_LOOK_S, look)

    look()
    return f"of {experiment.name}, {goes_on_s:.1f} s later; nobody drives it for {nobody_s:.1f} s"


def _claims(run: Run, experiment: Experiment) -> int:
    """Return how many claims an experiment's journal has; 0 while the server doesn't answer."""
    with contextlib.suppress(redis.RedisError), connected(run.world.server) as client:
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
    for_s = run.random.uniform(0.5, 5.0)
    away = store.with_name(f"{store.name}.away")
    store.rename(away)
    # Nobody makes a new one in its place.
    store.touch()

    def undo() -> None:
        store.unlink()
        away.rename(store)

    run.later(for_s, undo)
    return f"{store.name} for {for_s:.1f} s"


@on_lone
def copy_deleted(run: Run, server: Server) -> str:
    """The Redis is copied by its file, and somebody deletes an experiment on the copy, while that goes on here."""
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
        run.later(10.0, lambda: check(deleting))

    def check(deleting: subprocess.Popen[str]) -> None:
        try:
            said, _ = deleting.communicate(timeout=60.0)
        except subprocess.TimeoutExpired:
            deleting.kill()
            said, _ = deleting.communicate()
        copy.close()
        # That the checkpoints are there in the end is checked with all others; it is to say that those in file:… stay.
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
    back_s = run.random.choice((0.0, 1.0, 4.0))
    if lags_s:
        server.watched.cut_off_replica()

    def kill() -> None:
        begin, workers = time.monotonic(), list(run.world.workers)
        server.kill_master()
        look(begin, workers)

    def look(begin: float, workers: list[Worker]) -> None:
        if not server.has_failed_over():
            run.later(_LOOK_S, lambda: look(begin, workers))
            return
        # Replication is asynchronous: also a replica that was not cut off may lack the last writes.
        run.isolated(workers, begin)
        run.forgot(begin)
        run.later(back_s, server.bring_back)

    run.later(lags_s, kill)
    return f"without the last {lags_s:.1f} s, and the other is back {back_s:.0f} s later"


def queue_lost(run: Run) -> str:
    """The messages that wait are gone, as those are that a broker loses between a queue and a worker."""
    return run.world.queue if tell(run, "DEL", run.world.queue) else ""


def key_lost(run: Run) -> str:
    """One key of an experiment is deleted, as by an operator's mistake or an eviction: of a trial, a lease or what is staged."""
    experiment = run.random.choice(run.world.experiments)
    trial = f"{run.random.randint(1, max(1, experiment.plan['max_trials'] // 2)):04d}"
    if experiment.plan["gang"] and run.random.random() < 1 / 2:
        trial = f"{trial}~1"
    begin, keys = time.monotonic(), experiment.keys
    commands = {
        "trial": ("DEL", keys.trial(trial)),
        "lease": ("ZREM", keys.leases, trial),
        "leases": ("DEL", keys.leases),
        "staged entry": ("ZREM", keys.staged, trial),
        "staged": ("DEL", keys.staged),
    }
    what = run.random.choice(list(commands))
    if not tell(run, *commands[what]):
        return ""
    # The worker of an attempt that is given up for it learns so with its next heartbeat or report.
    run.isolated(run.world.workers, begin)
    return f"{what} {trial} of {experiment.name}"


@contextlib.contextmanager
def celery_of(run: Run, name: str) -> Iterator[Any]:
    """Yield a Celery on the Redis, whose loss ends what is done with it."""
    with (
        contextlib.suppress(OSError, kombu.exceptions.OperationalError),
        celery.Celery(name, broker=run.world.server.url) as app,
    ):
        app.conf.broker_transport_options = {"socket_timeout": PATIENCE_S, "socket_connect_timeout": PATIENCE_S}
        yield app


def foreign_traffic(run: Run) -> str:
    """Another team's Celery on the same Redis: it shuts its workers down, and fills queues with what is no attempt."""
    # Celery would wait for one that is frozen, and who is to thaw it is this very thread.
    if not tell(run, "PING"):
        return ""
    with celery_of(run, "shop") as shop:
        shop.control.shutdown()
        for arguments in ([], ["chaos-0-1"], ["\udcff", "0001", 1, "", ""], [1, 2, 3]):
            shop.send_task("shop.sell", arguments, retry=False)
            shop.send_task(TASK_NAME, arguments, queue=run.world.queue, retry=False)
        shop.send_task(TASK_NAME, ["x"], queue=run.world.queue, retry=False, headers={"timelimit": "soon"})
        return "shutdown, and nine tasks"
    return ""
