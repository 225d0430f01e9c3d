"""Processes that are used for several trials of a function: which stay, why others don't, and what the next trial finds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from one_slot import Slot
from waiting import eventually

from mqtune.trainable.process.protocol import FRAME_END, PAUSE, STOP
from mqtune.trainable.spec import TrainableSpec

#: The cores that a trial may leave out.
CORES = len(psutil.Process().cpu_affinity() or ()) if psutil.LINUX else 0
SPEC = TrainableSpec("train", module="reused_function")
CODE = """
import builtins, ctypes, gc, locale, numpy, os, random, resource, signal, socket, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import mqtune

seen = []
kept = []

def state():
    return repr([
        os.getcwd(), sorted(os.environ.items()), type(os.environ), [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGALRM)],
        signal.pthread_sigmask(signal.SIG_BLOCK, ()), signal.getitimer(signal.ITIMER_REAL), os.umask(0o022),
        resource.getrlimit(resource.RLIMIT_CORE), sys.gettrace(), sys.getprofile(), sys.getrecursionlimit(), gc.isenabled(),
        gc.get_threshold(), locale.setlocale(locale.LC_ALL), numpy.geterr(), numpy.get_printoptions(), id(sys.stdout),
        [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")],
    ])

def train(config):
    seen.append(config["lr"])
    print(f"trial {mqtune.get_context().trial}")
    row = {"lr": config["lr"], "seen": len(seen), "pid": os.getpid(), "cwd": os.getcwd(), "random": random.random()}
    row["state"] = state() if config.get("tells") else ""
    row["folder"] = str(mqtune.get_context().folder)
    mqtune.report(row)
    for _ in range(config["steps"] - 1):
        mqtune.report({"lr": config["lr"]})
        time.sleep(0.001)
    for do in config.get("do", "").split():
        globals()[do](config)

def fail(config):
    raise ValueError("no luck")

def leave_by_sys_exit(config):
    sys.exit(config.get("code"))

def end_the_process(config):
    os._exit(0)

def sleep(config):
    opened = open(os.devnull), open(Path(config["log"]) / "opened.txt", "w")
    mqtune.report({"in": "it"})
    time.sleep(30)

def swallow(config):
    try:
        mqtune.report({"in": "it"})
        time.sleep(30)
    except mqtune.StopTrial:
        pass

def import_slowly(config):
    import imported_slowly

def seed(config):
    random.seed(1)

def report_by_the_collector(config):
    def generator():
        try:
            yield
        finally:
            mqtune.report({"by": "the collector"})
    one = generator()
    next(one)
    loop = [one]
    loop.append(loop)

def report_on():
    while True:
        mqtune.report({"by": "a thread"})
        time.sleep(0.002)

def leave_a_quick_thread(config):
    threading.Thread(target=report_on, name="quick", daemon=True).start()

def leave_a_nameless_thread(config):
    import _thread
    # It counts from when it runs.
    runs = _thread.allocate_lock()
    runs.acquire()
    _thread.start_new_thread(lambda: (runs.release(), time.sleep(60)), ())
    runs.acquire()

def leave_a_thread_that_ends(config):
    ThreadPoolExecutor(1).submit(time.sleep, 0.01)

def leave_a_socket(config):
    kept.append(socket.create_server(("127.0.0.1", 0)))

def leave_a_pipe(config):
    kept.append(os.pipe())

def redirect_output(config):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

def close_everything(config):
    os.closerange(3, 100)

def replace_output(config):
    sys.stdout = sys.__stderr__

def close_stdout(config):
    sys.stdout.close()

def change_directory(config):
    os.chdir("/")

def set_variables(config):
    os.environ["OMP_NUM_THREADS"] = "37"
    os.environ["PATH"] = "/nowhere"
    del os.environ["HOME"]

def replace_the_environment(config):
    os.environ = {"NEW": "1"}

def import_what_sets(config):
    import imported_setting
    mqtune.report({"set": [os.environ.get("BY_IMPORT"), os.environ.get("BY_TRIAL"), sys.getrecursionlimit()]})
    os.environ["BY_IMPORT"] = os.environ["BY_TRIAL"] = "by the trial"
    sys.setrecursionlimit(2345)

def ignore_sigterm(config):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def take_the_stop_signal(config):
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)

def block_signals(config):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

def set_an_alarm(config):
    signal.alarm(600)

def set_the_umask(config):
    os.umask(0o077)

def limit_memory(config):
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else hard, hard))


def disable_what_collects(config):
    gc.set_threshold(0)

