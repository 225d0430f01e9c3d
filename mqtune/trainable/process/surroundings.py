"""What a trial's function may have changed or left in its process: what can be put back is, and for the rest the process takes no further trial.

Imported modules stay, and with them what their import has set: it is how things are from then on. Python's own objects are not looked
at: globals, caches, ``sys.path``, filters of warnings, handlers of loggers. To keep such things, the imported libraries or a data set in
a global, is what a process is used again for.
"""

from __future__ import annotations

import _thread
import builtins
import contextlib
import gc
import locale
import os
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec
from time import monotonic, sleep
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mqtune.trainable import reporting
from mqtune.trainable.process.protocol import KEPT_BYTES, STOP_SIGNAL
from mqtune.trainable.process.signals import handler_of

if TYPE_CHECKING:
    from types import FrameType

    TraceFunction = Callable[[FrameType, str, object], "TraceFunction | None"]
    ProfileFunction = Callable[[FrameType, str, object], object]

#: The stop signal has a handler for each trial; SIGCHLD has one of torch's once that has loaded data in processes, which disturbs
#: nobody; the last two can't have any.
_UNWATCHED: Final = frozenset({STOP_SIGNAL, signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP})
#: Those above have no use that Python programs know.
_FIRST_REALTIME: Final = 32
_SIGNALS: Final = {
    signal.Signals(number).name: int(number)
    for number in sorted(signal.valid_signals() - _UNWATCHED)
    if number < _FIRST_REALTIME
}
_TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
#: The modules whose functions are compared: those that any trial may count on.
_MODULES: Final = (builtins, os, time, signal, threading, reporting)
_LIMITS: Final = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
_STREAMS: Final = ("stdin", "stdout", "stderr")
#: Settings of libraries: the function or attribute with the value, and the function that sets it; a dict is its keywords. To an attribute
#: without one the value is assigned.
_SETTINGS: Final = {
    "numpy.geterr": "numpy.seterr",
    "numpy.get_printoptions": "numpy.set_printoptions",
    "sklearn.get_config": "sklearn.set_config",
    "xgboost.get_config": "xgboost.set_config",
    "keras.config.floatx": "keras.config.set_floatx",
    "keras.config.dtype_policy": "keras.config.set_dtype_policy",
    "keras.config.image_data_format": "keras.config.set_image_data_format",
    "torch.get_default_dtype": "torch.set_default_dtype",
    "torch.utils._device.CURRENT_DEVICE": "torch.set_default_device",
    "torch.get_num_threads": "torch.set_num_threads",
    "torch.get_num_interop_threads": "torch.set_num_interop_threads",
    "torch.is_grad_enabled": "torch.set_grad_enabled",
    "torch.is_anomaly_enabled": "torch.set_anomaly_enabled",
    "torch.get_deterministic_debug_mode": "torch.set_deterministic_debug_mode",
    "torch.get_float32_matmul_precision": "torch.set_float32_matmul_precision",
    "torch.backends.cudnn.benchmark": "",
}
#: The kinds of open files that count; a device, a pipe or what the kernel has made for this process alone disturbs nobody.
_KINDS: Final = frozenset({stat.S_IFREG, stat.S_IFDIR, stat.S_IFSOCK, stat.S_IFBLK})
#: How long threads that are about to end are waited for: those of an executor that is shut down, or of a data loader.
_ENDING_S: Final = 0.1
_LOOK_S: Final = 0.001
#: How many things of a kind a reason names; nobody would read more.
_MOST_NAMED: Final = 5
_MOST_CHARS: Final = 500
_BYTES_PER_GB: Final = 1e9

#: What tells an open file from any other: its device, its inode and its kind.
_File = tuple[int, int, int]
#: Values of the same kind, by name.
_Values = Mapping[Any, object]


