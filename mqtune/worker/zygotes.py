"""The worker's side of zygotes: starts them, has them run trials, keeps those used last, and makes sure that nothing of a trial is left."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqtune.core.codec import encode_value
from mqtune.core.errors import ConfigurationError
from mqtune.core.machine import process_stat
from mqtune.trainable.experiment_code import resolve
from mqtune.trainable.frozen_code import CODE_FOLDER, are_current
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import children_of, signal_group
from mqtune.trainable.process.late_imports import Batch
from mqtune.trainable.process.protocol import STOP_SIGNAL, UNBUFFERED, Message, StartMessage
from mqtune.trainable.process.zygote import arguments
from mqtune.trainable.spec import TrainableSpec
from mqtune.worker.logs import open_log
from mqtune.worker.privileges import without_secrets
from mqtune.worker.processes import reaper

logger = logging.getLogger(__name__)

#: The experiments whose manifests are remembered: more than run at once on a worker.
_REMEMBERED: Final = 64


class CodeManifests:
    """Writes each experiment's manifest, which lists the files of its code, once below the log folder. Any thread may call it."""

    def __init__(self, log_root: Path) -> None:
        self._log_root = log_root
        #: For each experiment the definition that its manifest was made from, and the manifest's path.
        self._known: dict[str, tuple[Mapping[str, Any], Path]] = {}
        #: Slots may ask at the same time, and would write to the same draft.
        self._lock = threading.Lock()

    def of(self, experiment: str, definition: Mapping[str, Any], code_root: Path) -> Path | None:
        """Return the path of an experiment's manifest; None when the files of its code are unknown."""
        with self._lock:
            known = self._known.get(experiment)
            if known is not None and known[0] is definition:
                return known[1]
            files = resolve(TrainableSpec.decode(definition["trainable"]), code_root, definition.get("code_files"))
            manifest = self._write(experiment, encode_value(files)) if files else None
            if manifest is not None:
                while len(self._known) >= _REMEMBERED:
                    del self._known[next(iter(self._known))]
                self._known[experiment] = definition, manifest
            return manifest

    def _write(self, experiment: str, content: bytes) -> Path | None:
        folder = self._log_root / experiment / CODE_FOLDER
        manifest = folder / f"{hashlib.sha256(content).hexdigest()[:16]}.files"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Another worker's process may be reading it.
            draft = folder / f".{manifest.name}.{os.getpid()}"
            draft.write_bytes(content)
            draft.replace(manifest)
        except OSError as error:
            logger.warning(
                "experiment %s: its code can't be frozen (%s); later changes to it take effect", experiment, error
            )
            return None
        return manifest


#: A zygote that is asked to end kills its trial and ends within milliseconds; after this time it is killed.
CLOSE_TIMEOUT_S: Final = 5.0
#: How long the zygote may take to accept a message, or to send the rest of one: milliseconds, unless it is frozen.
EXCHANGE_S: Final = 10.0
#: The state of a process that SIGSTOP has stopped, in the process table.
_STOPPED: Final = "T"
#: How long it may take to start a trial: a fork of a process with much memory, on a machine that swaps.
START_S: Final = 30.0
#: How often a zygote that imports is checked; one that is stopped at two checks in a row is killed, because an import may take
#: minutes, and a stopped one never ends.
IMPORT_LOOK_S: Final = 5.0


class ZygoteDied(Exception):
    """The zygote is dead, and its trial with it."""


class ZygoteSilent(ZygoteDied):
    """The zygote did not answer in time, perhaps frozen, and was killed with its trial."""


class Gone(NamedTuple):
    """Nothing is left of a trial's process, except for a process that is kept for further trials.

    Attributes:
        status: its wait status; None when it is unknown.
        stays: whether the process is kept.
        left: why not, if its trial has left or changed something in it.
        again: whether the kept process refused to be reused, so that a fresh one is started for the same trial.
    """

    status: int | None
    stays: bool = False
    left: str = ""
    again: bool = False


class UnsafeImport(ZygoteDied):
    """The zygote has ended, as no trial can be forked behind an import of *module* that trials make late; nothing was started."""

    def __init__(self, module: str, why: str) -> None:
        super().__init__(f"{module} can't be imported before a trial is forked: {why}")
        self.module = module


