"""Resources that a fork can't share, compared before and after an import.

A fork has one thread, and shares its parent's open files. So if an import has started a thread, opened a file or used a
GPU, trials that are forked afterwards are disturbed or hang. Some libraries handle forks. Their names here come from
tests with forks, so a new version of a library needs a new test.

Linux lists everything relevant in ``/proc``. Elsewhere only Python's threads, signal handlers and the working directory
are known.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import os
import re
import signal
import socket
import stat
import struct
import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal, NamedTuple

from mqtune.core.machine import signal_name
from mqtune.trainable.process.descendants import children_of

#: Prefixes of GPU files: NVIDIA's devices, AMD's compute interface, render nodes.
DEVICE_FILES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
#: Devices without state, which any number of processes may share.
_STATELESS_DEVICES: Final = frozenset({"/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"})
#: Shared memory of multiprocessing, in a file of its own. Processes share it by intent.
_SHARED_MEMORY: Final = re.compile(r"/dev/shm/|/memfd:|.*/pym-\d+-\w+ \(deleted\)$")  # noqa: S108 - none is made here
#: Libraries that end, restart or reset their threads at a fork.
_FORK_SAFE_LIBRARY: Final = re.compile(
    r"openblas|^libarrow|^libtorch_cpu|^tokenizers|^_duckdb|^_catboost|^cv2", re.IGNORECASE
)
#: Names of housekeeping threads. A forked child never waits for them.
_FORK_SAFE_THREADS: Final = frozenset({"jemalloc_bg_thd", "polars-ooc-clea"})
#: GNU's OpenMP, of which PyTorch, scikit-learn and XGBoost have a copy each, and its number to end threads
#: (omp_pause_hard).
_GNU_OPENMP: Final = "libgomp"
_PAUSE_HARD: Final = 2
#: Numba refuses to work in a child of a process that has used this pool.
_NUMBA_POOL: Final = "numba.np.ufunc.omppool"
#: Common libraries, in which the threads of any library wait.
_COMMON_LIBRARY: Final = re.compile(
    r"/(libc\.so|libc-|libm[.-]|libpthread|libgcc_s|ld-linux|ld-musl|libstdc\+\+|libpython)"
)
#: An installed package, in a path.
_PACKAGE: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+?)(?:\.libs)?[/\\]")
#: Bytes of a waiting thread's stack that are searched for its owner.
_STACK_BYTES: Final = 65_536
_WORD: Final = struct.Struct("<Q" if sys.byteorder == "little" else ">Q")
#: Longest wait for ending threads, in seconds.
_ENDING_S: Final = 0.1
#: Seconds until a busy thread counts as one of no library. Threads of linear algebra stay busy for some 30 ms.
_BUSY_S: Final = 2.0
_POLL_S: Final = 0.002
_MAX_NAMED: Final = 3

TraceKind = Literal[
    "thread",
    "native thread",
    "child",
    "file",
    "socket",
    "pipe",
    "device",
    "listener",
    "handler",
    "folder",
    "library",
]
#: For each kind the first words of its description, and the remedy.
_WORDS: Final[Mapping[TraceKind, tuple[str, str]]] = {
    "thread": ("started the thread", "start it inside the trainable"),
    "native thread": ("started threads of", "call it inside the trainable"),
    "child": ("started the process", "start it inside the trainable"),
    "file": ("opened", "open it inside the trainable"),
    "socket": ("opened", "open it inside the trainable"),
    "pipe": ("opened", "open it inside the trainable"),
    "device": ("opened", "use the device inside the trainable"),
    "listener": ("begun to listen on", "listen inside the trainable, on a free port"),
    "handler": ("set a handler of", "set it inside the trainable"),
    "folder": ("changed the working directory to", "use absolute paths, or change it inside the trainable"),
    "library": ("loaded", "call it inside the trainable"),
}
#: Signals whose handlers count. PyTorch's data loader sets SIGCHLD's, which works in a fork.
_SIGNALS: Final = tuple(sorted(map(int, signal.valid_signals() - {signal.SIGCHLD})))


class Trace(NamedTuple):
    """A resource that an import has left in its process and that a fork can't share.

    Attributes:
        subject: its name for users: a path, an address, or the name of a thread, process, library or signal.
        way_out: the remedy, as a short clause.
    """

    kind: TraceKind
    subject: str
    way_out: str


class OpenFile(NamedTuple):
    """An open descriptor: its number, its path (Linux only), and the file's device and inode."""

    fd: int
    path: str
    device: int
    inode: int


