"""The zygote: trials in a millisecond, each buried before the next, and signals only for whom they are meant."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from attempts import COUNTED, forked, gone, import_key, start_message
from waiting import eventually, is_gone

from mqtune.core.codec import decode_value
from mqtune.trainable import FRAME, FRAME_CHECKPOINT, FRAME_END, FRAME_REPORT, FRAME_SAVED, TrainableSpec
from mqtune.worker import ControlPipe, ImporterHandle, ZygoteHandle

CODE = """
import os, signal, subprocess, sys, time
import mqtune

SEEN_ON_IMPORT = os.environ.get("SLOT")

def waits(config):
    mqtune.report({"pid": os.getpid()})
    while True:
        time.sleep(0.01)

def saves_when_told(config):
    held = os.listdir("/proc/self/fd")
    try:
        mqtune.report({"holds_many": len(held) > 1_024})
        while True:
            time.sleep(0.01)
    except mqtune.StopTrial:
        mqtune.save_checkpoint({"x": config["x"]})
        raise

def looks_for(config):
    mqtune.report({"lives": os.path.exists(f"/proc/{HELPER.pid}"), "helper": HELPER.pid})

def stays(config):
    leaves(config)
    time.sleep(60)

def leaves(config):
    code = "import time; time.sleep(60)"
    inner = subprocess.Popen([sys.executable, "-c", code])
    outer = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    mqtune.report({"inner": inner.pid, "outer": outer.pid})
"""


class Trials:
    """A zygote, and trials that are run by it."""

    zygote: ZygoteHandle

    def __init__(
        self, folder: Path, name: str, code: str, environment: dict[str, str], method: str = "fork", **options: Any
    ) -> None:
        (folder / "job_code.py").write_text(code)
        self.folder, self.controls = folder, list[ControlPipe]()
        key = import_key(TrainableSpec(name, module="job_code"), folder, method)
        self.importer = ImporterHandle(key, environment, folder / "zygote.log", **options)

    @classmethod
    def ready(cls, folder: Path, name: str, method: str = "fork", before: str = "") -> Self:
        one = cls(folder, name, before + CODE, {"SLOT": "seven"}, method)
        one.zygote = forked(one.importer, folder, {"SLOT": "seven"})
        return one

    def send(self, config: dict[str, Any]) -> int:
        """Have a trial started; returns the read end of its pipe."""
        read, write = os.pipe()
        out = str(self.folder / "out")
        self.controls.append(ControlPipe())
        message = start_message(config=config, stdout=out, stderr=out)
        self.zygote.send_start(message, [write, self.controls[-1].read_end])
        os.close(write)
        return read

    def wait_ended(self) -> int | None:
        """Wait until nothing of the trial is left; returns its wait status."""
        return gone(self.zygote).status

    def close(self) -> None:
        self.importer.close()
        for control in self.controls:
            control.close()

    def start(self, config: dict[str, Any]) -> tuple[int, int]:
        """Start a trial; returns its process id and the read end of its pipe."""
        pipe = self.send(config)
        return self.zygote.wait_started(), pipe


def frames(pipe: int) -> Iterator[tuple[int, Any]]:
    """What a trial sends, until it is gone."""
    rest = b""
    while data := os.read(pipe, 65536):
        rest += data
        while len(rest) >= FRAME.size:
            length, kind = FRAME.unpack_from(rest)
            if len(rest) < FRAME.size + length:
                break
            body = rest[FRAME.size : FRAME.size + length]
            value = body.decode() if kind == FRAME_SAVED else decode_value(body)
            if kind == FRAME_REPORT:
                value[1] = {name: each for name, each in value[1].items() if name not in COUNTED}
            yield kind, value
            rest = rest[FRAME.size + length :]
    os.close(pipe)


@pytest.fixture
def trials(tmp_path: Path) -> Iterator[Callable[..., Trials]]:
    with contextlib.ExitStack() as made:
        yield lambda *of: made.enter_context(contextlib.closing(Trials.ready(tmp_path, *of)))


#: What a trainable's module may hold, and its trials inherit: more files than select() takes.
HOLDS_MANY_FILES = """
import os, resource
_LIMIT = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, _LIMIT), _LIMIT))
HELD = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
"""


def test_a_trial_that_holds_more_files_than_select_takes_reports_is_stopped_and_saves(trials) -> None:
    one = trials("saves_when_told", "fork", HOLDS_MANY_FILES)
    pid, pipe = one.start({"x": 1})
    sent = frames(pipe)
    kind, report = next(sent)
    assert (kind, report[1]) == (FRAME_REPORT, {"holds_many": True})
    one.controls[-1].tell("stop")
    one.zygote.tell(pid)

    kinds = [kind for kind, _ in sent]

    assert kinds == [FRAME_CHECKPOINT, FRAME_SAVED, FRAME_END]
    assert one.wait_ended() == 0
    # And the next one, for which the zygote has to clear up behind the first.
    assert one.start({"x": 2})[0] != pid


def test_a_start_that_comes_early_waits_until_the_trial_before_is_gone(trials) -> None:
    one = trials("waits")
    first, first_pipe = one.start({})
    sent = frames(first_pipe)
    next(sent)

    second_pipe = one.send({})
    readable, _, _ = select.select([second_pipe], [], [], 0.2)
    assert not readable

    one.zygote.kill(first)
    assert os.waitstatus_to_exitcode(one.wait_ended()) == -signal.SIGKILL
    second = one.zygote.wait_started()
    assert next(frames(second_pipe))[1][1]["pid"] == second
    one.zygote.kill(second)
    one.wait_ended()
    list(sent)


def test_a_signal_for_a_trial_that_has_ended_does_not_hit_the_next(trials) -> None:
    one = trials("waits")
    first, pipe = one.start({})
    one.zygote.kill(first)
    one.wait_ended()
    os.close(pipe)
    second, pipe = one.start({})
    sent = frames(pipe)
    next(sent)

    for late in (one.zygote.tell, one.zygote.terminate, one.zygote.kill):
        late(first)
    readable, _, _ = select.select([one.zygote.fileno()], [], [], 0.3)
    assert not readable

    one.zygote.tell(second)
    (kind, end), *_ = sent
    assert (kind, end["end"]) == (FRAME_END, "stopped")
    one.wait_ended()


#: What modules do on import, from which a zygote could take harm.
HOSTILE = {
    "ignores": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "reaps": """
