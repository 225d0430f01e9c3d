"""What a run consists of: a Redis, workers and drivers, each a process that can be killed, frozen and started again; see lone, replicated."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import breaker
import counting
import psutil
import times as run_times
from driver_main import ATTACH, FINISHED, REFUSED, TO_GO_ON
from lone import OPERATOR, Server
from replicated import Replicated
from restartable import UP_S
from submitted import KEY, Desk, SubmittedProcess, new_drivers
from waiting import eventually

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


@dataclass(slots=True)
class Worker:
    """A real ``mqtune worker``, with a network of its own to the Redis."""

    seat: int
    name: str
    process: subprocess.Popen[bytes]
    #: Where it is told that one of its threads is to raise; and whether it was.
    order: Path
    is_struck: bool = False
    #: Whether it was told to end, killed or lost, and another one takes its seat.
    is_given_up: bool = False
    is_frozen: bool = False

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def descendants(self) -> list[psutil.Process]:
        """Its zygotes, trials and whatever they have started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []


class Experiment:
    """An experiment of the run: what is tuned and how (see driver_main), and a new folder for what its drivers write."""

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
        has_devices: whether each slot has a device.
        fails_over: whether the Redis has a replica and Sentinels, by which drivers and workers come to it.
        hosts: how many workers with driver slots there are; with any, drivers are submitted.
    """

    folder: Path
    plans: list[dict[str, Any]]
    times: Timing
    has_devices: bool
    fails_over: bool
    hosts: int
    #: How many workers there are, and how many slots each has.
    seats: int = 3
    slots: int = 2
    workers: list[Worker] = field(default_factory=list)
    #: The workers with driver slots that there were, which run no trials.
    hosting: list[subprocess.Popen[bytes]] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)
    #: Commands that operators have given.
    commands: list[subprocess.Popen[bytes]] = field(default_factory=list)
    #: The patterns whose quotas somebody changes.
    quotas: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in ("beats", "devices", "home", "logs", "store"):
            (self.folder / name).mkdir(parents=True)
        self._mark = secrets.token_hex(8)
        self.server: Any = (Replicated if self.fails_over else Server)(self.folder / "redis")
        self.proxies = [self.server.way() for _ in range(self.seats)]
        self.driver_proxy = self.server.way()
        self.queue = queue_name(Resources(cpus=CPUS, gpus=int(self.has_devices)))
        where = {"broker": self.driver_proxy.url, "store": str(self.folder / "store"), "cpus": CPUS}
        where["gpus"] = int(self.has_devices)
        self.desk = Desk(lambda: self.server)
        self.experiments = [Experiment(self.folder / plan["name"], {**plan, **where}) for plan in self.plans]

    def broker(self, *, as_operator: bool) -> str:
        """Return where the Redis is, for those who steer: drivers' own way, perhaps with the operator's account."""
        url: str = self.driver_proxy.url
        theirs = f"{OPERATOR}:{self.server.operator_password}@"
        return url.replace(f":{self.server.password}@", theirs) if as_operator else url

    def _spawn(self, log: str, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a program of Python's, whose output goes into a log."""
        every = {
            MARK: self._mark,
            counting.BEATS: str(self.folder / "beats"),
            counting.DEVICES: str(self.folder / "devices"),
            run_times.TIMES: run_times.to_text(self.times),
            "MQTUNE_HOME": str(self.folder / "home"),
            "MQTUNE_ADVERTISE": "127.0.0.1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with (self.folder / "logs" / log).open("ab") as output:
            return subprocess.Popen(
                [sys.executable, *command],
                env={**os.environ, **every, **environment},
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
        fleet, pids = Fleet(self.server.client, patience_s=UP_S), {worker.process.pid for worker in self.workers}
        eventually(lambda: {info.pid for info in fleet.workers()} >= pids, UP_S, "the workers did not join")

    def start_worker(self, seat: int) -> Worker:
        """Start a worker, the next on its seat."""
        name = f"w{seat}-{1 + sum(worker.seat == seat for worker in self.workers)}"
        devices = "".join(f"{device}," for device in range(self.slots))
        shape = ["--gpus", devices] if self.has_devices else ["--gpus", "0", "--slots", str(self.slots)]
        arguments = ["--name", name, *shape, "--cpus", str(self.slots * CPUS)]
        arguments += ["--code-root", str(HERE), "--log-root", str(self.folder / "trials")]
        if self.times == run_times.SHORT:
            arguments += ["--hold-seats", str(run_times.SHORT_SEAT_S)]
        order = self.folder / "orders" / name
        settings = {"MQTUNE_BROKER": self.proxies[seat].url, breaker.ORDER: str(order), counting.SEAT: str(seat)}
        process = self._spawn(f"{name}.log", str(HERE / "worker_main.py"), *arguments, **settings)
        self.workers.append(Worker(seat, name, process, order))
        return self.workers[-1]

    def start_host(self) -> None:
        """Start a worker with driver slots alone."""
        name = f"host-{len(self.hosting) + 1}"
        arguments = ["--name", name, "--slots", "0", "--drivers", "2", "--log-root", str(self.folder / "hosts" / name)]
        settings = {"MQTUNE_BROKER": self.driver_proxy.url, "MQTUNE_CODE_KEY": KEY}
        self.hosting.append(self._spawn(f"{name}.log", str(HERE / "worker_main.py"), *arguments, **settings))

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

    def command(self, *words: str, as_operator: bool = False) -> subprocess.Popen[bytes]:
        """Give a command of ``mqtune``, and don't wait for it."""
        broker = self.broker(as_operator=as_operator)
        self.commands.append(self._spawn("commands.log", "-m", "mqtune", *words, "--broker", broker))
        return self.commands[-1]

    def ask(
        self, experiment: Experiment, request: dict[str, Any], *, as_operator: bool = False
    ) -> subprocess.Popen[bytes]:
        """Have somebody make a request of an experiment's driver, in a process of their own."""
        arguments = [self.broker(as_operator=as_operator), str(experiment.said), experiment.name, json.dumps(request)]
        self.commands.append(self._spawn("askers.log", str(HERE / "asker.py"), *arguments))
        return self.commands[-1]

    def has_begun(self, experiment: Experiment) -> bool:
        """Whether a trial of the experiment has run."""
        return (self.folder / "beats" / experiment.name).exists()

    def living_workers(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.lives and not worker.is_given_up]

    def start_driver(
        self, experiment: Experiment, *, host: str = "", is_second: bool = False, attaches: bool = False
    ) -> Driver:
        """Run the driver script of an experiment, or attach without it; perhaps as on another machine."""
        number = len(self.drivers) + 1
        told, log = experiment.told / f"{number:03d}", f"driver-{number:03d}.log"
        arguments = [str(experiment.plan_path), str(told), str(experiment.results), *([ATTACH] if attaches else [])]
        process = self._spawn(log, str(HERE / "driver_main.py"), *arguments, MQTUNE_CHAOS_HOST=host)
        driver = Driver(experiment, number, process, host, told, self.folder / "logs" / log, is_second=is_second)
        self.drivers.append(driver)
        return driver

    def drivers_of(self, experiment: Experiment) -> list[Driver]:
        """The drivers that the experiment has had, in the order in which they were started."""
        return [driver for driver in self.drivers if driver.experiment is experiment]

    def living_drivers(self, experiment: Experiment | None = None) -> list[Driver]:
        """The drivers that live, of one experiment or of all."""
        return [driver for driver in self.drivers if driver.lives and experiment in (None, driver.experiment)]

    def kill_drivers(self, experiment: Experiment) -> None:
        for driver in self.living_drivers(experiment):
            driver.process.kill()
            driver.process.wait()

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
        beats = [counting.last_beats(self.folder / "beats", experiment.name) for experiment in self.experiments]
        pids = {pid for each in beats for _, _, pid in each}
        return [process for process in self.processes() if process.pid in pids]

    def processes(self) -> list[psutil.Process]:
        """All living processes that carry the run's mark, whoever their parents are."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def end_workers(self) -> list[str]:
        """Tell all workers to end as an operator would, and return what did not go."""
        workers = [worker.process for worker in self.workers]
        for process in (*workers, *self.hosting):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        wrong, deadline = [], time.monotonic() + LEAVE_S
        for process in (*workers, *self.hosting, *self.commands):
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                wrong.append(f"{process.args} has not ended {LEAVE_S:g} s after SIGTERM")
        return wrong

    def close(self) -> None:
        """End whatever is left, however it went."""
        signal_all(self.processes(), signal.SIGKILL)
        processes = (each.process for each in (*self.workers, *self.drivers))
        for process in (*processes, *self.hosting, *self.commands):
            with contextlib.suppress(subprocess.TimeoutExpired, AssertionError):
                process.wait(UP_S)
        self.server.close()
        for proxy in (*self.proxies, self.driver_proxy):
            # Its thread ends with this process at the latest, and what came of the run must be told.
            with contextlib.suppress(TimeoutError):
                proxy.close()


def signal_all(processes: list[psutil.Process], number: int) -> None:
    """Send a signal to processes, some of which may be gone."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
