"""Many workers in one process: ``python -m benchmarks.fleet.workers URL WORKERS SLOTS``.

It uses mqtune's own register, claims, heartbeats and reports over real connections, without trials. It prints a JSON
line when all workers have joined, and one when all slots have a trial. It reads commands from its input:

- ``report RATE``: all trials together report at this rate in a second.
- ``state``: print the greatest delay of a report since the last command, and the oldest of the workers' last
  heartbeats.
- ``waited``: the same, and for each report since the last ``waited`` the time until it was sent to Redis.

Each worker has a connection that asks for tasks as kombu does (BRPOP, while a slot is free), one for its control
channel, one for reports, and those of its client. Claims and heartbeats wait for their answers in a few threads.
Reports are too many for these. One thread makes and sends them as the journal's own commands, and reads the answers.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import json
import random
import selectors
import sys
import threading
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final, NamedTuple

import hiredis
import redis

from mqtune.core.codec import pack_metrics, segment_bytes
from mqtune.core.events import AttemptStarted
from mqtune.core.keys import control_channel
from mqtune.core.resources import Resources, queue_name
from mqtune.core.timing import Timing
from mqtune.core.trial import TrialId
from mqtune.core.version import __version__
from mqtune.core.worker_info import WorkerInfo, busy_as
from mqtune.journal.base import Claim, Grant, Segment, new_token
from mqtune.journal.exchange.fleet import Fleet
from mqtune.journal.redis import RedisJournal, renew_all
from mqtune.journal.server.connection import open_client
from mqtune.journal.server.retry import RETRY_MAX_S
from mqtune.journal.server.script import script
from mqtune.worker.loop.start import SWITCH_INTERVAL_S
from mqtune.worker.tasks.app import MOST_COMMANDS

__all__ = ["main"]

TIMING: Final = Timing()
#: The suffixes of a queue's name, one for each of kombu's priorities.
PRIORITIES: Final = ("", "\x06\x163", "\x06\x166", "\x06\x169")
BRPOP_S: Final = 1
#: Celery's delay before it connects again.
RECONNECT_S: Final = 2.0
AWAY: Final = (redis.ConnectionError, redis.TimeoutError, OSError)
#: Threads that wait for answers. More would only compete for the interpreter.
THREADS: Final = 8
OFFER: Final = Resources(cpus=1)


class Run:
    """A trial in a slot."""

    def __init__(self, journal: RedisJournal, claim: Claim) -> None:
        self.journal = journal
        self.claim = claim
        self.sequence = 0


class Made(NamedTuple):
    """A report and its time."""

    run: Run
    at: float


class Recorder:
    """A client that records the commands of its journals and sends nothing."""

    def __init__(self, client: Any) -> None:
        self.commands: list[tuple[Any, ...]] = []
        #: Journals read the number of their database from it.
        self.get_connection_kwargs = client.get_connection_kwargs

    def execute_command(self, *args: Any) -> tuple[()]:
        self.commands.append(args)
        return ()


class Uplink:
    """A worker's connection for reports, used by one thread.

    It has one write in flight, and gathers further reports for the next one.
    """

    def __init__(self, client: Any) -> None:
        self._pool = client.connection_pool
        self._recorder: Any = Recorder(client)
        self._journals: dict[str, RedisJournal] = {}
        self._connection: Any = None
        self._reader = hiredis.Reader()
        self._made: list[Made] = []
        #: Commands to send. The first is in flight.
        self._commands: deque[tuple[Any, ...]] = deque()
        self.sock: Any = None
        #: Seconds from each report until it was sent to Redis.
        self.waited_s = array("d")
        #: Delay before the next attempt to connect.
        self.wait_s = TIMING.first_retry_s

    def connect(self) -> None:
        """Connect, and resend the command in flight."""
        if self._connection is None:
            self._connection = self._pool.get_connection()
        self._connection.connect()
        self._reader = hiredis.Reader()
        self.sock, self.wait_s = self._connection._sock, TIMING.first_retry_s
        self._send()

    def disconnect(self) -> None:
        """Close the connection, and retain the commands to send."""
        self.sock = None
        if self._connection is not None:
            self._connection.disconnect()

    def report(self, made: Made) -> None:
        """Send a report, now or after the commands in flight."""
        self._made.append(made)
        if self.sock is not None and not self._commands:
            self._write()

    def read(self) -> None:
        """Read answers, and send the next command."""
        data = self.sock.recv(65_536)
        if not data:
            raise redis.ConnectionError("closed by the server")
        self._reader.feed(data)
        while (answer := self._reader.gets()) is not False:
            if isinstance(answer, Exception):
                self._on_error(str(answer))
                return
            self._commands.popleft()
            if self._commands:
                self._send()
            else:
                self._write()

    def _on_error(self, error: str) -> None:
        if error.startswith("LOADING"):
            raise redis.ConnectionError(error)
        name, _, *rest = self._commands[0]
        if not error.startswith("NOSCRIPT") or name != "EVALSHA":
            raise RuntimeError(error)
        self._commands[0] = ("EVAL", script("report").text, *rest)
        self._send()

    def _write(self) -> None:
        """Send the gathered reports, one command for each experiment."""
        made, self._made = self._made, []
        by_run: dict[Run, list[float]] = defaultdict(list)
        for run, at in made:
            by_run[run].append(at)
        segments: dict[str, list[Segment]] = defaultdict(list)
        for run, times in by_run.items():
            segments[run.journal.experiment].append(_segment(run, times))
        for experiment, some in segments.items():
            if experiment not in self._journals:
                self._journals[experiment] = RedisJournal(self._recorder, experiment)
            self._journals[experiment].report(some)
        self._commands.extend(self._recorder.commands)
        self._recorder.commands.clear()
        now = time.time()
        self.waited_s.extend(now - each.at for each in made)
        self._send()

    def _send(self) -> None:
        if self._commands:
            self.sock.sendall(b"".join(self._connection.pack_command(*self._commands[0])))


class Worker:
    """One worker of the fleet.

    Threads of ``Load`` call its methods, but never the same method at the same time.
    """

    def __init__(self, url: str, name: str, slots: int) -> None:
        self.name = name
        self.client = open_client(url, role="worker")
        self.client.limit_to(MOST_COMMANDS)
        self.fleet = Fleet(self.client, patience_s=60)
        self.info = WorkerInfo(
            name=name,
            host="host",
            pid=1,
            version=__version__,
            queue=queue_name(OFFER),
            gpus=0,
            cpus=OFFER.cpus,
            slots=slots,
            devices=[""] * slots,
            code_root="/code",
            joined_at=time.time(),
        )
        self.runs: list[Run] = []
        #: Slots without a trial or a pending claim.
        self.free = slots
        self.journals: dict[str, RedisJournal] = {}
        self.uplink = Uplink(self.client)
        self.lock = threading.Lock()
        #: The connection for tasks, the subscription to hints, and their sockets.
        self.tasks: Any = None
        self.hints: Any = None
        self.sockets: list[Any] = []
        self.is_asking = False
        #: Time of the last answer to a heartbeat.
        self.beat_at = 0.0
        self.is_beating = False

    def join(self) -> None:
        self.fleet.join(self.info, TIMING.lease_s)

    def beat(self) -> None:
        """Renew the registration and all leases, as a worker's heartbeat does."""
        runs = list(self.runs)
        busy: dict[str, int] = defaultdict(int)
        claims: dict[RedisJournal, list[Claim]] = defaultdict(list)
        for run in runs:
            busy[busy_as(run.journal.experiment)] += 1
            claims[run.journal].append(run.claim)
        self.fleet.keep(replace(self.info, busy=dict(busy)), TIMING.lease_s)
        if claims:
            renew_all(list(claims.items()), TIMING.lease_s)
        self.beat_at, self.is_beating = time.time(), False

    def ask(self) -> None:
        """Ask for a task. The answer is read later."""
        queues = [f"{self.info.queue}{priority}" for priority in PRIORITIES]
        self.is_asking = True
        self.tasks.send_command("BRPOP", *queues, BRPOP_S)

    def claim(self, task: str) -> Run | None:
        """Claim an attempt. Return None if the claim is refused."""
        experiment, trial, attempt = task.rsplit("/", 2)
        with self.lock:
            journal = self.journals.get(experiment)
            if journal is None:
                journal = self.journals[experiment] = RedisJournal(self.client, experiment, patience_s=60)
        if not any(run.journal is journal for run in self.runs):
            journal.definition()
        claim = Claim(TrialId(trial), int(attempt), new_token())
        started = AttemptStarted(
            trial=claim.trial,
            attempt=claim.attempt,
            worker=self.name,
            host="host",
            devices=[],
            at=time.time(),
            stdout_path="/logs/stdout",
            stderr_path="/logs/stderr",
            queue=self.info.queue,
        )
        grant = journal.claim(claim, self.name, TIMING.lease_s, started.encode())
        if not isinstance(grant, Grant):
            return None
        run = Run(journal, claim)
        self.runs.append(run)
        return run


