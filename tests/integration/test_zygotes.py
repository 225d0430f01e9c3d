"""The zygote: trials in a millisecond, each buried before the next, and signals only for whom they are meant."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import eventually, lives

from mqtune.trainable.session import FRAME, FRAME_END, FRAME_REPORT
from mqtune.trainable.spec import TrainableSpec
from mqtune.wire import decode_value
from mqtune.worker.control import Control
from mqtune.worker.zygotes import ImportFailed, ZygoteDied, ZygoteHandle, ZygoteKey

CODE = """
import os, subprocess, sys, time
import mqtune

SEEN_ON_IMPORT = os.environ.get("SLOT")

def steady(config):
    mqtune.report({"x": config["x"], "slot": SEEN_ON_IMPORT})

def waits(config):
    mqtune.report({"pid": os.getpid()})
    while True:
        time.sleep(0.01)

def stops_itself(config):
    mqtune.report({"x": 1})
    raise mqtune.StopTrial

def kills_its_zygote(config):
    os.kill(os.getppid(), 9)
    time.sleep(60)

def leaves(config):
    code = "import time; time.sleep(60)"
    inner = subprocess.Popen([sys.executable, "-c", code])
    outer = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    mqtune.report({"inner": inner.pid, "outer": outer.pid})
"""


class Trials:
    """A zygote, and trials that are run by it."""

    def __init__(self, folder: Path, name: str, start_method: str) -> None:
        (folder / "job_code.py").write_text(CODE)
        self.folder = folder
        self.controls: list[Control] = []
        key = ZygoteKey(TrainableSpec(name, module="job_code"), folder, start_method)
        self.zygote = ZygoteHandle(key, {"SLOT": "seven"}, folder / "zygote.log")

    def send(self, config: dict[str, object]) -> int:
        """Have a trial started; returns the read end of its pipe."""
        read, write = os.pipe()
        out = str(self.folder / "out")
        self.controls.append(Control())
        message = {"config": config, "timestamp": 0.0, "stdout": out, "stderr": out}
        self.zygote.send_start(message, [write, self.controls[-1].read_end])
        os.close(write)
        return read

    def close(self) -> None:
        self.zygote.close()
        for control in self.controls:
            control.close()

    def start(self, config: dict[str, object]) -> tuple[int, int]:
        """Start a trial; returns its process id and the read end of its pipe."""
        pipe = self.send(config)
        return self.zygote.wait_started(), pipe


def frames(pipe: int) -> Iterator[tuple[int, object]]:
    """What a trial sends, until it is gone."""
    rest = b""
    while data := os.read(pipe, 65536):
        rest += data
        while len(rest) >= FRAME.size:
            length, kind = FRAME.unpack_from(rest)
            if len(rest) < FRAME.size + length:
                break
            yield kind, decode_value(rest[FRAME.size : FRAME.size + length])
            rest = rest[FRAME.size + length :]
    os.close(pipe)


@pytest.fixture(params=["fork", "spawn"])
def start_method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def trials(tmp_path: Path, start_method: str) -> Iterator[type[Trials]]:
    made: list[Trials] = []

    def make(name: str) -> Trials:
        made.append(Trials(tmp_path, name, start_method))
        made[-1].zygote.wait_ready(30)
        return made[-1]

    yield make  # type: ignore[misc]
    for one in made:
        one.close()


def test_each_trial_reports_ends_and_is_gone_before_the_next_and_sees_its_environment_on_import(trials) -> None:
    one = trials("steady")
    pids = set()
    for x in range(5):
        pid, pipe = one.start({"x": x})
        sent = list(frames(pipe))
        status = one.zygote.wait_ended()

        assert [kind for kind, _ in sent] == [FRAME_REPORT, FRAME_END]
        assert sent[0][1][1] == {"x": x, "slot": "seven"}
        assert sent[1][1]["end"] == "completed"
        assert os.waitstatus_to_exitcode(status) == 0
        assert not psutil.pid_exists(pid)
        pids.add(pid)
    assert len(pids) == 5


def test_a_start_that_comes_early_waits_until_the_trial_before_is_gone(trials) -> None:
    one = trials("waits")
    first, first_pipe = one.start({})
    sent = frames(first_pipe)
    next(sent)

    second_pipe = one.send({})
    readable, _, _ = select.select([second_pipe], [], [], 0.2)
    assert not readable

    one.zygote.kill(first)
    assert os.waitstatus_to_exitcode(one.zygote.wait_ended()) == -signal.SIGKILL
    second = one.zygote.wait_started()
    assert next(frames(second_pipe))[1][1] == {"pid": second}
    one.zygote.kill(second)
    one.zygote.wait_ended()
    list(sent)


def test_a_signal_for_a_trial_that_has_ended_does_not_hit_the_next(trials) -> None:
    one = trials("waits")
    first, pipe = one.start({})
    one.zygote.kill(first)
    one.zygote.wait_ended()
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
    one.zygote.wait_ended()


def test_what_a_trial_leaves_in_its_group_or_in_a_session_of_its_own_is_gone_when_it_has_ended(trials) -> None:
    one = trials("leaves")
    _, pipe = one.start({})
    kind, (_, left) = next(frames(pipe))
    assert kind == FRAME_REPORT

    one.zygote.wait_ended()

    assert not psutil.pid_exists(left["inner"])
    assert not psutil.pid_exists(left["outer"])


def test_a_zygote_that_is_killed_takes_its_trial_along(trials) -> None:
    one = trials("waits")
    pid, pipe = one.start({})
    trial = psutil.Process(pid)
    zygote = trial.parent()
    assert zygote is not None

    zygote.kill()

    with pytest.raises(ZygoteDied):
        one.zygote.wait_ended()
    eventually(lambda: not lives(trial), 15)
    os.close(pipe)


@pytest.mark.parametrize("_", range(2))
def test_a_zygote_that_is_killed_by_the_first_line_of_its_trial_has_said_whom_it_started(trials, _: int) -> None:
    runs = trials("kills_its_zygote")
    zygote = psutil.Process(runs.zygote._process.pid)
    for process in (zygote, *zygote.children()):
        # On one processor the trial runs as soon as it is told to, and the zygote only then goes on.
        process.cpu_affinity([min(os.sched_getaffinity(0))])

    pid, pipe = runs.start({})

    with pytest.raises(ZygoteDied):
        runs.zygote.wait_ended()
    assert not psutil.pid_exists(pid)
    os.close(pipe)


def test_code_that_changes_makes_a_zygote_stale(trials, tmp_path: Path, start_method: str) -> None:
    one = trials("steady")
    assert one.zygote.is_current()

    os.utime(tmp_path / "job_code.py", ns=(1, 1))

    # One that imports nothing itself can't be stale.
    assert one.zygote.is_current() == (start_method == "spawn")


def test_a_trainable_that_is_not_there_is_named_with_the_file(tmp_path: Path) -> None:
    one = Trials(tmp_path, "misspelt", "fork")

    with pytest.raises(ImportFailed, match=r"job_code\.py does not define the function 'misspelt'"):
        one.zygote.wait_ready(30)
    one.close()