class Footprint(NamedTuple):
    """The resources of a process that matter to a fork.

    Attributes:
        threads: native id and name of each Python thread but the main one.
        native_threads: ids of the other threads.
        children: process ids.
        devices: paths of open or mapped GPU files.
        handlers: Python's handler of each signal.
        folder: working directory; empty if it was deleted.
        libraries: loaded modules that refuse to work in a fork.
    """

    threads: frozenset[tuple[int, str]]
    native_threads: frozenset[int]
    children: frozenset[int]
    files: frozenset[OpenFile]
    devices: frozenset[str]
    handlers: Mapping[int, object]
    folder: str
    libraries: frozenset[str]


def take() -> Footprint:
    """Return this process's footprint, after ending the threads that libraries restart on demand."""
    mapped = memory_map()
    _end_openmp(mapped)
    _end_tqdm_monitors()
    files = _open_files()
    threads = _python_threads()
    tracker_pid, tracker_fd = _shared_tracker()
    return Footprint(
        threads=threads,
        # The main thread's id is the process's, even if Python still has the parent's.
        native_threads=frozenset(_native_ids() - {os.getpid()} - {native_id for native_id, _ in threads}),
        children=frozenset(children_of(os.getpid())) - {tracker_pid},
        files=frozenset(file for file in files if file.fd != tracker_fd),
        devices=frozenset(_devices(files, mapped)),
        handlers={number: signal.getsignal(number) for number in _SIGNALS},
        folder=_working_directory(),
        libraries=frozenset({_NUMBA_POOL} & sys.modules.keys()),
    )


def traces(before: Footprint, after: Footprint) -> list[Trace]:
    """Return the traces of an import. A fork after an import without traces is safe.

    *after* must be a new footprint of this process, as new threads and descriptors are inspected now. The environment,
    exit handlers and ``sys.path`` do not count.
    """
    return list(dict.fromkeys(_differences(before, after)))


def describe(traces: Iterable[Trace]) -> str:
    """Return traces as a line for users, as words after "it has". It is empty without traces.

    It names the first three.
    """
    named = [f"{_WORDS[kind][0]} {subject}{way_out and f' ({way_out})'}" for kind, subject, way_out in traces]
    if (more := len(named) - _MAX_NAMED) > 0:
        named[_MAX_NAMED:] = [f"left {more} more"]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def exit_handlers() -> int:
    """Return the number of registered exit handlers."""
    return atexit._ncallbacks()


def end_openmp_threads() -> None:
    """End the OpenMP threads that this thread has used. They restart when needed.

    A forked child would wait for them forever, as it has none of them.
    """
    _end_openmp(memory_map())


def memory_map() -> str:
    """Return the mappings of this process's memory, one in each line.

    The text is empty if the system does not list them.
    """
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as maps:
            return maps.read()
    except OSError:
        return ""


def _differences(before: Footprint, after: Footprint) -> Iterator[Trace]:
    threads = dict(after.threads - before.threads)
    native = _unsafe_native_threads(after, after.native_threads - before.native_threads)
    _wait_for_end({*threads, *native})
    lasting = {native_id for native_id, _ in _python_threads()}
    yield from (_make_trace("thread", name) for native_id, name in sorted(threads.items()) if native_id in lasting)
    yield from (_make_trace("native thread", native[native_id]) for native_id in sorted(native.keys() & _native_ids()))
    yield from (_make_trace("library", name) for name in sorted(after.libraries - before.libraries))
    yield from (_make_trace("child", _name_of_process(pid)) for pid in sorted(after.children - before.children))
    yield from (_make_trace("device", path) for path in sorted(after.devices - before.devices))
    yield from _unsafe_files(after.files - before.files)
    changed = [number for number, handler in after.handlers.items() if handler is not before.handlers[number]]
    yield from (_make_trace("handler", signal_name(number)) for number in changed)
    if after.folder != before.folder:
        yield _make_trace("folder", after.folder or "a deleted one")


def _make_trace(kind: TraceKind, subject: str, way_out: str = "") -> Trace:
    # A file name that is not Unicode can't be sent.
    return Trace(kind, subject.encode(errors="backslashreplace").decode(), way_out or _WORDS[kind][1])


def _name_of_process(pid: int) -> str:
    return _read_text(f"/proc/{pid}/comm") or str(pid)


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _shared_tracker() -> tuple[int | None, int | None]:
    """Return the process id and the descriptor of multiprocessing's resource tracker.

    Forks share it by intent. Both are None without a tracker.
    """
    module = sys.modules.get("multiprocessing.resource_tracker")
    tracker = getattr(module, "_resource_tracker", None)
    return getattr(tracker, "_pid", None), getattr(tracker, "_fd", None)


