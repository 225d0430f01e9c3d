"""What goes wrong with processes: drivers, workers, trials, machines; see faults."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import breaker
import psutil
from befalling import Run
from world import Driver, Worker, described, signal_all

#: How long what a killed worker leaves may take to be gone, on a loaded machine.
GONE_S: Final = 8.0
#: For how long nobody drives, beyond the time after which workers go by the experiment's policy, in seconds.
UNDRIVEN_S: Final = (2.0, 8.0)
#: How often it is tried to have nobody drive, in seconds.
_LOOK_S: Final = 0.1
#: At which of its next calls of mqtune's functions a thread raises, at most: a thread that has little to do makes a few in a step, the
#: uplink many.
THREADS_CALLS: Final = (1, 8, 40)
#: After how long a broken device is whole again that is not broken for good, in seconds.
_MENDED_S: Final = 6.0
#: PF_FORKNOEXEC among a process's flags, and where these stand behind its name in the process table (proc_pid_stat(5)).
_FORK_WITHOUT_EXEC: Final = 0x40
_FLAGS: Final = 6
#: Where another driver says that it is.
ELSEWHERE: Final = "elsewhere"


def _driver(run: Run) -> Driver | None:
    awake = [driver for driver in run.world.living_drivers() if not driver.is_frozen and not driver.is_second]
    return run.random.choice(awake) if awake else None


def driver_signalled(run: Run, number: int) -> str:
    if (driver := _driver(run)) is None:
        return ""
    driver.process.send_signal(number)
    return f"driver {driver.number}"


def second_driver(run: Run) -> str:
    if (driver := _driver(run)) is None:
        return ""
    host = run.random.choice([driver.host, ELSEWHERE])
    second = run.world.start_driver(driver.experiment, host=host, is_second=True, attaches=run.random.random() < 0.5)
    return f"driver {second.number} beside driver {driver.number}"


def driver_frozen(run: Run) -> str:
    """Frozen past its lock, so that another one takes over; or for a moment."""
    if (driver := _driver(run)) is None:
        return ""
    driver.is_frozen = True
    driver.process.send_signal(signal.SIGSTOP)
    for_s = run.random.choice([1.0, run.lock_s + 3.0])
    if for_s > run.lock_s:
        run.world.start_driver(driver.experiment, host=ELSEWHERE if driver.host != ELSEWHERE else "")

    def thaw() -> None:
        driver.is_frozen = False
        if driver.lives:
            driver.process.send_signal(signal.SIGCONT)

    run.later(for_s, thaw)
    return f"driver {driver.number} for {for_s:.1f} s"


def nobody_drives(run: Run) -> str:
    """Long enough for the experiment's policy, whichever it is."""
    if not (drivers := run.world.living_drivers()):
        return ""
    experiment = run.random.choice(drivers).experiment
    for_s = run.undriven_after_s + run.random.choice(UNDRIVEN_S)

    def end_drivers() -> None:
        run.undriven(experiment, for_s)
        if not run.world.halt(experiment):
            # It is not waited for: the thread that would wait here brings back a Redis that is away, and thaws a host.
            run.later(_LOOK_S, end_drivers)
            return
        for driver in run.world.living_drivers(experiment):
            driver.process.kill()
            driver.process.wait()

    end_drivers()
    return f"{experiment.name} for {for_s:.1f} s: {experiment.plan['on_driver_loss']}"


def host_frozen(run: Run) -> str:
    """With its scripts, for so long that others run them."""
    if not (hosts := run.world.living_hosts()):
        return ""
    host = run.random.choice(hosts)
    frozen = [psutil.Process(host.pid), *psutil.Process(host.pid).children(recursive=True)]
    signal_all(frozen, signal.SIGSTOP)
    for_s = run.lock_s + 3.0
    run.later(for_s, lambda: signal_all(frozen, signal.SIGCONT))
    return f"process {host.pid} for {for_s:.1f} s"


def host_goes(run: Run, number: int) -> str:
    """The machine of a submitted driver, or of none; another one comes later."""
    if not (hosts := run.world.living_hosts()):
        return ""
    host = run.random.choice(hosts)
    host.send_signal(number)
    run.later(run.random.choice([0.0, run.lock_s]), run.world.start_host)
    return f"process {host.pid}"


def _worker(run: Run) -> Worker | None:
    there = [worker for worker in run.world.living_workers() if not worker.is_frozen]
    return run.random.choice(there) if there else None


def kill(run: Run, worker: Worker, *, with_all: bool) -> str:
    """Kill a worker, perhaps with all that it has started; nothing of that must be left."""
    children = worker.descendants()
    worker.is_given_up = True
    if with_all:
        signal_all(children, signal.SIGKILL)
    worker.process.kill()
    killed_at = time.monotonic()

    def look() -> None:
        left = [child for child in children if child.is_running() and _status(child) != psutil.STATUS_ZOMBIE]
        if left and time.monotonic() - killed_at >= GONE_S:
            run.wrong("7", f"{GONE_S:g} s after the death of {worker.name} there is {', '.join(map(described, left))}")

    run.later(GONE_S, look)
    return worker.name


