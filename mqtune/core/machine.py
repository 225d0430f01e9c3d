"""Identity of this machine and its processes, and the folders of experiments.

A host name does not identify a machine: images and containers with the host's network may share one.
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

#: Exit code after Ctrl-C, as in shells.
INTERRUPTED_CODE: Final = 130
#: Files that identify a machine and its boot (Linux). Machines made from one image may share the second.
_IDS: Final = ("/proc/sys/kernel/random/boot_id", "/etc/machine-id")
#: Identifies the container of a process number.
_PID_NAMESPACE: Final = "/proc/self/ns/pid"
#: Description of a process: its number, host, machine (see ``_machine_hash``) and start.
_DESCRIPTION: Final = re.compile(r"process (?P<pid>\d{1,9}) on .* \((?P<machine>[0-9a-f]+)\.(?P<began>\d+)\)")


def describe_process(pid: int | None = None) -> str:
    """Describe a process of this machine so that other processes can check whether it lives."""
    pid = os.getpid() if pid is None else pid
    return f"process {pid} on {socket.gethostname()} ({process_mark(pid)})"


def process_mark(pid: int | None = None) -> str:
    """Return a hash of this machine and a process's start as text, by default this process's.

    With the process number it is unique among the processes of all machines.
    """
    return f"{_machine_hash()}.{started_at(os.getpid() if pid is None else pid)}"


def is_here(description: str) -> bool:
    """Whether a described process belongs to this boot of this machine and this container."""
    matched = _DESCRIPTION.fullmatch(description)
    return matched is not None and matched["machine"] == _machine_hash()


def is_gone(description: str) -> bool:
    """Whether a described process has ended. False if that can't be seen from here."""
    matched = _DESCRIPTION.fullmatch(description)
    if matched is None or matched["machine"] != _machine_hash():
        return False
    pid = int(matched["pid"])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    # Its number may have been reused.
    return started_at(pid) != int(matched["began"])


@cache
def _machine_hash() -> str:
    """Return a hash of this boot of this machine and, on Linux, this container.

    Process numbers are comparable within it.
    """
    parts = []
    for path in _IDS:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            parts.append(file.read())
    with contextlib.suppress(OSError):
        parts.append(os.readlink(_PID_NAMESPACE).encode())
    if not parts:
        # Imported here, because it is rarely needed and costs memory.
        import uuid  # noqa: PLC0415

        parts = [socket.gethostname().encode(), hex(uuid.getnode()).encode()]
    return source_hash(b"\0".join(parts)).hex()


def started_at(pid: int) -> int:
    """Return a process's start, in kernel ticks since boot. Return 0 if it is gone or dead."""
    state, _, began = process_stat(pid)
    return 0 if state in ("Z", "X") else began


def process_stat(pid: int) -> tuple[str, int, int]:
    """Return a process's state letter, parent's number, and start in kernel ticks since boot.

    Return an empty text and zeros if there is no such process. A process number with the same start is the same
    process.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The program's name stands before the last bracket, and may contain anything.
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1]), int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", 0, 0


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL, or its number.

    Python has no names for most real-time signals.
    """
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


#: Subfolder of an experiment for its own server.
SERVER_FOLDER: Final = "redis"
#: File in an experiment's folder that marks it as archived: no server has its data until it resumes.
ARCHIVED: Final = "archived"

#: Subfolder of an experiment for folder checkpoints, if it has no store and runs on this machine only.
CHECKPOINTS: Final = "checkpoints"
#: Subfolder of an experiment for dict checkpoints, which may be read after Redis is gone.
DICTS: Final = "dict-checkpoints"

#: Description of the driver of a simulated experiment.
SIMULATION: Final = "a simulation"


def mqtune_home() -> Path:
    """Return ``$MQTUNE_HOME``, or ``~/mqtune``.

    Raises:
        ConfigurationError: both are unknown.
    """
    try:
        return Path(os.environ.get("MQTUNE_HOME") or Path.home() / "mqtune").expanduser().absolute()
    except RuntimeError as error:
        # For example in a container whose user has no name.
        raise ConfigurationError(
            f"there is no home folder for experiments ({error}); set MQTUNE_HOME to a folder that you may write to"
        ) from None


def open_standard_streams() -> None:
    """Open each closed standard descriptor (0, 1, 2) on the null device.

    Otherwise the next file or connection gets its number, and receives the printed text.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The new descriptor gets the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays open


def make_folder(folder: Path) -> None:
    """Make an experiment's folder if it is missing.

    Raises:
        ConfigurationError: the folder can't be made, or is not writable.
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

    Links and pipes are refused: another user of the folder could put one in the file's place.

    Raises:
        OSError: the file can't be opened, or is a link, a pipe or a device.
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
        OSError: the file can't be read.
    """
    with open(open_regular(path), "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - size))
        return file.read().decode(errors="replace")


def replace_file(path: Path, parts: Iterable[bytes], *, mode: int = 0o666) -> None:
    """Write a file atomically. Readers see the old or the new one. A failure keeps the old one.

    The umask applies to *mode*.

    Raises:
        OSError: the folder can't be written.
    """
    aside = path.with_name(f"{path.name}.new")
    # An earlier crash may have left one with other permissions.
    aside.unlink(missing_ok=True)
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.writelines(parts)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