class ImportFailed(Exception):
    """The trainable can't be imported; ``kind`` is the error's type."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ZygoteKey:
    """Identifies the trials that one zygote can run.

    ``reuse`` says that processes are kept for further trials of the same experiment. ``code`` is
    the name of the manifest, which is a hash of its content: the same for experiments with the same code. ``folder`` is where trials
    run, None for the worker's own.
    """

    spec: TrainableSpec
    code_root: Path
    start_method: str
    reuse: bool = False
    code: str = ""
    manifest: Path | None = field(default=None, compare=False)
    folder: Path | None = field(default=None, compare=False)

    @property
    def keeps_process(self) -> bool:
        """Whether a process that has run a trial may run another one: a script's, beside which each script is a process of its own."""
        return self.reuse or self.spec.kind == "script"

    @classmethod
    def of(
        cls,
        definition: Mapping[str, Any],
        code_root: Path,
        manifest: Path | None = None,
        folder: Path | None = None,
    ) -> ZygoteKey:
        """Return the key for the trials of an experiment."""
        spec = TrainableSpec.decode(definition["trainable"])
        start_method = definition.get("start_method", "fork")
        if start_method not in ("fork", "spawn"):
            raise ConfigurationError(f"start_method={start_method!r}: there are only 'fork' and 'spawn'")
        code = "" if manifest is None else manifest.name
        return cls(spec, code_root, start_method, bool(definition.get("reuse")), code, manifest, folder)


