"""What a run consists of: a Redis, workers and drivers, each a process that can be killed, frozen and started again; see lone, replicated."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import breaker
import counting
import psutil
import times as run_times
from driver_main import ATTACH, FINISHED, REFUSED, TO_GO_ON
from lone import OPERATOR, UP_S, Server
from replicated import Replicated
from submitted import KEY, Desk, SubmittedProcess, new_drivers

from mqtune.core.errors import MqtuneError
from mqtune.core.keys import ExperimentKeys
from mqtune.core.resources import Resources, queue_name
from mqtune.core.timing import Timing
from mqtune.journal import Fleet

HERE: Final = Path(__file__).parent
#: In the environment of all that a run starts, so that what has lost its parents is found too.
MARK: Final = "MQTUNE_CHAOS_RUN"
#: A shape of slot that no other worker on the machine has.
CPUS: Final = 7
#: How long a worker that is told to end may take: the stop ladder, the kill and the threads, and a loaded machine.
LEAVE_S: Final = 60.0
_POLL_S: Final = 0.02


@dataclass(slots=True)
class Worker:
    """A real ``mqtune worker``, with a network of its own to the Redis."""

    seat: int
    name: str
    process: subprocess.Popen[bytes]
    #: Whether it was told to end, killed or lost, and another one takes its seat.
    is_given_up: bool = False
    is_frozen: bool = False
    #: Where it is told that one of its threads is to raise; and whether it was.
    order: Path = field(default_factory=Path)
    is_struck: bool = False

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def descendants(self) -> list[psutil.Process]:
        """Its zygotes, trials and whatever they have started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []


