"""mqtune with up to a thousand workers and a hundred drivers on one Redis."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from benchmarks.measurement import Context, Figures, Variant
from benchmarks.work.base import percentiles

if TYPE_CHECKING:
    import redis

__all__ = ["VARIANTS"]

ROOT: Final = Path(__file__).parent.parent.parent
#: For all workers to join, for all slots to have a trial, and for each answer of a process.
DEADLINE_S: Final = 240.0
#: Between two polls.
POLL_S: Final = 0.05
#: For the rate of reports to become steady.
SETTLE_S: Final = 3.0


class Part:
    """A process of the fleet that prints JSON lines."""

    def __init__(self, folder: Path, module: str, *args: object) -> None:
        self.name = " ".join(map(str, [module, *args]))
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors = folder / f"{module}-{len(list(folder.glob('*.err')))}.err"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, args)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put(line)
        self._lines.put("")

    def next(self) -> dict[str, Any]:
        """Return the next line."""
        try:
            line: dict[str, Any] = json.loads(self._lines.get(timeout=DEADLINE_S) or "{}")
        except queue.Empty:
            line = {}
        if not line:
            raise RuntimeError(f"{self.name} has ended, or has printed nothing for {DEADLINE_S:g} s\n{self._tail()}")
        if line.get("event") == "error":
            raise RuntimeError(f"{self.name}: {line['error']}")
        return line

    def tell(self, line: str) -> None:
        """Write a line to its input."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"{self.name} has ended\n{self._tail()}") from None

    def _tail(self) -> str:
        return self._errors.read_text(errors="replace")[-2_000:]


class Server:
    """A Redis with its append-only file, which can be restarted."""

    def __init__(self, folder: Path) -> None:
        from mqtune.backends.local.server import find_binary

        socket = folder / "redis.sock"
        self.url = f"unix://{socket}?db=0"
        self._command = [str(find_binary().path), "--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
        self._command += ["--appendonly", "yes", "--save", ""]

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def connect(self) -> redis.Redis:
        """Wait for the server, and return a client."""
        from mqtune.core.errors import BrokerUnavailable
        from mqtune.journal.server.connection import connect

        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return connect(self.url)
            except BrokerUnavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)


class Used(NamedTuple):
    """Redis' use of processor (seconds) and network."""

    cpu: float
    bytes: float


def _measure(context: Context, workers: int, drivers: int) -> Figures:
    from mqtune.core.timing import Timing

    slots, rate = context.sizes["slots"], context.sizes["reports_per_s"]
    # A quick run has fewer slots than drivers.
    drivers = min(drivers, workers * slots)
    with _parts() as start, Server(context.folder) as server, contextlib.closing(server.connect()) as client:
        load = start(context.folder, "benchmarks.fleet.workers", server.url, workers, slots)
        load.next()
        idle = _used(client, context.sizes["seconds"])
        trials = workers * slots // drivers
        crew = [
            start(context.folder, "benchmarks.fleet.driver", server.url, f"e{number}", trials)
            for number in range(drivers)
        ]
        for driver in crew:
            driver.next()
        began = time.time()
        for driver in crew:
            driver.tell("go")
        full_s = load.next()["at"] - began
        held = _used(client, context.sizes["seconds"])
        load.tell(f"report {rate}")
        time.sleep(SETTLE_S)
        load.tell("waited")
        before = load.next()
        for driver in crew:
            driver.tell("begin")
        busy = _used(client, context.sizes["seconds"])
        for driver in crew:
            driver.tell("end")
        load.tell("waited")
        results, after = [driver.next() for driver in crew], load.next()
        back_s = _restart(server, load)
        # By then leases without renewal count as lost.
        time.sleep(SETTLE_S + Timing().lease_grace_s)
        for driver in crew:
            driver.tell("end")
        lost = sum(driver.next()["lost"] for driver in crew) - sum(result["lost"] for result in results)
    taken = [each for result in results for each in result["taken_s"]]
    wall_s = max(result["wall_s"] for result in results)
    return {
        "idle_redis_share": idle.cpu,
        "held_redis_share": held.cpu,
        "all_slots_s": full_s,
        **percentiles("decision", "ms", [each * 1000 for each in taken]),
        **percentiles("sent", "ms", [each * 1000 for each in after["waited_s"]]),
        "reports_per_s": len(taken) / wall_s,
        "driver_us": sum(result["cpu_s"] for result in results) / len(taken) * 1e6,
        "driver_mb": max(result["memory_mb"] for result in results),
        "busy_redis_share": busy.cpu,
        "idle_bytes_per_s": idle.bytes,
        "busy_bytes_per_s": busy.bytes,
        "late_ms": after["late_s"] * 1000,
        "back_s": back_s,
        "lost": lost,
        "load_share": (after["cpu_s"] - before["cpu_s"]) / (after["at"] - before["at"]),
    }


@contextlib.contextmanager
def _parts() -> Iterator[Callable[..., Part]]:
    """Yield a function that starts processes, and kill these processes at the end."""
    parts: list[Part] = []

    def start(folder: Path, module: str, *args: object) -> Part:
        parts.append(Part(folder, module, *args))
        return parts[-1]

    try:
        yield start
    finally:
        for part in parts:
            part.process.kill()
        for part in parts:
            part.process.wait()


def _restart(server: Server, load: Part) -> float:
    """Restart Redis, and return the seconds until each worker's heartbeat is answered."""
    server.stop()
    server.start()
    began = time.time()
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        load.tell("state")
        if (state := load.next())["beat_at"] > began:
            return float(state["at"]) - began
        time.sleep(POLL_S)
    raise RuntimeError(f"not all workers were back {DEADLINE_S:g} s after a restart of Redis")


def _used(client: redis.Redis, seconds: float) -> Used:
    before, began = _counts(client), time.monotonic()
    time.sleep(seconds)
    taken_s = time.monotonic() - began
    after = _counts(client)
    return Used((after.cpu - before.cpu) / taken_s, (after.bytes - before.bytes) / taken_s)


def _counts(client: redis.Redis) -> Used:
    """Return the use since the server's start."""
    info: Any = client.info()
    return Used(
        info["used_cpu_user"] + info["used_cpu_sys"], info["total_net_input_bytes"] + info["total_net_output_bytes"]
    )


def _variant(workers: int, drivers: int, **sizes: int) -> Variant:
    return Variant(
        name=f"{workers:,} workers, {drivers} driver{'s' * (drivers > 1)}",
        settings="workers of eight slots, simulated by one process with mqtune's own register, claims, heartbeats and "
        "reports; real drivers with ASHA",
        measure=lambda context: _measure(context, min(workers, context.sizes["workers"]), drivers),
        sizes=sizes,
        slow=True,
        deadline_s=900.0,
    )


VARIANTS: Final = (
    _variant(10, 1),
    _variant(100, 1),
    _variant(1_000, 1),
    _variant(1_000, 10),
    # A machine that runs a hundred drivers and everything else can't sustain a higher rate.
    _variant(1_000, 100, reports_per_s=500),
)
