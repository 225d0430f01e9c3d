"""A real ``mqtune worker`` that a test has altered before it starts, and trials for it that go on until they are let go.

As a program, ``altered_worker.py SOURCE worker …``, it runs the Python source and then the command.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import mqtune

#: What a trial asks for, or what says that by its config.
Resources = mqtune.Resources | Callable[[dict[str, Any]], mqtune.Resources]
HERE: Final = Path(__file__).parent
#: Where trials look whether they may end; a worker's environment says it.
FOLDER: Final = "ALTERED_WORKER_FOLDER"
SPACE: Final = {"number": mqtune.randint(0, 1000)}


def held(config: dict[str, Any]) -> None:
    """Report the number of its device, write down that of its process, and end when there is a file with this trial's number."""
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    loss = float(device) if device.isdecimal() else -1.0
    Path(os.environ[FOLDER], f"process-{config['number']}").write_text(str(os.getpid()))
    mqtune.report({"loss": loss})
    gate = Path(os.environ[FOLDER], f"end-{config['number']}")
    while not gate.exists():
        time.sleep(0.01)
    mqtune.report({"loss": loss})


def breaks(config: dict[str, Any]) -> None:
    """Fail at once with the text in the file of its device's number, if there is one; else report a moment later."""
    error = Path(os.environ[FOLDER], f"broken-{os.environ['CUDA_VISIBLE_DEVICES']}")
    if error.exists():
        raise RuntimeError(error.read_text())
    time.sleep(0.3)
    mqtune.report({"loss": float(os.environ["CUDA_VISIBLE_DEVICES"])})


@contextlib.contextmanager
def tuner_of(
    broker: str, name: str, resources: Resources, trainable: Callable[[dict[str, Any]], None] = held
) -> Iterator[mqtune.Tuner]:
    """A tuner whose trials a test adds itself; it is closed afterwards."""
    from mqtune.testing.backends.world import Nothing

    tuner = mqtune.Tuner(
        trainable,
        SPACE,
        metric="loss",
        mode="min",
        backend=broker,
        run=mqtune.RunOptions(progress=False),
        name=name,
        searcher=Nothing(),
        resources=resources,
    )
    with contextlib.closing(tuner):
        yield tuner


def let_go(folder: Path, *numbers: int) -> None:
    for number in numbers:
        (folder / f"end-{number}").touch()


@contextlib.contextmanager
def altered_worker(
    broker: str, folder: Path, alteration: str, *options: str, name: str = "altered", goes_within_s: float = 20
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in the fleet of a broker, whose log is ``worker.log``, or has its name where it has another one; it is gone afterwards."""
    # The rest needs nothing of it, and runs in each trial too.
    from started import started, wait_for_worker

    command = [sys.executable, str(Path(__file__)), alteration, "worker", "--name", name, "--code-root", str(HERE)]
    log = folder / ("worker.log" if name == "altered" else f"{name}.log")
    settings = {"MQTUNE_BROKER": broker, "MQTUNE_LOG_ROOT": str(folder), "PYTHONFAULTHANDLER": "1", FOLDER: str(folder)}
    with started([*command, *options], settings, log, within_s=goes_within_s) as process:
        try:
            wait_for_worker(broker, process, log)
            yield process
        except BaseException:
            print(log.read_text()[-10_000:])
            raise


if __name__ == "__main__":
    # Not on the path of a worker.
    sys.path.remove(str(HERE))
    from mqtune.core.timing import Timing

    #: An alteration may set it.
    timing = Timing()
    exec(sys.argv.pop(1))
    from mqtune.cli import main

    main(timing)