# Threads


def _python_threads() -> frozenset[tuple[int, str]]:
    main = threading.main_thread()
    return frozenset((thread.native_id or 0, thread.name) for thread in threading.enumerate() if thread is not main)


def _native_ids() -> set[int]:
    """Return the ids of all threads of this process. Empty if the system does not list them."""
    try:
        return set(map(int, os.listdir("/proc/self/task")))
    except OSError:
        return set()


def _end_openmp(mapped: str) -> None:
    for path in _mapped_paths(mapped, _GNU_OPENMP):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW).omp_pause_resource_all(_PAUSE_HARD)


def _end_tqdm_monitors() -> None:
    for thread in threading.enumerate():
        if type(thread).__module__ == "tqdm._monitor":
            with contextlib.suppress(Exception):
                thread.exit()  # type: ignore[attr-defined]


def _wait_for_end(native_ids: Collection[int]) -> None:
    deadline = time.monotonic() + _ENDING_S
    while time.monotonic() < deadline:
        alive = _native_ids() | {native_id for native_id, _ in _python_threads()}
        if alive.isdisjoint(native_ids):
            return
        time.sleep(_POLL_S)


def _unsafe_native_threads(after: Footprint, new: Collection[int]) -> dict[int, str]:
    """Return the new native threads that don't survive a fork: by id, the name of the library.

    If the library is unknown, it is the thread's own name.
    """
    if not new:
        return {}
    owners, unsafe, unknown = _Owners(), dict[int, str](), dict[int, str]()
    for native_id in new:
        name = _read_text(f"/proc/self/task/{native_id}/comm")
        if name in _FORK_SAFE_THREADS:
            continue
        try:
            owner = owners.owner_of(native_id)
        except OSError:
            unknown[native_id] = name
            continue
        if owner is None or not _FORK_SAFE_LIBRARY.search(os.path.basename(owner)):
            unsafe[native_id] = _name_of_library(owner) if owner else name
    if unknown and not _are_linear_algebra(after.native_threads, set(unknown.values())):
        unsafe |= unknown
    return unsafe


def _are_linear_algebra(native_ids: Iterable[int], names: Collection[str]) -> bool:
    """Whether all native threads may belong to OpenBLAS, by their names and their number.

    This is for systems that hide the stacks of threads. Each copy of OpenBLAS starts a thread for each core but one.
    The threads have the program's name.
    """
    program = _read_text("/proc/self/comm")
    nameless = sum(_read_text(f"/proc/self/task/{native_id}/comm") == program for native_id in native_ids)
    copies = _mapped_paths(memory_map().lower(), "openblas")
    return set(names) == {program} and nameless <= len(copies) * ((os.cpu_count() or 1) - 1)


def _name_of_library(path: str) -> str:
    package = _PACKAGE.search(path)
    return package[1] if package else os.path.basename(path).partition(".")[0]


