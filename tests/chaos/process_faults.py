"""What goes wrong with processes: drivers, workers, trials, machines; see faults."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import breaker
import psutil
from waiting import described, lives
from world import Driver, Worker, signal_all

if TYPE_CHECKING:
    from campaign import Campaign as Run

#: How long what a killed worker leaves may take to be gone, on a loaded machine.
GONE_S: Final = 8.0
#: PF_FORKNOEXEC among a process's flags, and where these stand behind its name in the process table (proc_pid_stat(5)).
_FORK_WITHOUT_EXEC: Final = 0x40
_FLAGS: Final = 6
#: Where another driver says that it is.
ELSEWHERE: Final = "elsewhere"


def at(found: Callable[[Run], list[Any]], strike: Callable[..., str], **how: Any) -> Callable[[Run], str]:
    """Return what strikes at one of those that are found, if there are any."""

    def struck(run: Run) -> str:
        there = found(run)
        return strike(run, run.random.choice(there), **how) if there else ""

    return struck


def drivers(run: Run) -> list[Driver]:
    return [driver for driver in run.world.living_drivers() if not driver.is_frozen and not driver.is_second]


def hosts(run: Run) -> list[Any]:
    return run.world.living_hosts()


def workers(run: Run) -> list[Worker]:
    return [worker for worker in run.world.living_workers() if not worker.is_frozen]


def signalled(run: Run, driver: Driver, number: int) -> str:
    driver.process.send_signal(number)
    return f"driver {driver.number}"


def second_driver(run: Run, driver: Driver) -> str:
    host = run.random.choice([driver.host, ELSEWHERE])
    second = run.world.start_driver(driver.experiment, host=host, is_second=True, attaches=run.random.random() < 0.5)
    return f"driver {second.number} beside driver {driver.number}"


def driver_frozen(run: Run, driver: Driver) -> str:
    """Frozen past its lock, so that another one takes over; or for a moment."""
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
    for_s = run.undriven_after_s + run.random.choice((2.0, 8.0))

    def end_drivers() -> None:
        run.undriven(experiment, for_s)
        if not run.world.halt(experiment):
            # It is not waited for: the thread that would wait here brings back a Redis that is away, and thaws a host.
            run.later(0.1, end_drivers)
            return
        run.world.kill_drivers(experiment)

    end_drivers()
    return f"{experiment.name} for {for_s:.1f} s: {experiment.plan['on_driver_loss']}"


def host_frozen(run: Run, host: Any) -> str:
    """With its scripts, for so long that others run them."""
    frozen = [psutil.Process(host.pid), *psutil.Process(host.pid).children(recursive=True)]
    signal_all(frozen, signal.SIGSTOP)
    for_s = run.lock_s + 3.0
    run.later(for_s, lambda: signal_all(frozen, signal.SIGCONT))
    return f"process {host.pid} for {for_s:.1f} s"


def host_goes(run: Run, host: Any, number: int) -> str:
    """Another one comes later."""
    host.send_signal(number)
    run.later(run.random.choice([0.0, run.lock_s]), run.world.start_host)
    return f"process {host.pid}"


def kill(run: Run, worker: Worker, *, with_all: bool) -> str:
    """Kill a worker, perhaps with all that it has started; nothing of that must be left."""
    children = worker.descendants()
    worker.is_given_up = True
    if with_all:
        signal_all(children, signal.SIGKILL)
    worker.process.kill()
    killed_at = time.monotonic()

    def look() -> None:
        left = [child for child in children if lives(child)]
        if left and time.monotonic() - killed_at >= GONE_S:
            run.wrong("7", f"{GONE_S:g} s after the death of {worker.name} there is {', '.join(map(described, left))}")

    run.later(GONE_S, look)
    return worker.name


def leave(run: Run, worker: Worker, *, by_operator: bool) -> str:
    """Tell a worker to end, or have an operator drain it."""
    worker.is_given_up = True
    run.left(worker)
    if by_operator:
        run.world.command("fleet", "drain", worker.name)
    else:
        worker.process.terminate()
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


def trials(run: Run) -> list[psutil.Process]:
    return run.world.trial_processes()


def importers(run: Run) -> list[psutil.Process]:
    """Return what a worker has started; the zygotes of an importer that was killed are the worker's children, too."""
    there = workers(run)
    children = _children(run.random.choice(there).process.pid) if there else []
    return [child for child in children if not _is_fork(child)]


def zygotes(run: Run) -> list[psutil.Process]:
    parents = importers(run)
    return _children(run.random.choice(parents).pid) if parents else []


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


def killed(run: Run, process: psutil.Process) -> str:
    signal_all([process], signal.SIGKILL)
    return f"process {process.pid}"


def frozen(run: Run, process: psutil.Process) -> str:
    """For a moment, or for good: then its worker must end it."""
    signal_all([process], signal.SIGSTOP)
    for_s = run.random.choice([1.0, None])
    if for_s is not None:
        run.later(for_s, lambda: signal_all([process], signal.SIGCONT))
    return f"process {process.pid} {_how_long(for_s)}"


def _how_long(for_s: float | None) -> str:
    return "for good" if for_s is None else f"for {for_s:.1f} s"


def break_device(run: Run, error: str) -> str:
    """A device of a seat fails whatever runs there with an error, for some seconds, or for good."""
    world = run.world
    seat, device = run.random.randrange(world.seats), str(run.random.randrange(world.slots))
    for_s = run.random.choice([6.0, None])
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
    return f"device {device} of seat {seat} {_how_long(for_s)}: {error}"


def thread_raises(run: Run) -> str:
    """An error that nothing foresees, in one of a worker's threads: that goes on, or the worker ends."""
    living = [worker for worker in run.world.living_workers() if not worker.is_struck]
    whole = [worker for worker in living if " ready." in run.world.log_of_worker(worker)]
    thread, error = run.random.choice(breaker.THREADS), run.random.choice(breaker.ERRORS)
    after = run.random.randint(1, run.random.choice((1, 8, 40)))
    if not whole:
        return ""
    worker = run.random.choice(whole)
    worker.is_struck = True
    breaker.order(worker.order, thread, error, after)
    return f"{worker.name}: {error} in {thread} at call {after}"
