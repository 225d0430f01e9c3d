"""A submitted script runs as Python would run it, and keeps its secrets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mqtune.services.submissions.script_process import AGAIN_CODE, start_message

COMMAND = [sys.executable, "-P", "-m", "mqtune.services.submissions.script_process"]


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
def test_its_exit_code_and_traceback_say_how_it_ended(tmp_path: Path, source: str, code: int, said: str):
    done = run(tmp_path / "own.py", source)
    assert done.returncode == code
    assert done.stderr.endswith(said)
    assert "script_process" not in done.stderr