import os, signal

def reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

signal.signal(signal.SIGCHLD, reap)
""",
    "wakeup": """
import os, signal
read, write = os.pipe()
os.set_blocking(write, False)
signal.set_wakeup_fd(write)
""",
    "asyncio": """
import asyncio, signal
loop = asyncio.new_event_loop()
loop.add_signal_handler(signal.SIGCHLD, print)
""",
    "raises": "import signal; signal.signal(signal.SIGALRM, signal.default_int_handler)",
    "waits": """
import os, threading, time

def wait():
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.001)

threading.Thread(target=wait, daemon=True).start()
""",
}


@pytest.mark.parametrize(("method", "before"), [("spawn", "nothing"), *(("fork", each) for each in HOSTILE)])
def test_whatever_a_module_does_with_signals_on_import_trials_end_and_what_they_leave_is_gone(
    trials, method: str, before: str
) -> None:
    one = trials("leaves", method, HOSTILE.get(before, "") + "\n")
    for _ in range(2):
        if before == "raises":
            os.kill(one.zygote.pid, signal.SIGALRM)
        _, pipe = one.start({})
        kind, (_, left) = next(frames(pipe))
        assert kind == FRAME_REPORT

        one.wait_ended()

        assert not any(psutil.pid_exists(left[name]) for name in ("inner", "outer"))
        os.close(pipe)


def test_what_a_program_starts_on_import_is_of_one_trial_and_ends_with_it(trials) -> None:
    one = trials("looks_for", "fork", "import subprocess; HELPER = subprocess.Popen(['sleep', '60'])\n")
    helpers = []
    for _ in range(2):
        _, pipe = one.start({})
        report = next(frames(pipe))[1][1]
        assert report["lives"]
        one.wait_ended()
        os.close(pipe)
        helpers.append(report["helper"])
        assert is_gone(report["helper"])

    assert len({*helpers}) == 2


#: A worker that dies while its zygote is frozen; it tells of that one, of its trial, and of what the trial has started.
DYING = """
import os, signal, sys
from pathlib import Path
from test_zygotes import Trials, frames
one = Trials.ready(Path(sys.argv[1]), "stays")
trial, pipe = one.start({})
_, (_, left) = next(frames(pipe))
os.kill(one.zygote.pid, signal.SIGSTOP)
print(one.zygote.pid, trial, left["outer"], flush=True)
os._exit(1)
"""


def test_a_zygote_that_is_frozen_when_its_worker_dies_ends_its_trial_all_the_same(tmp_path: Path) -> None:
    folders = os.pathsep.join(str(Path(__file__).parents[n]) for n in (0, 1))

    command, environment = [sys.executable, "-c", DYING, str(tmp_path)], {**os.environ, "PYTHONPATH": folders}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=60)

    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3
    eventually(lambda: all(map(is_gone, pids)))
