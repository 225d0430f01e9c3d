"""Programs that tests start, and that are gone afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from waiting import eventually

from mqtune.journal import Fleet, connect

#: A cold start of a worker takes a second or two, and more on a machine that runs other tests.
JOIN_S = 30.0


@contextlib.contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, cwd: Path | None = None, within_s: float = 20
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a session of its own, which is told to end afterwards, and killed if it has not within some seconds."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, cwd=cwd, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=within_s)
        if process.poll() is None:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def wait_for_worker(broker: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a worker is in the fleet; it must not end before."""
    with contextlib.closing(connect(broker)) as client:
        fleet = Fleet(client, patience_s=5)

        def joined() -> bool:
            assert process.poll() is None, log.read_text()
            return any(info.pid == process.pid for info in fleet.workers())

        eventually(joined, JOIN_S)