class ZygoteHandle:
    """A zygote process. One thread uses it, except for ``tell``, ``terminate``, ``kill`` and ``end``, which any thread may call.

    The thread that creates it must live as long as the worker (see die_with_parent).
    """

    def __init__(
        self, key: ZygoteKey, environment: Mapping[str, str], log: Path, preloads: Sequence[Batch] = ()
    ) -> None:
        self.key = key
        #: The modules that it was asked to import besides the trainable's; those asked for last; and which of these it had to import.
        self.preloads: set[str] = set()
        self.asked: Sequence[str] = ()
        self.loaded: Sequence[str] = ()
        #: How many turns use it, and when the last of them began or ended; kept by ``KeptZygotes``.
        self.users = 0
        self.used_at = 0.0
        #: The versions of the imported packages; empty until it is ready.
        self.environment: dict[str, Any] = {}
        self._trial: int | None = None
        #: The descriptor that is readable once the trial's process has ended, where there are pidfds.
        self.pidfd: int | None = None
        self._telling = threading.Lock()
        self._files: list[tuple[str, int]] | None = None
        self._is_ended = False
        self._channel, theirs = Channel.pair()
        self._channel.limit(EXCHANGE_S)
        with open_log(log) as output:
            self._process = reaper.start(
                arguments(key.start_method, theirs.fileno(), key.spec, key.code_root, key.manifest),
                {**(UNBUFFERED if key.spec.kind == "script" else {}), **without_secrets(), **environment},
                cwd=key.folder,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        theirs.close()
        self.preload(preloads)

    def preload(self, batches: Sequence[Batch]) -> None:
        """Have it import modules that trials would import late; no trial may be under way. ``wait_ready`` waits for it."""
        self._files, self.asked = None, [name for _, names in batches for name in names]
        self.preloads.update(self.asked)
        self._channel.send({"do": "preload", "batches": list(batches)})

    def fileno(self) -> int:
        """Return the descriptor that is readable when the zygote has sent a message."""
        return self._channel.fileno()

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether it has imported the trainable, as far as is known."""
        return self._files is not None

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the trainable is imported, and what was to be preloaded.

        Raises:
            ImportFailed: it can't be imported, or not within *timeout_s* seconds.
            UnsafeImport: no trial can be forked behind a preloaded module; the zygote ends.
            ZygoteDied: the import ended the process.
            ZygoteSilent: the process was stopped (SIGSTOP) at two checks in a row, and was killed.
        """
        if self.is_ready:
            return
        self._wait_for_import(timeout_s)
        message, _ = self._receive()
        if message["is"] == "broken":
            raise ImportFailed(message["error_type"], message["error"])
        if message["is"] == "unsafe":
            raise UnsafeImport(message["module"], message["why"])
        self.loaded = message["loaded"]
        self._files = [(path, mtime) for path, mtime in message["files"]]
        self.environment = message["environment"]

    def _wait_for_import(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        was_stopped = False
        while not _is_readable(self.fileno(), min(IMPORT_LOOK_S, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                raise ImportFailed("ImportTimeout", f"importing {self.key.spec} took more than {timeout_s:.0f} s")
            is_stopped = process_stat(self.pid)[0] == _STOPPED
            if is_stopped and was_stopped:
                self.take_over("was stopped while it imported")
            was_stopped = is_stopped

    @property
    def was_killed(self) -> bool:
        """Whether it was killed from outside: by a person, or by the kernel for lack of memory."""
        return self._process.returncode == -signal.SIGKILL and not self._is_ended

    @property
    def is_dead(self) -> bool:
        """Whether its process has ended."""
        return self._process.poll() is not None

    def is_current(self) -> bool:
        """Whether it is alive and has imported the code that is on the disk now."""
        return not self.is_dead and not self._is_ended and are_current(self._files or ())

    def send_start(self, message: StartMessage, fds: Sequence[int]) -> None:
        """Start a trial as soon as the one before it is gone; another thread may still wait for that one's end.

        Raises:
            ZygoteDied: the zygote is dead, or accepts no messages.
        """
        if not self._channel.send({**message, "do": "start"}, fds):
            # After a message that was sent in part no other can be sent. A thread that still waits for the end of the trial before
            # gets ZygoteDied.
            self.end()
            if self.is_dead:
                raise self._died()
            raise ZygoteSilent(f"the zygote of {self.key.spec} took no start message; it may have been frozen")

    def wait_started(self) -> int:
        """Wait until the trial is started and return its process id; the one before it must have ended.

        Raises:
            ZygoteDied: the zygote is dead, or did not answer in time.
        """
        if not _is_readable(self.fileno(), START_S):
            self.take_over(f"started no process within {START_S:g} s")
        started, pidfds = self._receive()
        with self._telling:
            self._trial = started["pid"]
            self.pidfd = pidfds[0] if pidfds else None
        return self._trial

    def tell(self, pid: int) -> None:
        """Send the stop signal to the trial *pid*; a no-op once it has ended."""
        with self._telling:
            if pid != self._trial:
                return
            if self.pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, STOP_SIGNAL)
                return
        self._channel.send({"do": "tell", "pid": pid})

    def terminate(self, pid: int) -> None:
        """Send SIGTERM to the process group of the trial *pid*; a no-op once it has ended."""
        self._end_trial(pid, signal.SIGTERM)

    def kill(self, pid: int) -> None:
        """Send SIGKILL to the process group of the trial *pid*; a no-op once it has ended."""
        self._end_trial(pid, signal.SIGKILL)

    def _end_trial(self, pid: int, number: signal.Signals) -> None:
        with self._telling:
            if pid != self._trial:
                return
            direct = self.pidfd is not None
            # Before the signal, so that the zygote starts no fresh process for a trial that is to end.
            self._channel.send({"do": "end", "pid": pid, "signal": 0 if direct else int(number)})
            if self.pidfd is None or _is_readable(self.pidfd):
                return
            # Directly, because the zygote may be frozen. The process is not reaped yet, so the pid is still its own.
            if not signal_group(pid, number):
                # It may not have created its group yet.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, number)

    def drop(self) -> None:
        """End the process that is kept, if there is one, so that the next trial gets a fresh one.

        Raises:
            ZygoteDied: the zygote is dead, and what it kept is too.
        """
        self._channel.send({"do": "drop"})
        if not _is_readable(self.fileno(), EXCHANGE_S):
            self.take_over("did not end the process that it kept")
        self._receive()

    def hear_end(self) -> Gone | None:
        """Wait for the zygote's next message; return how the trial ended, or None while the zygote still cleans up.

        Raises:
            ZygoteDied: the zygote is dead; the trial was killed, and nothing is left of it either.
        """
        message, _ = self._receive()
        if message["is"] == "sweeping":
            return None
        is_over = message["is"] == "ended"
        if is_over and not message["stays"] and self.pidfd is not None and not _is_readable(self.pidfd):
            return self.take_over("said that a trial had ended which had not")
        self._forget_trial()
        return Gone(message["status"], message["stays"], message["left"]) if is_over else Gone(None, again=True)

    def take_over(self, why: str) -> Gone:
        """Kill a zygote that does not reap its trial, and reap it here; return how the trial had ended.

        Args:
            why: what the zygote has failed to do, for the log.

        Raises:
            ZygoteSilent: the trial had not ended by itself.
        """
        had_ended = self.pidfd is not None and _is_readable(self.pidfd)
        silent = ZygoteSilent(f"the zygote of {self.key.spec} {why} and was killed; it may have been frozen")
        logger.warning("%s", silent)
        status = self._reap()
        if not had_ended:
            raise silent
        return Gone(status)

    def _forget_trial(self) -> None:
        with self._telling:
            self._trial = None
            if self.pidfd is not None:
                os.close(self.pidfd)
                self.pidfd = None

    def _receive(self) -> tuple[Message, list[int]]:
        received = self._channel.receive()
        if received is None:
            self._reap()
            raise self._died()
        return received

    def _died(self) -> ZygoteDied:
        return ZygoteDied(f"the zygote of {self.key.spec} died with {self._process.returncode}")

    def _reap(self) -> int | None:
        """Kill and reap the zygote and whatever it has left; return its trial's wait status, if that had ended before."""
        trial = self._trial
        status = reaper.kill(self._process, trial or 0)
        if trial is not None and not reaper.adopts:
            # Processes that have left its group stay.
            deadline = time.monotonic() + CLOSE_TIMEOUT_S
            while signal_group(trial, signal.SIGKILL) and time.monotonic() < deadline:
                time.sleep(0.001)
        left = reaper.clear(CLOSE_TIMEOUT_S)
        if left:
            logger.error("processes %s of %s can't be killed", left, self.key.spec)
        self._forget_trial()
        return status

    def end(self) -> None:
        """Make the zygote kill whatever it runs, and end; whoever waits for its trial gets ZygoteDied. Any thread may call it."""
        self._is_ended = True
        self._channel.end()

    def close(self) -> None:
        """End the zygote and wait until it is gone. It must not be running a trial."""
        self._channel.end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=CLOSE_TIMEOUT_S)
        self._reap()
        self._channel.close()


def _is_readable(fd: int, timeout_s: float = 0.0) -> bool:
    # Not by select(), which takes no descriptor from 1,024 on.
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


#: The most zygotes that a slot keeps: more experiments rarely share a worker at once.
KEPT: Final = 4
#: Device files that a process has open if it uses a GPU: NVIDIA's devices, AMD's compute interface, and render nodes.
DEVICE_FILES: Final = ("/dev/nvidia", "/dev/kfd", "/dev/dri/render")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class KeptZygotes:
    """One slot's zygotes: those of the trainables that it ran last, so that experiments can take turns without importing again.

    Any thread may call it. A zygote that is in use is never closed.

    Args:
        environment: variables of their environment, besides the worker's.
        log: the file for their output.
        most_bytes: how much unshared memory the unused ones may have together; one is always kept.
        on_empty: called with each zygote that was closed, or whose kept process was ended.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        log: Path,
        *,
        most_bytes: float,
        on_empty: Callable[[ZygoteHandle], None] = lambda _: None,
    ) -> None:
        self._environment = environment
        self._log = log
        self._most_bytes = most_bytes
        self._on_empty = on_empty
        self._lock = threading.Lock()
        #: By key, in the order of their last use.
        self._kept: dict[ZygoteKey, ZygoteHandle] = {}

    @property
    def all(self) -> list[ZygoteHandle]:
        """All zygotes, in the order of their last use."""
        with self._lock:
            return list(self._kept.values())

    def use(self, key: ZygoteKey, wait: Callable[[], None], preloads: Sequence[Batch] = ()) -> ZygoteHandle:
        """Return a zygote for this trainable and the current code: a kept one, or a new one.

        Args:
            key: identifies the trials that it can run.
            wait: returns when the turn before is over; called before a zygote that the turn may use is replaced.
            preloads: the modules that a new one imports besides.
        """
        with self._lock:
            zygote = self._kept.get(key)
            if zygote is not None and zygote.is_current():
                self._begin_use(zygote)
                return zygote
        if zygote is not None:
            wait()
            self.drop(zygote)
        zygote = ZygoteHandle(key, self._environment, self._log, preloads)
        with self._lock:
            self._begin_use(zygote)
        self.trim()
        return zygote

    def _begin_use(self, zygote: ZygoteHandle) -> None:
        zygote.users += 1
        zygote.used_at = time.monotonic()
        self._kept.pop(zygote.key, None)
        self._kept[zygote.key] = zygote

    def leave(self, zygote: ZygoteHandle) -> None:
        """Record that a turn that used this zygote has ended."""
        with self._lock:
            zygote.users -= 1
            zygote.used_at = time.monotonic()

    def drop(self, zygote: ZygoteHandle, *, if_unused: bool = False) -> None:
        """Close a zygote, unless it is closed already, or *if_unused* and a turn uses it."""
        with self._lock:
            if self._kept.get(zygote.key) is not zygote or (if_unused and zygote.users):
                return
            del self._kept[zygote.key]
        zygote.close()
        self._on_empty(zygote)

    def trim(self, idle_s: float | None = None) -> None:
        """Close unused zygotes: dead ones, those beyond the number and the memory allowed, the oldest first, and after *idle_s* seconds."""
        now, count = time.monotonic(), len(self._kept)
        idle = [zygote for zygote in self.all if not zygote.users]
        sizes = [_own_bytes(zygote) for zygote in idle]
        total = sum(sizes)
        for zygote, size in zip(idle, sizes, strict=True):
            is_too_much = count > 1 and (count > KEPT or total > self._most_bytes)
            is_idle = idle_s is not None and now - zygote.used_at > idle_s
            if is_too_much or is_idle or zygote.is_dead:
                self.drop(zygote, if_unused=True)
                count, total = count - 1, total - size

    def may_have_stayed(self, but: ZygoteHandle | None) -> bool:
        """Whether any zygote except *but* may have a process that is kept for further trials."""
        return any(zygote.key.reuse for zygote in self.all if zygote is not but)

    def make_way(self, but: ZygoteHandle | None) -> None:
        """Have only *but* keep a process, and close the other unused zygotes that have a GPU open, so that a trial has that to itself.

        No trial may be running here.
        """
        for zygote in self.all:
            if zygote is but:
                continue
            # One that still imports keeps none, and whoever uses it waits for its answer.
            if zygote.key.reuse and zygote.is_ready:
                # A dead one is replaced when it is used next.
                with contextlib.suppress(ZygoteDied):
                    zygote.drop()
                self._on_empty(zygote)
            if not zygote.users and _has_device(zygote.pid):
                self.drop(zygote, if_unused=True)

    def drop_all(self) -> None:
        """Close all zygotes; none may be running a trial."""
        for zygote in self.all:
            self.drop(zygote)

    def end_all(self) -> None:
        """Make all zygotes kill whatever they run, and end; doesn't wait for it."""
        for zygote in self.all:
            zygote.end()


def _own_bytes(zygote: ZygoteHandle) -> int:
    """Return the unshared memory of a zygote and of the process that it keeps; 0 where the kernel doesn't say.

    Its spare is left out, because that shares nearly everything with it.
    """
    pids = [zygote.pid, *(children_of(zygote.pid) if zygote.key.reuse else ())]
    return sum(map(_unshared_bytes, pids))


def _unshared_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared = map(int, file.read().split()[:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * _PAGE_BYTES


def _has_device(pid: int) -> bool:
    """Whether a process or a child of it has a GPU open; False where the kernel doesn't say."""
    return any(path.startswith(DEVICE_FILES) for each in [pid, *children_of(pid)] for path in _open_files(each))


def _open_files(pid: int) -> Iterable[str]:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/{pid}/fd/{number}")
