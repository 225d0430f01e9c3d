"""A submitted script runs as Python would run it, keeps its secrets, and ends with its worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from waiting import eventually, lives

from mqtune.worker import AGAIN_CODE, start_message

COMMAND = [sys.executable, "-P", "-m", "mqtune.worker.script_process"]
#: Starts a script as a worker does, says which process that is, and waits.
HOST = """
import subprocess, sys, time
from mqtune.worker.script_process import COMMAND, start_message
process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE)
process.stdin.write(start_message(sys.argv[1], (), {}))
process.stdin.close()
print(process.pid, flush=True)
time.sleep(60)
"""


def run(script: Path, source: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script.write_text(source)
    return subprocess.run(
        COMMAND,
        input=start_message(script, arguments, environment).decode(),
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_script_is_main_has_its_arguments_imports_what_lies_beside_it_and_reads_nothing(tmp_path: Path):
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    source = """
import beside, inspect, pickle, sys
class Own: ...
def own(): ...
if __name__ == "__main__":
    print(sys.argv[1:], __file__, beside.VALUE, repr(sys.stdin.read()))
    print(type(pickle.loads(pickle.dumps(Own()))).__name__, inspect.getsource(own).strip())
"""
    done = run(tmp_path / "own.py", source, "--epochs", "5")
    assert done.stdout == f"['--epochs', '5'] {tmp_path / 'own.py'} 7 ''\nOwn def own(): ...\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_its_secrets_are_in_its_environment_and_not_in_the_one_that_others_see(tmp_path: Path):
    source = "import os\nprint(os.environ['SECRET'], b'secret-word' in open('/proc/self/environ', 'rb').read())\n"
    assert run(tmp_path / "own.py", source, SECRET="secret-word").stdout == "secret-word False\n"


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no data')", 1, "no data\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("def broken(:", 1, "SyntaxError: invalid syntax\n"),
        ("import mqtune.core.errors as e; raise e.BrokerUnavailable('away')", AGAIN_CODE, "away\n"),
        ("import mqtune.core.errors as e; raise e.BrokerRefused('wrong password')", 1, "wrong password\n"),
        ("import mqtune.core.errors as e; raise e.NameTaken('driven', left_s=4)", AGAIN_CODE, "driven\n"),
        ("import mqtune.core.errors as e; raise e.NameTaken('another one')", 1, "another one\n"),
    ],
)
def test_its_exit_code_says_how_it_ended_and_its_traceback_begins_with_it(
    tmp_path: Path, source: str, code: int, said: str
):
    done = run(tmp_path / "own.py", source)
    assert done.returncode == code
    assert done.stderr.endswith(said)
    assert "script_process" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends a process with its parent on Linux alone")
def test_it_ends_with_its_worker_however_that_ends(tmp_path: Path):
    (tmp_path / "waits.py").write_text("import time\ntime.sleep(60)\n")
    host = subprocess.Popen([sys.executable, "-c", HOST, str(tmp_path / "waits.py")], stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout is not None
        script = psutil.Process(int(host.stdout.readline()))
        eventually(lambda: os.readlink(f"/proc/{script.pid}/fd/0") == os.devnull)
        host.send_signal(signal.SIGKILL)
        eventually(lambda: not lives(script))
    finally:
        host.kill()
        host.communicate()