class Experiment:
    """An experiment of the run: what is tuned and how, and where its drivers keep what they write.

    Args:
        folder: where it keeps everything; a new one.
        plan: see driver_main.
    """

    def __init__(self, folder: Path, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.name: str = plan["name"]
        self.keys = ExperimentKeys(self.name)
        self.told = folder / "told"
        self.results = folder / "results.json"
        #: What those who steer it were answered.
        self.said = folder / "said"
        self.plan_path = folder / "plan.json"
        self.told.mkdir(parents=True)
        self.plan_path.write_text(json.dumps(plan))


@dataclass(slots=True)
class Driver:
    """A driver script that runs, or has."""

    experiment: Experiment
    number: int
    process: subprocess.Popen[bytes] | SubmittedProcess
    host: str
    told: Path
    log: Path
    is_frozen: bool = False
    #: Whether it was started beside a living one, to be refused or to take over.
    is_second: bool = False

    @property
    def lives(self) -> bool:
        return self.process.poll() is None


@dataclass
class World:
    """All that runs, and where it is kept; one thread uses it.

    Args:
        folder: where the run keeps everything; a new one.
        plans: what each experiment tunes, and how; see driver_main.
        times: what drivers and workers go by.
        seats: how many workers there are.
        slots: how many slots each has.
        has_devices: whether each slot has a device.
        fails_over: whether the Redis has a replica and Sentinels, by which drivers and workers come to it.
        hosts: how many workers with driver slots there are; with any, drivers are submitted.
    """

    folder: Path
    plans: list[dict[str, Any]]
    times: Timing
    seats: int = 3
    slots: int = 2
    has_devices: bool = False
    fails_over: bool = False
    hosts: int = 0
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    workers: list[Worker] = field(default_factory=list)
    #: The workers with driver slots that there were, which run no trials.
    hosting: list[subprocess.Popen[bytes]] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)
    #: Commands that operators have given.
    commands: list[subprocess.Popen[bytes]] = field(default_factory=list)
    #: The patterns whose quotas somebody changes.
    quotas: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("beats", "devices", "home", "logs", "store"):
            (self.folder / name).mkdir()
        self.server = (Replicated if self.fails_over else Server)(self.folder / "redis")
        self.proxies = [self.server.way() for _ in range(self.seats)]
        self.driver_proxy = self.server.way()
        self.queue = queue_name(Resources(cpus=CPUS, gpus=int(self.has_devices)))
        self._generations = [0] * self.seats
        #: As the operator sees the Redis.
        self.operators_broker = self.driver_proxy.url.replace(
            f":{self.server.password}@", f"{OPERATOR}:{self.server.operator_password}@"
        )
        where = {"broker": self.driver_proxy.url, "store": str(self.folder / "store"), "cpus": CPUS}
        where["gpus"] = int(self.has_devices)
        self.desk = Desk(lambda: self.server)
        self.experiments = [Experiment(self.folder / plan["name"], {**plan, **where}) for plan in self.plans]

    def _environment(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            MARK: self.mark,
            counting.BEATS: str(self.folder / "beats"),
            counting.DEVICES: str(self.folder / "devices"),
            run_times.TIMES: run_times.to_text(self.times),
            "MQTUNE_HOME": str(self.folder / "home"),
            "MQTUNE_ADVERTISE": "127.0.0.1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **more,
        }

    def _spawn(self, script: str, arguments: list[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, str(HERE / script), *arguments],
                env=self._environment(**environment),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def start(self) -> None:
        """Start the Redis and the workers; returns when all have joined."""
        self.server.start()
        for seat in range(self.seats):
            self.start_worker(seat)
        for _ in range(self.hosts):
            self.start_host()
        self.wait(self._all_joined, UP_S, "the workers did not join")

    def _all_joined(self) -> bool:
        fleet = Fleet(self.server.client, patience_s=UP_S)
        return {info.pid for info in fleet.workers()} >= {worker.process.pid for worker in self.workers}

    def wait(self, condition: Callable[[], object], deadline_s: float, what: str) -> None:
        """Wait until a condition holds.

        Raises:
            RuntimeError: it does not within *deadline_s* seconds.
        """
        deadline = time.monotonic() + deadline_s
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} within {deadline_s:g} s; see {self.folder}")
            time.sleep(_POLL_S)

    def start_worker(self, seat: int) -> Worker:
        """Start a worker, the next on its seat."""
        self._generations[seat] += 1
        name = f"w{seat}-{self._generations[seat]}"
        log = self.folder / "logs" / f"{name}.log"
        devices = "".join(f"{device}," for device in range(self.slots))
        shape = ["--gpus", devices] if self.has_devices else ["--gpus", "0", "--slots", str(self.slots)]
        arguments = ["--name", name, *shape, "--cpus", str(self.slots * CPUS)]
        arguments += ["--code-root", str(HERE), "--log-root", str(self.folder / "trials")]
        if self.times == run_times.SHORT:
            arguments += ["--hold-seats", str(run_times.SHORT_SEAT_S)]
        order = self.folder / "orders" / name
        settings = {"MQTUNE_BROKER": self.proxies[seat].url, breaker.ORDER: str(order), counting.SEAT: str(seat)}
        process = self._spawn("worker_main.py", arguments, log, **settings)
        worker = Worker(seat, name, process, order=order)
        self.workers.append(worker)
        return worker

    def start_host(self) -> None:
        """Start a worker with driver slots alone."""
        name = f"host-{len(self.hosting) + 1}"
        arguments = ["--name", name, "--slots", "0", "--drivers", "2", "--log-root", str(self.folder / "hosts" / name)]
        settings = {"MQTUNE_BROKER": self.driver_proxy.url, "MQTUNE_CODE_KEY": KEY}
        self.hosting.append(self._spawn("worker_main.py", arguments, self.folder / "logs" / f"{name}.log", **settings))

    def living_hosts(self) -> list[subprocess.Popen[bytes]]:
        return [host for host in self.hosting if host.poll() is None]

    def submit(self, experiment: Experiment) -> bool:
        """Submit the driver script of an experiment; whether that was taken."""
        paths = (HERE, experiment.plan_path, experiment.told, experiment.results, self.folder / "logs")
        with contextlib.suppress(MqtuneError):
            self.desk.submit(experiment.name, tuple(map(str, paths)))
            return True
        return False

    def halt(self, experiment: Experiment) -> bool:
        """Tell the fleet to drive an experiment no more; whether it has heard of that, and does not."""
        if self.hosts:
            with contextlib.suppress(MqtuneError):
                if self.desk.halt(experiment.name):
                    self.adopt()
                    return True
            return False
        return True

    def adopt(self) -> None:
        """Take note of drivers that workers have started."""
        for experiment in self.experiments:
            known = {driver.told for driver in self.drivers_of(experiment)}
            for told, process in new_drivers(experiment.told, known):
                log = self.folder / "logs" / f"{experiment.name}-{told.name}.log"
                self.drivers.append(Driver(experiment, len(self.drivers) + 1, process, "", told, log))

    def drain(self, worker: Worker) -> None:
        """Tell a worker to end, by the command line."""
        self.command("drain", worker.name)

    def command(self, *words: str, as_operator: bool = False) -> subprocess.Popen[bytes]:
        """Give a command of ``mqtune``, and don't wait for it."""
        broker = self.operators_broker if as_operator else self.driver_proxy.url
        with (self.folder / "logs" / "commands.log").open("ab") as output:
            command = subprocess.Popen(
                [sys.executable, "-m", "mqtune", *words, "--broker", broker],
                env=self._environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.commands.append(command)
        return command

    def has_begun(self, experiment: Experiment) -> bool:
        """Whether a trial of the experiment has run."""
        return (self.folder / "beats" / experiment.name).exists()

    def ask(
        self, experiment: Experiment, request: dict[str, Any], *, as_operator: bool = False
    ) -> subprocess.Popen[bytes]:
        """Have somebody make a request of an experiment's driver, in a process of their own."""
        log = self.folder / "logs" / "askers.log"
        broker = self.operators_broker if as_operator else self.driver_proxy.url
        arguments = [broker, str(experiment.said), experiment.name, json.dumps(request)]
        self.commands.append(self._spawn("asker.py", arguments, log))
        return self.commands[-1]

    def living_workers(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.lives and not worker.is_given_up]

    def start_driver(
        self, experiment: Experiment | None = None, *, host: str = "", is_second: bool = False, attaches: bool = False
    ) -> Driver:
        """Run the driver script of an experiment (the first one by default), or attach without it; perhaps as on another machine."""
        experiment = experiment or self.experiments[0]
        number = len(self.drivers) + 1
        told = experiment.told / f"{number:03d}"
        arguments = [str(experiment.plan_path), str(told), str(experiment.results), *([ATTACH] if attaches else [])]
        log = self.folder / "logs" / f"driver-{number:03d}.log"
        process = self._spawn("driver_main.py", arguments, log, MQTUNE_CHAOS_HOST=host)
        driver = Driver(experiment, number, process, host, told, log, is_second=is_second)
        self.drivers.append(driver)
        return driver

    def drivers_of(self, experiment: Experiment) -> list[Driver]:
        """The drivers that the experiment has had, in the order in which they were started."""
        return [driver for driver in self.drivers if driver.experiment is experiment]

    def living_drivers(self, experiment: Experiment | None = None) -> list[Driver]:
        """The drivers that live, of one experiment or of all."""
        return [driver for driver in self.drivers if driver.lives and experiment in (None, driver.experiment)]

    def log_of(self, driver: Driver) -> str:
        return driver.log.read_text(errors="replace") if driver.log.exists() else ""

    def log_of_worker(self, worker: Worker) -> str:
        return (self.folder / "logs" / f"{worker.name}.log").read_text(errors="replace")

    def how_it_ended(self, driver: Driver) -> str:
        """Return what the end of a driver's process means: finished, to go on, refused, killed, or broken."""
        code = driver.process.returncode
        if code is None or code < 0:
            return "killed"
        log = self.log_of(driver)
        if "KeyboardInterrupt" in log and "Error calling __set_name__" in log:
            # Before 3.12, Python makes a RuntimeError of a Ctrl-C that falls into the definition of a class.
            return "to go on"
        return {FINISHED: "finished", TO_GO_ON: "to go on", REFUSED: "refused"}.get(code, "broken")

    def trial_processes(self) -> list[psutil.Process]:
        """The processes of trials that run, by what they have written down themselves."""
        found = []
        beats = [counting.last_beats(self.folder / "beats", experiment.name) for experiment in self.experiments]
        for _, _, pid in itertools.chain.from_iterable(beats):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found

    def processes(self) -> list[psutil.Process]:
        """All living processes that carry the run's mark, whoever their parents are."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end_workers(self) -> list[str]:
        """Tell all workers to end as an operator would, and return what did not go, or left something behind."""
        for worker in self.workers:
            if worker.lives:
                _signal(worker.process.pid, signal.SIGCONT)
                worker.process.terminate()
        for host in self.living_hosts():
            host.terminate()
        wrong = []
        deadline = time.monotonic() + LEAVE_S
        for worker in self.workers:
            try:
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                wrong.append(f"worker {worker.name} has not ended {LEAVE_S:g} s after SIGTERM")
        for command in (*self.hosting, *self.commands):
            try:
                command.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                wrong.append(f"{command.args} does not end")
        return wrong

    def close(self) -> None:
        """End whatever is left, however it went."""
        signal_all(self.processes(), signal.SIGKILL)
        processes = (each.process for each in (*self.workers, *self.drivers))
        for process in (*processes, *self.hosting, *self.commands):
            with contextlib.suppress(subprocess.TimeoutExpired, TimeoutError):
                process.wait(UP_S)
        self.server.stop()
        for proxy in (*self.proxies, self.driver_proxy):
            # Its thread ends with this process at the latest, and what came of the run must be told.
            with contextlib.suppress(TimeoutError):
                proxy.close()

    def remove(self) -> None:
        """Delete all that the run has written."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def signal_all(processes: list[psutil.Process], number: int) -> None:
    """Send a signal to processes, some of which may be gone."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def described(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"process {process.pid}, child of {process.ppid()}: {' '.join(process.cmdline())}"
    return f"process {process.pid}, gone"
