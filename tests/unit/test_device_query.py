"""The driver is asked by a process of its own: an answer, or none within a known time, whatever becomes of that process."""

from __future__ import annotations

import logging
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from waiting import eventually, lives

from mqtune.worker import devices as device_query
from mqtune.worker.devices import COMMAND, DriverQuery

#: Answers with what each device's number says, and notes each process that there was.
HONEST = """
    for line in sys.stdin:
        devices = json.loads(line)
        say({"used": {d: int(d) * 1000 for d in devices if d.isdecimal()},
             "unknown": {d: "no such device" for d in devices if not d.isdecimal()}})
"""
#: As many as were built.
Build = Callable[[str], DriverQuery]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where each process that was started writes its number."""
    return tmp_path / "started"


@pytest.fixture
def build(tmp_path: Path, notes: Path) -> Iterator[Build]:
    """Returns a query whose process does what a script says."""
    built: list[DriverQuery] = []

    def make(body: str) -> DriverQuery:
        script = tmp_path / "driver.py"
        script.write_text(
            "import json, os, sys, time\n"
            f"open({str(notes)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
            "def say(answer):\n    print(json.dumps(answer), flush=True)\n" + textwrap.dedent(body)
        )
        built.append(DriverQuery([sys.executable, str(script)]))
        return built[-1]

    yield make
    for query in built:
        query.close()


def processes(notes: Path) -> list[int]:
    return [int(line) for line in notes.read_text().split()] if notes.exists() else []


def lives_still(pid: int) -> bool:
    try:
        return lives(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == device_query.__name__]


def test_one_process_answers_all_questions(build: Build, notes: Path) -> None:
    query = build(HONEST)
    assert processes(notes) == [], "nobody has asked"

    assert query.used(["1", "3"]) == {"1": 1000, "3": 3000}
    assert query.used(["2"]) == {"2": 2000}

    assert len(processes(notes)) == 1


def test_a_device_that_can_not_say_is_left_out_and_told_of_once(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    query = build(HONEST)

    for _ in range(3):
        assert query.used(["GPU-5", "1"]) == {"1": 1000}

    (warning,) = warnings(caplog)
    assert warning == "how full device GPU-5 is can't be asked (no such device); nothing waits for its memory"


def test_a_machine_without_a_driver_is_asked_once(build: Build, notes: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = build("for line in sys.stdin: say({'error': 'no libnvidia-ml.so.1', 'final': True}); break")

    for _ in range(3):
        assert query.used(["0"]) == {}

    assert len(processes(notes)) == 1
    (warning,) = warnings(caplog)
    assert "no libnvidia-ml.so.1" in warning
    assert "nothing waits for their memory" in warning


def test_a_driver_that_does_not_work_now_is_asked_again_later(
    build: Build, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_query, "PAUSE_S", 0.05)
    query = build(
        f"if len(open({str(notes)!r}).read().split()) == 1:\n"
        "    sys.stdin.readline()\n"
        "    say({'error': 'version mismatch', 'final': False})\n"
        "    sys.exit()\n" + textwrap.dedent(HONEST)
    )

    assert query.used(["1"]) == {}
    assert len(processes(notes)) == 1
    eventually(lambda: query.used(["1"]) == {"1": 1000})
    assert len(processes(notes)) == 2


def test_after_a_fault_nobody_asks_for_a_while(build: Build, notes: Path) -> None:
    query = build("sys.stdin.readline(); sys.exit(9)")

    for _ in range(3):
        assert query.used(["1"]) == {}

    assert len(processes(notes)) == 1


def test_a_process_that_was_killed_between_two_questions_is_replaced(build: Build, notes: Path) -> None:
    query = build(HONEST)
    query.used(["1"])
    (pid,) = processes(notes)
    psutil.Process(pid).kill()
    eventually(lambda: not lives_still(pid))

    assert query.used(["1"]) == {"1": 1000}
    assert len(processes(notes)) == 2


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("time.sleep(600)", id="deaf"),
        pytest.param("sys.stdin.readline(); sys.stdout.write('{'); sys.stdout.flush(); time.sleep(600)", id="half"),
        pytest.param("sys.stdin.readline(); os.close(1); time.sleep(600)", id="mute"),
        pytest.param("sys.stdin.readline(); print('#', flush=True); time.sleep(600)", id="babbling"),
    ],
)
def test_a_process_that_gives_no_answer_is_killed(
    build: Build, notes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, body: str
) -> None:
    monkeypatch.setattr(device_query, "ANSWER_S", 1.0)
    query = build(body)

    assert query.used(["0"]) == {}

    (pid,) = processes(notes) or [0]
    assert not pid or not lives_still(pid)
    assert len(warnings(caplog)) == 1


def test_a_command_that_is_not_there_is_no_answer(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    query = DriverQuery([str(tmp_path / "nothing")])

    assert query.used(["0"]) == {}

    assert "FileNotFoundError" in warnings(caplog)[0]
    query.close()


def test_closing_ends_the_process_and_whoever_waits_for_it(build: Build, notes: Path) -> None:
    query = build("time.sleep(600)")
    answers: list[dict[str, int]] = []
    asking = threading.Thread(target=lambda: answers.append(query.used(["0"])), daemon=True)
    asking.start()
    (pid,) = eventually(lambda: processes(notes))

    query.close()
    asking.join(5)

    assert answers == [{}]
    assert not lives_still(pid)
    assert query.used(["0"]) == {}
    assert processes(notes) == [pid]


def test_the_process_ends_with_its_worker(build: Build, tmp_path: Path, notes: Path) -> None:
    build(HONEST)
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os, signal, sys\n"
        "from mqtune.worker.devices import DriverQuery\n"
        f"assert DriverQuery([sys.executable, {str(tmp_path / 'driver.py')!r}]).used(['1']) == {{'1': 1000}}\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    subprocess.run([sys.executable, str(worker)], timeout=30, check=False)

    (pid,) = processes(notes)
    eventually(lambda: not lives_still(pid))


def test_the_real_process_says_what_is_wrong_where_there_is_no_driver(caplog: pytest.LogCaptureFixture) -> None:
    library = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1')"
    if subprocess.run([sys.executable, "-c", library], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        pytest.skip("this machine has NVIDIA's driver")
    query = DriverQuery(COMMAND)

    with caplog.at_level(logging.WARNING):
        assert query.used(["0"]) == {}

    assert "libnvidia-ml.so.1" in warnings(caplog)[0]
    query.close()


def test_the_real_process_says_how_full_a_gpu_is() -> None:
    seen = subprocess.run(
        ["sh", "-c", "nvidia-smi --query-gpu=uuid,memory.used --format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=False,
    )
    if seen.returncode or not seen.stdout.strip():
        pytest.skip("this machine has no NVIDIA GPU")
    uuid, mebibytes = seen.stdout.splitlines()[0].split(", ")
    query = DriverQuery(COMMAND)

    used = query.used(["0", uuid, uuid[:12]])

    query.close()
    assert set(used) == {"0", uuid, uuid[:12]}
    assert used["0"] == pytest.approx(int(mebibytes) << 20, abs=1 << 30)