class Surroundings:
    """The state that the trials of a process share, as it was before the first of them, and as imports have left it."""

    def __init__(self) -> None:
        self._has_collected = False
        self._threads = _threads()
        self._modules = [(module, dict(vars(module))) for module in _MODULES]
        self._before = _read()
        sys.meta_path.insert(0, _ImportWatch(self._adopt))
        self.begin()

    def begin(self) -> None:
        """Record what each trial has for itself: its folder, and its open files."""
        self._before[_FOLDER], self._files = _working_directory(), _open_files()

    def collect(self) -> None:
        """Collect the garbage of a trial."""
        gc.collect()
        if not self._has_collected:
            # What the first trial has imported is there for good, and need not be looked through after each.
            gc.freeze()
            self._has_collected = True

    def put_back(self) -> str:
        """Put back what a trial has changed, and return in words what can't be; empty if all is as it was. Garbage must have been collected."""
        _reap()
        changed = [f"it has changed {words}" for part in _PARTS if (words := self._put_back(part))]
        files = _open_files()
        found = {
            "left the threads": self._left_threads(),
            "left open": [_path_of(fd) for fd in files.keys() - self._files.keys() if files[fd][-1] in _KINDS],
            "closed or replaced the descriptors": _changed(self._files, {fd: files.get(fd) for fd in self._files}),
            "replaced": list(self._replaced()),
            "left": _left_on_device(),
        }
        text = "; ".join([*changed, *(f"it has {what} {_listed(names)}" for what, names in found.items() if names)])
        # A file name that is not Unicode can't be sent.
        return text.encode(errors="backslashreplace").decode()[:_MOST_CHARS]

    def _put_back(self, part: _Part) -> str:
        """Put a part back, and return in words what of it can't be."""
        before = self._before[part.name]
        changed = _changed(before, part.read())
        if not changed:
            return ""
        for name in changed:
            with contextlib.suppress(Exception):
                part.put_back(name, before.get(name))
        left = _changed(before, part.read())
        return f"{part.name} {_listed(left)}".strip() if left else ""

    def _adopt(self, before: Mapping[str, _Values], now: Mapping[str, _Values]) -> None:
        """Take what an import has changed for how things are: it is done once in a process."""
        for part, values in now.items():
            mine = self._before[part] = dict(self._before[part])
            for name in _changed(before[part], values):
                mine.pop(name, None)
                if name in values:
                    mine[name] = values[name]

    def _left_threads(self) -> list[str]:
        over_at = monotonic() + _ENDING_S
        while (left := _changed(self._threads, _threads())) and monotonic() < over_at:
            sleep(_LOOK_S)
        return left

    def _replaced(self) -> Iterator[str]:
        for module, before in self._modules:
            now = vars(module)
            if now != before:
                replaced = (name for name, value in before.items() if callable(value) and now.get(name) is not value)
                yield from (f"{module.__name__}.{name}" for name in replaced)


class _ImportWatch:
    """Sees each import that is not part of another one; *adopt* is called with the state before and after it."""

    def __init__(self, adopt: Callable[[Mapping[str, _Values], Mapping[str, _Values]], None]) -> None:
        self._adopt = adopt
        self._is_under_way = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as the other finders do, and have its loader watched."""
        if self._is_under_way:
            return None
        finders = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        found = (finder.find_spec(fullname, path, target) for finder in finders)
        spec = next((spec for spec in found if spec is not None), None)
        # Those of modules that are part of Python itself are classes, and all modules'.
        if spec is not None and hasattr(spec.loader, "exec_module") and not isinstance(spec.loader, type):
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            is_part, self._is_under_way = self._is_under_way, True
            before = _read()
            try:
                load(module)
            finally:
                self._is_under_way = is_part
                if not is_part:
                    self._adopt(before, _read())

        loader.exec_module = exec_module


def _changed(before: _Values, now: _Values) -> list[Any]:
    """Return the names of what has another value, is gone or is new."""
    if before == now:
        return []
    return [name for name in {**before, **now} if before.get(name) != now.get(name)]


def _listed(names: Sequence[object]) -> str:
    more = len(names) - _MOST_NAMED
    texts = [os.fsdecode(name) if isinstance(name, bytes) else str(name) for name in names[:_MOST_NAMED]]
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


class _Part(NamedTuple):
    """Some of what trials share: how it is read, and how one value of it is put back, None for one that was not there.

    ``put_back`` may raise what it likes, and need not succeed: the part is read again behind it.
    """

    name: str
    read: Callable[[], _Values]
    put_back: Callable[[Any, Any], object]


def _one(name: str, read: Callable[[], object], put_back: Callable[[Any], object]) -> _Part:
    """Return a part with one value."""
    return _Part(name, lambda: {"": read()}, lambda _, value: put_back(value))


def _environment() -> dict[bytes, bytes]:
    """Return the environment as ``os.environ`` has it, without decoding all of that."""
    kept = getattr(os.environb, "_data", None)
    return kept.copy() if isinstance(kept, dict) else dict(os.environb)


def _put_variable(name: bytes, value: bytes | None) -> None:
    if value is None:
        del os.environb[name]
    else:
        os.environb[name] = value


def _streams() -> dict[str, tuple[object, bool]]:
    """Return the standard streams, and whether they are closed: then they can't be put back."""
    return {f"sys.{name}": (it := getattr(sys, name), getattr(it, "closed", False)) for name in _STREAMS}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cores() -> object:
    affinity = getattr(os, "sched_getaffinity", None)
    return affinity(0) if affinity else None


def _threads_of_kernel() -> Iterator[int]:
    """Return all threads of this process: those of libraries begin with the cores and the priority of the one that starts them."""
    return map(int, os.listdir("/proc/self/task"))


def _put_cores(cores: Iterable[int]) -> None:
    for thread in _threads_of_kernel():
        os.sched_setaffinity(thread, cores)


def _put_priority(priority: int) -> None:
    for thread in _threads_of_kernel():
        os.setpriority(os.PRIO_PROCESS, thread, priority)