def have_one_core(config):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])

def trace_calls(config):
    sys.setprofile(lambda *_: None)

def recurse_deeper(config):
    sys.setrecursionlimit(12345)

def disable_collection(config):
    gc.disable()

def set_a_locale(config):
    locale.setlocale(locale.LC_ALL, "C.UTF-8")

def set_what_numpy_does(config):
    numpy.seterr(all="raise")
    numpy.set_printoptions(precision=2)

def replace_sleep(config):
    time.sleep = lambda seconds: None

def replace_what_is_needed(config):
    os.listdir = None

def replace_report(config):
    from mqtune.trainable import reporting
    reporting.report = print

def start_a_child(config):
    kept.append(subprocess.Popen(["sleep", "60"]))

def start_a_child_that_ends(config):
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    kept.append(child)

class Torch:
    class cuda:
        synchronize = empty_cache = staticmethod(lambda: None)
        is_initialized = staticmethod(lambda: True)
        device_count = staticmethod(lambda: 2)
        memory_allocated = staticmethod(lambda device: 3 << 30)

def keep_device_memory(config):
    sys.modules["torch"] = Torch

def break_the_device(config):
    def synchronize():
        raise RuntimeError("device-side assert")
    Torch.cuda.synchronize = synchronize
    sys.modules["torch"] = Torch
"""
SETTING = """
import os, sys
os.environ["BY_IMPORT"] = "by the import"
sys.setrecursionlimit(1234)
"""
# A folder: a file might still be open when the stop comes.
SLOW = """
import pathlib, time
pathlib.Path(__file__).with_name("begun").mkdir()
time.sleep(30)
"""


@pytest.fixture
def slot(tmp_path: Path) -> Iterator[Slot]:
    with contextlib.closing(Slot(tmp_path, "fork", SPEC, CODE)) as slot:
        (slot.code / "imported_slowly.py").write_text(SLOW)
        (slot.code / "imported_setting.py").write_text(SETTING)
        yield slot


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_one_process_runs_trial_after_trial_each_with_its_own_config_reports_and_output(
    tmp_path: Path, method: str
) -> None:
    with contextlib.closing(Slot(tmp_path, method, SPEC, CODE)) as slot:
        trials = [slot.run(lr=lr, steps=2) for lr in (1, 2, 3)]

        assert not any(one.read() for one in trials), "nothing more can come by the pipe of one that has ended"
        assert len({one.pid for one in trials}) == 1
        assert [one.values("seen")[0] for one in trials] == [1, 2, 3], "its globals stay"
        assert [one.values("lr") for one in trials] == [[lr] * 2 for lr in (1, 2, 3)]
        assert [one.values("training_iteration") for one in trials] == [[1, 2]] * 3
        assert [one.output() for one in trials] == [f"trial t{n}\n" for n in (1, 2, 3)]
        assert [one.values("folder")[0] for one in trials] == [str(tmp_path / f"t{n}" / "attempt") for n in (1, 2, 3)]
        assert [(one.end()["end"], one.left, one.errors()) for one in trials] == [("completed", "", "")] * 3


def test_each_trial_has_its_own_working_directory_and_random_numbers(slot: Slot) -> None:
    folders = [str(slot.folder / "own" / str(number)) for number in range(3)]
    trials = [slot.start(message={"working_dir": each}, do="seed").ended() for each in folders]

    assert len({one.pid for one in trials}) == 1
    assert [one.values("cwd")[0] for one in trials] == folders
    assert len({one.values("random")[0] for one in trials}) == 3


def test_a_process_goes_on_after_a_stop_that_has_unwound_or_was_caught(slot: Slot) -> None:
    for do, kind, end, heard in (("sleep", PAUSE, "paused", "pause"), ("swallow", STOP, "completed", "stop")):
        first = slot.start(do=do)
        eventually(lambda first=first: len(first.reports()) == 2)
        first.tell(kind)
        first.ended()

        assert (first.left, first.end()["heard"], first.end()["end"]) == ("", heard, end)
    assert slot.run().pid == first.pid == slot.attempts[0].pid


def test_a_process_that_was_stopped_in_an_import_does_not_stay(slot: Slot) -> None:
    first = slot.start(do="import_slowly")
    eventually((slot.code / "begun").exists)
    first.tell(STOP)
    first.ended()

    assert (first.end()["end"], first.left) == ("stopped", "it was stopped in the middle of an import")
    assert slot.run().pid != first.pid


def test_a_stop_that_comes_before_the_process_has_taken_its_trial_is_not_lost(slot: Slot) -> None:
    waiting = psutil.Process(slot.run().pid)
    waiting.suspend()
    one = slot.start(do="sleep")
    one.tell(STOP)
    waiting.resume()

    one.ended()

    assert (one.end()["end"], one.reports()) == ("stopped", [])
    assert slot.run().pid == one.pid


def test_what_disturbs_nobody_keeps_no_process_from_going_on(slot: Slot) -> None:
    harmless = "leave_a_thread_that_ends leave_a_pipe start_a_child_that_ends leave_by_sys_exit"

    first, second = slot.run(do=harmless), slot.run()

    assert (first.end()["end"], first.left) == ("completed", "")
    assert second.pid == first.pid


#: What can be put back whatever else was changed.
CHANGES = """
    change_directory set_variables ignore_sigterm take_the_stop_signal block_signals set_an_alarm set_the_umask limit_memory
    replace_output trace_calls recurse_deeper disable_collection disable_what_collects set_a_locale set_what_numpy_does