def _status(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return str(process.status())
    return str(psutil.STATUS_ZOMBIE)


def at_worker(strike: Callable[..., str], **how: bool) -> Callable[[Run], str]:
    """Return what strikes at one of the workers that are not frozen."""

    def struck(run: Run) -> str:
        worker = _worker(run)
        return strike(run, worker, **how) if worker else ""

    return struck


def terminate(run: Run, worker: Worker) -> str:
    """Tell a worker to end."""
    worker.is_given_up = True
    run.left(worker)
    worker.process.terminate()
    return worker.name


def drain(run: Run, worker: Worker) -> str:
    """Have an operator drain a worker."""
    worker.is_given_up = True
    run.left(worker)
    run.world.drain(worker)
    return worker.name


def worker_joins(run: Run) -> str:
    return run.world.start_worker(run.random.randrange(run.world.seats)).name


def freeze(run: Run, worker: Worker, *, with_all: bool) -> str:
    """Freeze a worker alone, whose trials run on unheard, or with all of its processes; past its lease or for a moment."""
    frozen = worker.descendants() if with_all else []
    begin = time.monotonic()
    worker.is_frozen = True
    worker.process.send_signal(signal.SIGSTOP)
    signal_all(frozen, signal.SIGSTOP)
    for_s = run.random.choice([1.0, run.lease_s + 2.5])

    def thaw() -> None:
        worker.is_frozen = False
        # The worker last, as its children must be able to die.
        signal_all(frozen, signal.SIGCONT)
        if worker.lives:
            worker.process.send_signal(signal.SIGCONT)
        run.isolated([worker], begin)

    run.later(for_s, thaw)
    return f"{worker.name} for {for_s:.1f} s"


def trial_killed(run: Run) -> str:
    processes = run.world.trial_processes()
    if not processes:
        return ""
    process = run.random.choice(processes)
    signal_all([process], signal.SIGKILL)
    return f"process {process.pid}"


def importer(run: Run) -> psutil.Process | None:
    """Return an importer that a worker has started; the zygotes of one that was killed are the worker's children, too."""
    worker = _worker(run)
    started = [] if worker is None else [each for each in _children(worker.process.pid) if not _is_fork(each)]
    return run.random.choice(started) if started else None


def zygote(run: Run) -> psutil.Process | None:
    parent = importer(run)
    zygotes = [] if parent is None else _children(parent.pid)
    return run.random.choice(zygotes) if zygotes else None


def _children(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children()
    return []


def _is_fork(process: psutil.Process) -> bool:
    """Whether a process is a fork that has become no other program since."""
    with contextlib.suppress(OSError):
        flags = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[_FLAGS]
        return bool(int(flags) & _FORK_WITHOUT_EXEC)
    return True


def killed(run: Run, which: Callable[[Run], psutil.Process | None]) -> str:
    if (process := which(run)) is None:
        return ""
    signal_all([process], signal.SIGKILL)
    return f"process {process.pid}"


def frozen(run: Run, which: Callable[[Run], psutil.Process | None]) -> str:
    """For a moment, or for good: then its worker must end it."""
    if (process := which(run)) is None:
        return ""
    signal_all([process], signal.SIGSTOP)
    for_s = run.random.choice([1.0, None])
    if for_s is not None:
        run.later(for_s, lambda: signal_all([process], signal.SIGCONT))
    return f"process {process.pid} {'for good' if for_s is None else f'for {for_s:.1f} s'}"


def break_device(run: Run, error: str) -> str:
    """A device of a seat fails whatever runs there with an error, for some seconds, or for good."""
    world = run.world
    seat, device = run.random.randrange(world.seats), str(run.random.randrange(world.slots))
    for_s = run.random.choice([_MENDED_S, None])
    broken = world.folder / "devices" / f"{seat}-{device}"
    if any(broken.parent.iterdir()):
        # More are no fault of one device: then all may be broken.
        return ""
    draft = world.folder / "broken.new"
    draft.write_text(error)
    draft.replace(broken)
    run.broke(seat, device, error)
    if for_s is not None:
        run.later(for_s, broken.unlink)
    return f"device {device} of seat {seat} {'for good' if for_s is None else f'for {for_s:.1f} s'}: {error}"


def thread_raises(run: Run) -> str:
    """An error that nothing foresees, in one of a worker's threads: that goes on, or the worker ends."""
    ready = [worker for worker in run.world.living_workers() if " ready." in run.world.log_of_worker(worker)]
    thread, error = run.random.choice(breaker.THREADS), run.random.choice(breaker.ERRORS)
    after = run.random.randint(1, run.random.choice(THREADS_CALLS))
    whole = [worker for worker in ready if not worker.is_struck]
    if not whole:
        return ""
    worker = run.random.choice(whole)
    worker.is_struck = True
    breaker.order(worker.order, thread, error, after)
    return f"{worker.name}: {error} in {thread} at call {after}"