def _segment(run: Run, times: list[float]) -> Segment:
    first = run.sequence + 1
    packed = [
        pack_metrics(at, {"loss": 1 / number, "training_iteration": number}) for number, at in enumerate(times, first)
    ]
    run.sequence += len(times)
    return Segment(
        run.claim, first, len(times), times[-1], segment_bytes(run.claim.trial, run.claim.attempt, first, packed)
    )


class Load:
    """All workers. One thread runs timers and reads sockets, and passes calls to other threads."""

    def __init__(self, url: str, workers: int, slots: int) -> None:
        self._random = random.Random(1)
        self._workers = [Worker(url, f"w{number:04d}", slots) for number in range(workers)]
        self._places = workers * slots
        self._runs: list[tuple[Worker, Run]] = []
        self._threads = ThreadPoolExecutor(THREADS)
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = itertools.count()
        #: Workers with a refused claim, whose slot is free again.
        self._refused: deque[Worker] = deque()
        #: The greatest delay of a report, in seconds. Above some milliseconds this process limits the figures.
        self._late_s = 0.0

    def run(self) -> None:
        """Join the fleet, and serve forever."""
        list(self._threads.map(Worker.join, self._workers))
        for worker in self._workers:
            self._listen(worker)
            self._at(time.monotonic() + self._random.uniform(0, TIMING.heartbeat_s), self._beating(worker))
        _say(event="joined")
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._on_line)
        while True:
            self._step()

    def _step(self) -> None:
        wait_s = max(0.0, self._due[0][0] - time.monotonic())
        for key, _ in self._selector.select(wait_s):
            key.data()
        while self._refused:
            worker = self._refused.popleft()
            worker.free += 1
            if not worker.is_asking:
                worker.ask()
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            due, _, action = heapq.heappop(self._due)
            action(due)

    def _at(self, due: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (due, next(self._numbers), action))

    def _listen(self, worker: Worker) -> None:
        """Open a worker's two listening connections. Retry like Celery while Redis is away."""
        try:
            worker.hints = worker.client.pubsub()
            worker.hints.subscribe(control_channel(worker.name))
            worker.tasks = worker.client.connection_pool.get_connection()
            worker.ask()
        except AWAY:
            self._at(time.monotonic() + RECONNECT_S, lambda _: self._listen(worker))
            return
        worker.sockets = [worker.hints.connection._sock, worker.tasks._sock]
        for sock, read in zip(
            worker.sockets, (worker.hints.connection.read_response, lambda: self._on_task(worker)), strict=True
        ):
            self._selector.register(sock, selectors.EVENT_READ, self._reading(worker, sock, read))

    def _reading(self, worker: Worker, sock: Any, read: Callable[[], object]) -> Callable[[], None]:
        def read_or_reconnect() -> None:
            try:
                # It may just have been replaced, together with the other one.
                if sock in worker.sockets:
                    read()
            except AWAY:
                self._reconnect(worker)

        return read_or_reconnect

    def _connect_uplink(self, worker: Worker) -> None:
        """Open a worker's connection for reports. Retry like a worker while Redis is away."""
        uplink = worker.uplink
        try:
            uplink.connect()
        except AWAY:
            uplink.disconnect()
            wait_s = self._random.uniform(uplink.wait_s / 2, uplink.wait_s)
            uplink.wait_s = min(2 * uplink.wait_s, RETRY_MAX_S)
            self._at(time.monotonic() + wait_s, lambda _: self._connect_uplink(worker))
            return
        self._selector.register(uplink.sock, selectors.EVENT_READ, lambda: self._using_uplink(worker, uplink.read))

    def _using_uplink(self, worker: Worker, use: Callable[[], None]) -> None:
        sock = worker.uplink.sock
        try:
            use()
        except AWAY:
            self._selector.unregister(sock)
            worker.uplink.disconnect()
            self._connect_uplink(worker)
        except RuntimeError as error:
            _say(event="error", error=repr(error))

    def _reconnect(self, worker: Worker) -> None:
        for sock in worker.sockets:
            self._selector.unregister(sock)
        worker.sockets = []
        worker.hints.connection.disconnect()
        worker.tasks.disconnect()
        self._listen(worker)

    def _beating(self, worker: Worker) -> Callable[[float], None]:
        def beat(due: float) -> None:
            if not worker.is_beating:
                worker.is_beating = True
                self._threads.submit(self._safely, worker.beat)
            self._at(due + TIMING.heartbeat_s, beat)

        return beat

    def _on_task(self, worker: Worker) -> None:
        answer = worker.tasks.read_response()
        worker.is_asking = False
        if answer is not None:
            worker.free -= 1
            task = json.loads(answer[1])["headers"]["id"]
            self._threads.submit(self._safely, lambda: self._claim(worker, task))
        if worker.free > 0:
            worker.ask()

    def _claim(self, worker: Worker, task: str) -> None:
        run = worker.claim(task)
        if run is None:
            self._refused.append(worker)
            return
        self._runs.append((worker, run))
        if len(self._runs) == self._places:
            _say(event="full")

    def _on_line(self) -> None:
        word, *rest = sys.stdin.readline().split() or ["end"]
        if word == "end":
            sys.exit()
        if word == "report":
            self._report(float(rest[0]))
        else:
            beat_at = min(worker.beat_at for worker in self._workers)
            more = {"waited_s": self._take_waited()} if word == "waited" else {}
            _say(event="state", late_s=self._late_s, cpu_s=time.process_time(), beat_at=beat_at, **more)
        self._late_s = 0.0

    def _take_waited(self) -> list[float]:
        """Return each report's seconds until it was sent, since the last call."""
        waited_s = [seconds for worker in self._workers for seconds in worker.uplink.waited_s]
        for worker in self._workers:
            worker.uplink.waited_s = array("d")
        return waited_s

    def _report(self, rate: float) -> None:
        for worker in dict.fromkeys(worker for worker, _ in self._runs):
            self._connect_uplink(worker)
        # These objects stay, and repeated collections would delay reports.
        gc.collect()
        gc.freeze()
        interval_s, now = len(self._runs) / rate, time.monotonic()
        for worker, run in self._runs:
            self._at(now + self._random.uniform(0, interval_s), self._reporting(worker, run, interval_s))

    def _reporting(self, worker: Worker, run: Run, interval_s: float) -> Callable[[float], None]:
        def report(due: float) -> None:
            self._late_s = max(self._late_s, time.monotonic() - due)
            made = Made(run, time.time())
            self._using_uplink(worker, lambda: worker.uplink.report(made))
            self._at(due + interval_s, report)

        return report

    @staticmethod
    def _safely(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            _say(event="error", error=repr(error))


def _say(**what: object) -> None:
    print(json.dumps({"at": time.time(), **what}), flush=True)


def main() -> None:
    url, workers, slots = sys.argv[1:]
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    Load(url, int(workers), int(slots)).run()


if __name__ == "__main__":
    main()