"""


@pytest.mark.parametrize("do", ["replace_the_environment", CHANGES + ("have_one_core" if CORES > 1 else "")])
def test_what_a_trial_has_changed_is_put_back_for_the_next_one(slot: Slot, do: str) -> None:
    first, second = slot.run(do=do, tells=True), slot.run(tells=True)

    assert (first.end()["end"], first.left, first.errors()) == ("completed", "", "")
    assert second.pid == first.pid
    assert second.values("state") == first.values("state")
    assert second.output() == "trial t2\n"


def test_a_process_that_took_the_stop_signal_can_be_stopped_in_its_next_trial(slot: Slot) -> None:
    first = slot.run(do="take_the_stop_signal")
    second = slot.start(do="sleep")
    eventually(lambda: len(second.reports()) == 2)
    second.tell(STOP)

    assert (second.ended().end()["end"], second.pid) == ("stopped", first.pid)


def test_what_a_module_sets_when_it_is_imported_stays_with_it_and_what_the_trial_sets_does_not(slot: Slot) -> None:
    trials = [slot.run(do="import_what_sets") for _ in range(3)]

    assert len({one.pid for one in trials}) == 1
    assert [one.reports()[1]["set"] for one in trials] == [["by the import", None, 1234]] * 3


@pytest.mark.parametrize(
    ("do", "why"),
    [
        ("leave_a_nameless_thread", "it has left the threads without names"),
        ("leave_a_socket", "it has left open socket:["),
        ("redirect_output", "it has closed or replaced the descriptors 1"),
        ("close_stdout", "it has changed sys.stdout"),
        ("replace_sleep", "it has replaced time.sleep"),
        ("replace_what_is_needed", "what it has left can't be seen: TypeError"),
        ("replace_report", "it has replaced mqtune.trainable.reporting.report"),
        ("start_a_child", "it has left processes"),
        ("keep_device_memory", "it has left 6.4 GB of device memory"),
        ("break_the_device", "it has left a device that raises RuntimeError"),
    ],
)
def test_a_process_that_was_changed_does_not_stay_and_its_attempt_says_why(slot: Slot, do: str, why: str) -> None:
    first, second = slot.run(do=do), slot.run()

    assert (first.end()["end"], len(first.reports())) == ("completed", 1)
    assert first.left.startswith(why), first.left
    assert first.left in first.errors() or "descriptors" in why
    assert second.pid != first.pid
    assert not psutil.pid_exists(first.pid)
    assert second.values("seen") == [1]


@pytest.mark.parametrize("do", ["fail", "end_the_process", "close_everything"])
def test_a_process_whose_trial_did_not_end_well_does_not_stay(slot: Slot, do: str) -> None:
    good, bad, after = slot.run(), slot.run(do=do), slot.run()

    assert good.pid == bad.pid != after.pid
    assert bad.status is not None
    assert after.end()["end"] == "completed"


def test_what_a_thread_reports_behind_the_end_of_its_trial_does_not_count(slot: Slot) -> None:
    one = slot.run(do="leave_a_quick_thread")

    assert [kind for kind, _ in one.frames()][-1] == FRAME_END


def test_what_finalizers_do_is_done_in_the_trial_that_left_them(slot: Slot) -> None:
    first, second = slot.run(do="report_by_the_collector"), slot.run()

    assert first.reports()[1:] == [{"by": "the collector"}]
    assert len(second.reports()) == 1
    assert first.pid == second.pid