class _Owners:
    """Finds the libraries that have started native threads.

    The stack of a waiting thread has return addresses into its library.
    """

    def __init__(self) -> None:
        self._lines = _lines_of(memory_map())
        self._starts = [int(line.partition("-")[0], 16) for line in self._lines]

    def owner_of(self, native_id: int) -> str | None:
        """Return the path of the library that has started a thread. Return None if it is unknown.

        Raises:
            OSError: the system hides the stacks of threads.
        """
        deadline = time.monotonic() + _BUSY_S
        while True:
            try:
                with open(f"/proc/self/task/{native_id}/syscall", encoding="ascii") as file:
                    fields = file.read().split()
            except ProcessLookupError:
                return None
            # A busy thread shows no stack.
            if len(fields) > 1:
                return self._library_on(int(fields[-2], 16))
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)

    def _library_on(self, stack: int) -> str | None:
        line = self._mapping_at(stack)
        if line is None:
            return None
        end = int(line.split(maxsplit=1)[0].partition("-")[2], 16)
        size = min(end - stack, _STACK_BYTES) // _WORD.size * _WORD.size
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.pread(memory, size, stack)
        finally:
            os.close(memory)
        for (address,) in _WORD.iter_unpack(content[: len(content) // _WORD.size * _WORD.size]):
            line = self._mapping_at(address)
            if line is not None and "x" in line.split(maxsplit=2)[1]:
                path = _path_of_mapping(line)
                if path.startswith("/") and not _COMMON_LIBRARY.search(path):
                    return path
        return None

    def _mapping_at(self, address: int) -> str | None:
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        line = self._lines[index]
        return line if address < int(line.split(maxsplit=1)[0].partition("-")[2], 16) else None


# Files


def _lines_of(mapped: str) -> list[str]:
    # A path may have any other character that ends a line of text.
    return mapped.split("\n")[:-1]


def _path_of_mapping(line: str) -> str:
    """Return the path in a line of a memory map. Empty for memory without a file."""
    fields = line.split(maxsplit=5)
    return fields[5] if len(fields) > 5 else ""  # noqa: PLR2004 - the sixth field


def _mapped_paths(mapped: str, *parts: str) -> set[str]:
    wanted = [part for part in parts if part in mapped]
    return {_path_of_mapping(line) for part in wanted for line in _lines_of(mapped) if part in line}


def _devices(files: Iterable[OpenFile], mapped: str) -> set[str]:
    paths = {file.path for file in files} | _mapped_paths(mapped, *DEVICE_FILES)
    return {path for path in paths if path.startswith(DEVICE_FILES)}


def _open_files() -> list[OpenFile]:
    """Return the open descriptors. The list is empty if the system does not list them."""
    open_files = []
    with contextlib.suppress(OSError):
        for fd in map(int, os.listdir("/proc/self/fd")):
            # The list's own descriptor is closed already.
            with contextlib.suppress(OSError):
                status = os.fstat(fd)
                open_files.append(OpenFile(fd, os.readlink(f"/proc/self/fd/{fd}"), status.st_dev, status.st_ino))
    return open_files


def _unsafe_files(new: Collection[OpenFile]) -> Iterator[Trace]:
    if not new:
        return
    # Counted by path, and by whether other processes see writes ("s") or not ("p").
    mappings = Counter((_path_of_mapping(line), line.split(maxsplit=2)[1][-1]) for line in _lines_of(memory_map()))
    for fd, path, *_ in sorted(new):
        try:
            mode, flags = os.fstat(fd).st_mode, fcntl.fcntl(fd, fcntl.F_GETFL)
        except OSError:
            # It was closed meanwhile.
            continue
        if path.startswith(DEVICE_FILES) or path in _STATELESS_DEVICES or stat.S_ISDIR(mode):
            continue
        if stat.S_ISREG(mode):
            if (way_out := _way_out_of_file(path, flags, mappings)) is not None:
                yield _make_trace("file", path, way_out)
        elif stat.S_ISSOCK(mode):
            yield _describe_socket(fd)
        elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            yield _make_trace("device", path)
        else:
            # A pipe, or a file without a type, such as the epoll of an event loop: "anon_inode:[eventpoll]".
            yield _make_trace("pipe", "a pipe" if stat.S_ISFIFO(mode) else path.partition(":")[2].strip("[]") or path)


def _way_out_of_file(path: str, flags: int, mappings: Counter[tuple[str, str]]) -> str | None:
    """Return the remedy for an open regular file, or None if processes can share its descriptor.

    A memory mapping has its own read-only descriptor, whose position nothing uses. So each entry of *mappings* makes
    one such descriptor safe, and is then removed.
    """
    access = flags & os.O_ACCMODE
    if access == os.O_WRONLY and flags & os.O_APPEND:
        return None
    if access == os.O_RDONLY:
        for way in ("s", "p"):
            if mappings[path, way]:
                mappings[path, way] -= 1
                return None
        return "open it inside the trainable, or read all of it and close it"
    if not mappings[path, "s"]:
        return "open it inside the trainable"
    return None if _SHARED_MEMORY.match(path) else "map it read-only, or inside the trainable"


def _describe_socket(fd: int) -> Trace:
    is_blocking = os.get_blocking(fd)
    try:
        borrowed = socket.socket(fileno=fd)
    except OSError:
        return _make_trace("socket", "a socket")
    try:
        with contextlib.suppress(OSError):
            if borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return _make_trace("listener", _address_text(borrowed.getsockname()) or "a socket")
        with contextlib.suppress(OSError):
            if peer := _address_text(borrowed.getpeername()):
                return _make_trace("socket", f"a connection to {peer}")
        return _make_trace("socket", "a socket")
    finally:
        borrowed.detach()
        # If the user has set a default timeout, the new socket object has made it non-blocking.
        os.set_blocking(fd, is_blocking)


def _address_text(name: object) -> str:
    match name:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case bytes():
            return os.fsdecode(name).replace("\0", "@")
        case str():
            return name
    return ""