def _put_collection(before: tuple[bool, tuple[int, int, int]]) -> None:
    is_enabled, thresholds = before
    (gc.enable if is_enabled else gc.disable)()
    gc.set_threshold(*thresholds)


def _put_tracing(before: tuple[TraceFunction | None, ProfileFunction | None]) -> None:
    sys.settrace(before[0])
    sys.setprofile(before[1])


def _working_directory() -> dict[str, str]:
    try:
        return {"": os.getcwd()}
    except OSError:
        return {}


def _monitors() -> dict[threading.Thread, str]:
    """Return the threads with which tqdm watches its progress bars; it starts others for later ones."""
    return {each: each.name for each in threading.enumerate() if type(each).__module__ == "tqdm._monitor"}


def _settings() -> dict[str, object]:
    """Return the settings of the libraries that are imported."""
    found: dict[str, object] = {}
    for path in _SETTINGS:
        module, _, name = path.rpartition(".")
        if module in sys.modules:
            # It may be imported in part, or be another version.
            with contextlib.suppress(Exception):
                value = getattr(sys.modules[module], name)
                found[path] = value() if callable(value) else value
    return found


def _put_setting(path: str, value: object) -> None:
    module, _, name = (_SETTINGS[path] or path).rpartition(".")
    if not _SETTINGS[path]:
        setattr(sys.modules[module], name, value)
    elif isinstance(value, dict):
        getattr(sys.modules[module], name)(**value)
    else:
        getattr(sys.modules[module], name)(value)


_FOLDER: Final = "the working directory"
#: A timer and a handler first: a signal may come.
_PARTS: Final = (
    _Part(
        "the timers",
        lambda: {each: any(signal.getitimer(each)) for each in _TIMERS},
        lambda each, _: signal.setitimer(each, 0),
    ),
    _Part(
        "the handlers of",
        lambda: {name: handler_of(number) for name, number in _SIGNALS.items()},
        lambda name, handler: signal.signal(_SIGNALS[name], handler),
    ),
    _one(
        "the signals that are blocked",
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda blocked: signal.pthread_sigmask(signal.SIG_SETMASK, blocked),
    ),
    _Part("the environment's", _environment, _put_variable),
    _one("the object os.environ", lambda: os.environ, lambda it: setattr(os, "environ", it)),
    _Part("", _streams, lambda name, before: setattr(sys, name.removeprefix("sys."), before[0])),
    _Part(_FOLDER, _working_directory, lambda _, folder: os.chdir(folder)),
    _one("the umask", _umask, os.umask),
    _Part(
        "its limits",
        lambda: {name: resource.getrlimit(limit) for name, limit in _LIMITS.items()},
        lambda name, both: resource.setrlimit(_LIMITS[name], both),
    ),
    _one("its priority", lambda: os.getpriority(os.PRIO_PROCESS, 0), _put_priority),
    _one("its cores", _cores, _put_cores),
    _one("its user", lambda: (os.getuid(), os.geteuid(), os.getgid(), os.getegid()), lambda _: None),
    _one("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _one("the tracing of calls", lambda: (sys.gettrace(), sys.getprofile()), _put_tracing),
    _one("the collection of garbage", lambda: (gc.isenabled(), gc.get_threshold()), _put_collection),
    _one("the locale", lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    _Part("the monitors of tqdm", _monitors, lambda thread, _: thread.exit()),
    _Part("the settings", _settings, _put_setting),
)


def _read() -> dict[str, _Values]:
    return {part.name: part.read() for part in _PARTS}


def _threads() -> dict[str, int | None]:
    """Return the threads that Python knows by name, and how many it has started without knowing them."""
    named = threading.enumerate()
    return {**{thread.name: thread.ident for thread in named}, "without names": _thread._count() - len(named)}


def _reap() -> None:
    """Forget children that have ended, and that nobody has waited for."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _open_files() -> dict[int, _File]:
    """Return this process's open files by descriptor; none where the kernel doesn't list them (Linux does)."""
    found: dict[int, _File] = {}
    with contextlib.suppress(FileNotFoundError):
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                mode, inode, device = os.fstat(fd)[:3]
            except OSError:
                # That of the list itself is closed already.
                continue
            found[fd] = device, inode, stat.S_IFMT(mode)
    return found


def _path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return str(fd)


def _left_on_device() -> list[str]:
    """Return memory to the device that PyTorch holds for nothing, and say what is left; nothing without it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    try:
        if cuda is None or not cuda.is_initialized():
            return []
        # An error in a kernel breaks everything that comes later in this process, and may not have been raised yet.
        cuda.synchronize()
        cuda.empty_cache()
        left = sum(cuda.memory_allocated(device) for device in range(cuda.device_count()))
    except Exception as error:  # noqa: BLE001 - a broken device raises what it likes
        return [f"a device that raises {type(error).__name__}"]
    return [f"{left / _BYTES_PER_GB:.1f} GB of device memory"] if left > KEPT_BYTES else []
