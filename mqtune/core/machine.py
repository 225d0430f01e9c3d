"""This machine: which it is, whether a process that somebody names still lives, and where experiments are kept.

A host's name says neither: machines made from one image, and containers with their host's network, may all have the
same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import source_hash
from pathlib import Path
from typing import Final

from mqtune.core.errors import ConfigurationError

#: The exit code after Ctrl-C, as shells have it.
INTERRUPTED_CODE: Final = 130
#: Files that identify a machine and its boot (Linux). Machines made from one image may share the second.
_IDS: Final = ("/proc/sys/kernel/random/boot_id", "/etc/machine-id")
#: Identifies the container whose process numbers are meant.
_PID_NAMESPACE: Final = "/proc/self/ns/pid"
#: How a process describes itself: its number, its host, the place where that number is its, and when it began there.
_DESCRIPTION: Final = re.compile(r"process (?P<pid>\d{1,9}) on .* \((?P<place>[0-9a-f]+)\.(?P<began>\d+)\)")


def describe_process(pid: int | None = None) -> str:
    """Describe this process, or another one of this machine, so that others can find out whether it still lives."""
    pid = os.getpid() if pid is None else pid
    return f"process {pid} on {socket.gethostname()} ({process_mark(pid)})"


def process_mark(pid: int | None = None) -> str:
    """Return where a process is, by default this one, and when it began.

    No other process of any machine has the same place, time and number.
    """
    return f"{_place()}.{started_at(os.getpid() if pid is None else pid)}"


def is_here(description: str) -> bool:
    """Whether a process that described itself so is, or was, of this boot of this machine, and of this container."""
    found = _DESCRIPTION.fullmatch(description)
    return found is not None and found["place"] == _place()


def is_gone(description: str) -> bool:
    """Whether a process that described itself so has ended; False where that can't be seen from here."""
    found = _DESCRIPTION.fullmatch(description)
    if found is None or found["place"] != _place():
        return False
    pid = int(found["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    # Its number may have become another's.
    return started_at(pid) != int(found["began"])


@cache
def _place() -> str:
    """Return what stands for this boot of this machine and, on Linux, this container.

    Process numbers mean the same there.
    """
    parts = []
    for path in _IDS:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            parts.append(file.read())
    with contextlib.suppress(OSError):
        parts.append(os.readlink(_PID_NAMESPACE).encode())
    if not parts:
        # Another import costs each trial's process memory, and most never ask.
        import uuid  # noqa: PLC0415

        parts = [socket.gethostname().encode(), hex(uuid.getnode()).encode()]
    return source_hash(b"\0".join(parts)).hex()


def started_at(pid: int) -> int:
    """Return when a process was started, in the kernel's ticks since the boot; 0 when there is none, or it is dead."""
    state, _, began = process_stat(pid)
    return 0 if state in ("Z", "X") else began


def process_stat(pid: int) -> tuple[str, int, int]:
    """Return a process's state, its parent and its start; the same numbers mean the same process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # After the name, which may contain anything.
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0, 0


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL, or its number: Python has no names for most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


#: The folder, below an experiment's, of the server that it has of its own.
SERVER_FOLDER: Final = "redis"
#: The file, in an experiment's folder, that says that no server has it: it was archived, and has not gone on since.
ARCHIVED: Final = "archived"

#: The folder, below an experiment's, of checkpoints that are folders, where no store is given and it runs on this
#: machine alone.
CHECKPOINTS: Final = "checkpoints"
#: The folder, below an experiment's, of checkpoints that are dicts, as Redis may be gone when they are read.
DICTS: Final = "dict-checkpoints"

#: What an experiment in virtual time says that its driver is.
SIMULATION: Final = "a simulation"


def mqtune_home() -> Path:
    """Return ``$MQTUNE_HOME``, or ``~/mqtune``.

    Raises:
        ConfigurationError: neither is known.
    """
    try:
        return Path(os.environ.get("MQTUNE_HOME") or Path.home() / "mqtune").expanduser().absolute()
    except RuntimeError as error:
        # As in a container that runs as a user without a name.
        raise ConfigurationError(
            f"there is no home folder for experiments ({error}); set MQTUNE_HOME to a folder that you may write to"
        ) from None


def open_standard_streams() -> None:
    """Open each closed one of the descriptors 0, 1 and 2 on the null device.

    Otherwise the next file or connection gets its number, and receives the printed text.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays open


def make_folder(folder: Path) -> None:
    """Make an experiment's folder, unless it is there.

    Raises:
        ConfigurationError: it can't be made, or nothing can be written in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(folder, os.W_OK | os.X_OK) else "it is not writable"
    except OSError as error:
        problem = str(error)
    if problem:
        raise ConfigurationError(
            f"the experiment's folder {folder} can't be used: {problem}; set MQTUNE_HOME to a folder that you may "
            f"write to"
        )


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor.

    Whoever may write next to a file could put a link to another file in its place, or a pipe, which is never ready.

    Raises:
        OSError: it can't be opened, or is a link, a pipe or a device.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def end_of_file(path: str | os.PathLike[str], size: int) -> str:
    """Return the last *size* bytes of a regular file as text.

    Raises:
        OSError: it can't be read.
    """
    with open(open_regular(path), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read().decode(errors="replace")


def replace_file(path: Path, parts: Iterable[bytes], *, mode: int = 0o666) -> None:
    """Write a file in one step: who reads it sees the old one or the new one, and a failure leaves the old one.

    Args:
        path: the file.
        parts: its content.
        mode: its permissions; those that the process masks are left out.

    Raises:
        OSError: the folder can't be written.
    """
    aside = path.with_name(f"{path.name}.new")
    # One that a crash has left may have other permissions.
    aside.unlink(missing_ok=True)
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.writelines(parts)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
