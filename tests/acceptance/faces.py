"""Celery's own command on the app in workers/, as an operator types it in the repository's root."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

from click.testing import CliRunner
from running import HERE
from started import JOIN_S, started
from waiting import eventually

from mqtune.cli import group
from mqtune.core.errors import MqtuneError
from mqtune.journal import Fleet, connect

ROOT: Final = Path(__file__).parents[2]


def celery(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("celery")), "-A", "workers.gpu", *arguments]


def settings(broker: str, folder: Path, **more: str) -> dict[str, str]:
    """The variables of a worker without GPUs whose trainables are these tests' own."""
    return {
        "MQTUNE_BROKER": broker,
        "MQTUNE_GPUS": "0",
        "MQTUNE_SLOTS": "2",
        "MQTUNE_CODE_ROOT": str(HERE),
        "MQTUNE_LOG_ROOT": str(folder),
        **more,
    }


#: A program that is told to end afterwards.
running = partial(started, cwd=ROOT)


def wait_until_joined(broker: str, name: str) -> None:
    with contextlib.closing(connect(broker)) as client:
        fleet = Fleet(client, patience_s=5)
        eventually(lambda: any(info.name.startswith(f"{name}@") for info in fleet.workers()), JOIN_S)


def run(broker: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MQTUNE_", "CELERY_"))}
    return subprocess.run(
        celery(*arguments),
        env={**environment, "MQTUNE_BROKER": broker},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def said(*arguments: str, code: int = 0, given: str | None = None, **environment: str) -> str:
    """Run mqtune's command, which must end with this exit code. Return its output, or the text of mqtune's error."""
    done = CliRunner(env=environment).invoke(group, arguments, input=given)
    is_refused = isinstance(done.exception, MqtuneError)
    assert (1 if is_refused else done.exit_code) == code, (done.output, done.exception)
    return str(done.exception) if is_refused else done.output
