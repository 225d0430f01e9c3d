"""The worker's side of importers.

It starts them, waits for their imports, has them fork zygotes, and keeps some for later trials.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from mqtune.core.clock import Clock
from mqtune.core.machine import process_stat
from mqtune.core.timing import Timing
from mqtune.trainable.frozen_code import are_current
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.descendants import children_of
from mqtune.trainable.process.late_imports import EVERY_PACKAGE, Batch
from mqtune.trainable.process.program import Program
from mqtune.trainable.process.protocol import UNBUFFERED, Message
from mqtune.trainable.process.zygote import command
from mqtune.trainable.spec import TrainableSpec
from mqtune.worker.host.logs import open_log
from mqtune.worker.host.privileges import without_secrets
from mqtune.worker.host.processes import reaper
from mqtune.worker.programs.preloads import Preloads
from mqtune.worker.programs.zygotes import ForkedProcess, ZygoteDied, ZygoteHandle, ZygoteSilent, is_readable

logger = logging.getLogger(__name__)

#: The longest import of a trainable's module: large frameworks on a cold network disk take minutes.
IMPORT_TIMEOUT_S: Final = 600.0
#: The state of a process that SIGSTOP has stopped, in the process table.
_STOPPED: Final = "T"
#: The number of programs whose unused importers a worker keeps. More experiments rarely take turns on it.
KEPT: Final = 4
_KIB: Final = 1024


class UnsafeImport(ZygoteDied):
    """The importer has exited: no process can be forked after the early import of *module*."""

    def __init__(self, module: str, why: str) -> None:
        super().__init__(f"{module} can't be imported before a trial is forked: {why}")
        self.module = module


class ImportFailed(Exception):
    """The trainable can't be imported; ``kind`` is the error's type."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ImportKey:
    """Identifies the trials that can share an importer and zygotes.

    Attributes:
        program: their program.
        environment: the variables that the experiment sets.
        mark: separates them from trials with otherwise equal keys; a service may set it.
        handle: the class of the worker's handles of their zygotes.
    """

    program: Program
    environment: tuple[tuple[str, str], ...] = ()
    mark: bytes = b""
    handle: type[ZygoteHandle] = ZygoteHandle

    @property
    def spec(self) -> TrainableSpec:
        """The trainable."""
        return self.program.spec


class OfferedImporter:
    """A fork of the driver that waits to be the importer of a carried trainable.

    Args:
        fd: the descriptor of the channel to the fork.
    """

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self.channel = Channel.of_fd(fd)
        received = self.channel.receive()
        #: A child from before this process became a worker; None if it has died.
        self.process = None if received is None else ForkedProcess(received[0]["pid"])

    def suits(self, key: ImportKey) -> bool:
        """Whether it can be the importer of this program."""
        return self.process is not None and key.spec.is_carried


class ImporterHandle:
    """The worker's handle of an importer's process. Thread-safe.

    The thread that creates it must live as long as the worker (see ``die_with_parent``).

    Args:
        key: identifies the program.
        environment: the slot's environment variables, in addition to the worker's.
        log: the file for its output.
        preloads: the batches of modules that it imports early.
        varies: the names of the variables that differ between slots.
        refused: the packages that it must not import.
        offered: a waiting process to use as the importer; None to start one.
    """

    _process: subprocess.Popen[bytes] | ForkedProcess

    def __init__(
        self,
        key: ImportKey,
        environment: Mapping[str, str],
        log: Path,
        preloads: Sequence[Batch] = (),
        varies: Collection[str] = (),
        refused: Collection[str] = (),
        offered: OfferedImporter | None = None,
        timing: Timing = Timing(),
    ) -> None:
        self._timing = timing
        self.key = key
        self._refused = refused
        self._slot_environment = dict(environment)
        #: The versions of the imported packages; empty until these are imported.
        self.environment: dict[str, Any] = {}
        #: How often an import has finished; 0 until it is ready for the first time.
        self.imports = 0
        #: The modules that it was last asked to import early, and all those so far.
        self._asked = _names_in(preloads)
        self._told: set[str] = set()
        self._zygotes: list[ZygoteHandle] = []
        #: How many turns use it, and when a turn last began or ended to do so; set by ``Importers``.
        self.users = 0
        self.used_at = 0.0
        self._files: list[tuple[str, int]] = []
        #: Whether its imports have read variables that differ between slots.
        self._has_looked = False
        #: Whether this worker has ended it.
        self.was_ended = False
        #: Locked by the thread that waits for an import, or for a fork.
        self._exchange = threading.Lock()
        self._failure: Exception | None = None
        begin: dict[str, object] = {"do": "begin", "program": key.program.encode(), "batches": [*preloads]}
        begin |= {"varies": [*varies], "refused": [*refused]}
        variables = {
            **(UNBUFFERED if key.program.is_script else {}),
            **without_secrets(),
            **environment,
            **dict(key.environment),
        }
        with open_log(log) as output:
            if offered is not None and offered.process is not None:
                self._process, self._channel = offered.process, offered.channel
                reaper.add(self._process.pid)
                self._channel.send({**begin, "environment": variables}, [output.fileno()])
            else:
                self._channel, theirs = Channel.pair()
                self._process = reaper.start(
                    command("importer", theirs.fileno()),
                    variables,
                    cwd=key.program.home,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
                theirs.close()
                self._channel.send(begin)
        self._channel.limit(self._timing.zygote_exchange_s)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Whether zygotes can be forked."""
        return self.imports > 0

    @property
    def was_killed(self) -> bool:
        """Whether it was killed from outside: by a person, or by the kernel for lack of memory."""
        return self._process.returncode == -signal.SIGKILL and not self.was_ended

    @property
    def is_dead(self) -> bool:
        """Whether its process has ended, or is about to."""
        return self.was_ended or self._failure is not None or self._process.poll() is not None

    def is_current(self) -> bool:
        """Whether it is alive and has imported the code that is on the disk now."""
        return not self.is_dead and are_current(self._files)

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether its imports are valid in a slot with this environment; True while it is unknown.

        They are not if they have read variables that differ between slots.
        """
        return not self._has_looked or dict(environment) == self._slot_environment

    def get_ready(
        self,
        preloads: Preloads,
        on_import: Callable[[], None] = lambda: None,
        timeout_s: float = IMPORT_TIMEOUT_S,
    ) -> None:
        """Wait until the trainable is imported, with all modules that are imported early.

        Args:
            preloads: knows these modules.
            on_import: called before it waits.
            timeout_s: how long it waits at most.

        Raises:
            ImportFailed: it can't be imported, or not in time.
            UnsafeImport: no process can be forked after such an import; the importer exits.
            ZygoteDied: the import has ended the process.
            ZygoteSilent: the process was stopped (SIGSTOP) at two checks in a row, and was killed.
        """
        if not self.is_ready:
            on_import()
        with self._exchange, self._fails_once():
            spec = self.key.spec
            if self.is_ready:
                news = preloads.of(spec, self._told)
                if not news or self.key.program.spawns or spec.is_carried:
                    return
                on_import()
                self._asked = _names_in(news)
                self._channel.send({"do": "preload", "batches": news})
            loaded = self._wait_for_import(preloads, timeout_s)
            # Asking again for a module that it had, or can't import, would change nothing.
            self._told.update(self._asked, loaded)
            preloads.settle(spec, self._asked, loaded)

    @contextlib.contextmanager
    def _fails_once(self) -> Iterator[None]:
        """Remember an error of the block, and raise it in all later blocks."""
        if self._failure is not None:
            raise self._failure
        try:
            yield
        except (ImportFailed, ZygoteDied) as error:
            self._failure = error
            raise

    def find_blamed_module(self, error: Exception) -> tuple[str, str] | None:
        """Return the preloaded module that caused this import error, and the error's text.

        The name is empty if any of them may be the cause. Return None if no preloaded module caused it.
        """
        if isinstance(error, UnsafeImport):
            return error.module, str(error)
        if not isinstance(error, ZygoteDied) or self.was_killed:
            return None
        # Perhaps one of them has crashed. A script's scout may also have found packages to import early.
        can_do_without = self.key.program.is_script and EVERY_PACKAGE not in self._refused
        return ("", str(error)) if self._asked or self._told or can_do_without else None

    def _wait_for_import(self, preloads: Preloads, timeout_s: float) -> Sequence[str]:
        """Wait until it is ready. Return those of the requested modules that it had to import."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._wait_for_message(deadline, timeout_s)
            message, _ = self._receive()
            match message["is"]:
                case "broken":
                    raise ImportFailed(message["error_type"], message["error"])
                case "unsafe":
                    raise UnsafeImport(message["module"], message["why"])
                case "imported":
                    # The next importer of the trainable gets them as preloads.
                    preloads.learn(self.key.spec, message["batches"])
                    self._asked += _names_in(message["batches"])
                    self._files = [(path, mtime) for path, mtime in message["files"]]
                    self.environment = message["environment"]
                case _:
                    self._has_looked = message["looked"]
                    self.imports += 1
                    loaded: Sequence[str] = message["loaded"]
                    return loaded

    def _wait_for_message(self, deadline: float, timeout_s: float) -> None:
        was_stopped = False
        while not is_readable(self._channel.fileno(), min(self._timing.import_look_s, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                raise ImportFailed("ImportTimeout", f"importing {self.key.spec} took more than {timeout_s:.0f} s")
            # Instead of the importer its scout, a child process, may be stopped.
            is_stopped = _STOPPED in {process_stat(pid)[0] for pid in (self.pid, *children_of(self.pid))}
            if is_stopped and was_stopped:
                raise self._kill("was stopped while it imported")
            was_stopped = is_stopped

    def fork(
        self, environment: Mapping[str, str], log: Path, on_empty: Callable[[], None] = lambda: None
    ) -> ZygoteHandle:
        """Fork a zygote, which has all imports of this importer. The importer must be ready.

        Args:
            environment: the slot's environment variables, in addition to the worker's.
            log: the file for its output.
            on_empty: see ``ZygoteHandle``.

        Raises:
            ZygoteDied: the importer is dead.
            ZygoteSilent: it did not answer in time, perhaps frozen, and was killed.
        """
        with self._exchange, self._fails_once():
            process, channel = self._fork(environment, log)
            zygote = self.key.handle(self.key.spec, self.environment, process, channel, on_empty, self._timing)
            self._zygotes = [*(one for one in self._zygotes if not one.is_closed), zygote]
        return zygote

    def _fork(self, environment: Mapping[str, str], log: Path) -> tuple[ForkedProcess, Channel]:
        channel, theirs = Channel.pair()
        channel.limit(self._timing.zygote_exchange_s)
        try:
            with open_log(log) as output:
                request = {"do": "fork", "environment": dict(environment)}
                self._channel.send(request, [theirs.fileno(), output.fileno()])
            start_s = self._timing.zygote_start_s
            if not is_readable(self._channel.fileno(), start_s):
                raise self._kill(f"forked no zygote within {start_s:g} s")
            forked, pidfds = self._receive()
        except BaseException:
            channel.close()
            raise
        finally:
            theirs.close()
        reaper.add(forked["pid"])
        return ForkedProcess(forked["pid"], pidfds[0] if pidfds else None), channel

    def _receive(self) -> tuple[Message, list[int]]:
        received = self._channel.receive()
        if received is None:
            self._reap()
            raise ZygoteDied(f"the importer of {self.key.spec} died with {self._process.returncode}")
        return received

    def _kill(self, why: str) -> ZygoteSilent:
        silent = ZygoteSilent(f"the importer of {self.key.spec} {why} and was killed; it may have been frozen")
        logger.warning("%s", silent)
        self._reap()
        return silent

    def _reap(self) -> None:
        reaper.kill(self._process, 0)
        reaper.clear(self._timing.zygote_close_s, str(self.key.spec))

    def measure_memory(self) -> int:
        """Return the bytes of memory of its processes and its zygotes'.

        Pages that they share with others count in part.
        """
        parents = [self.pid, *(zygote.pid for zygote in self._zygotes if not zygote.is_dead)]
        # Its child may be a scout that has replaced it.
        return sum(map(_pss_bytes, {*parents, *chain.from_iterable(map(children_of, parents))}))

    def end(self) -> None:
        """Make the importer and its zygotes kill their trials and exit. Return immediately."""
        self.was_ended = True
        for zygote in self._zygotes:
            zygote.end()
        self._channel.end()

    def close(self) -> None:
        """End the importer and its zygotes, and wait for that. They must not be running a trial."""
        self.end()
        for zygote in self._zygotes:
            zygote.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=self._timing.zygote_close_s)
        self._reap()
        self._channel.close()


def _names_in(batches: Iterable[Batch]) -> list[str]:
    return [name for _, names in batches for name in names]


def _pss_bytes(pid: int) -> int:
    """Return a process's memory in bytes, with its part of shared pages; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            return next((int(line.split()[1]) * _KIB for line in file if line.startswith(b"Pss:")), 0)
    except OSError:
        return 0


class Importers:
    """A worker's importers: those in use, and those used most recently. Thread-safe.

    The latter are kept so that experiments can take turns without importing again. An importer that a turn uses is
    never closed.

    Args:
        log: the file for their output.
        preloads: provides the modules to import before trials need them.
        varies: the names of the variables that differ between slots.
        most_bytes: the memory limit of all unused importers together; the one used last is always kept.
        kept: how many programs' importers are kept.
        make: makes an importer; None for ``ImporterHandle``.
    """

    def __init__(
        self,
        log: Path,
        preloads: Preloads,
        varies: Collection[str] = (),
        *,
        most_bytes: float,
        kept: int = KEPT,
        make: Callable[..., ImporterHandle] | None = None,
        timing: Timing = Timing(),
        clock: Clock = time,
    ) -> None:
        self._clock = clock
        self._timing = timing
        self.log = log
        self.preloads = preloads
        self._varies = varies
        #: A fork of the driver, for the carried trainable.
        self.offered: OfferedImporter | None = None
        #: Packages that each importer begins with, as the driver's program has imported them.
        self.packages: Sequence[str] = ()
        self._most_bytes = most_bytes
        self._kept = kept
        self._make = make or ImporterHandle
        self._lock = threading.Lock()
        #: In the order of their last use.
        self._all: list[ImporterHandle] = []

    @property
    def all(self) -> list[ImporterHandle]:
        """All importers, in the order of their last use."""
        with self._lock:
            return list(self._all)

    def use(self, key: ImportKey, environment: Mapping[str, str]) -> ImporterHandle:
        """Return an importer of this key for a slot with this environment, in use until ``leave``.

        It is a known one with the current code, or a new one. When a new one is made, unused ones of this key that are
        dead or have older code are closed.
        """
        with self._lock:
            mine = [one for one in self._all if one.key == key]
            current = next((one for one in mine if one.serves(environment) and one.is_current()), None)
            is_new = current is None
            if current is None:
                # Packages first: the late imports among the others are parts of them.
                preloads, refused = [({}, self.packages), *self.preloads.of(key.spec)], self.preloads.refused(key.spec)
                offered = self.offered if self.offered is not None and self.offered.suits(key) else None
                if offered is not None:
                    self.offered = None
                current = self._make(key, environment, self.log, preloads, self._varies, refused, offered, self._timing)
            else:
                self._all.remove(current)
            self._all.append(current)
            current.users += 1
            current.used_at = self._clock.monotonic()
        if is_new:
            for one in mine:
                if not one.is_current():
                    self.drop(one)
            self.trim()
        return current

    def leave(self, importer: ImporterHandle) -> None:
        """Record that a turn (an attempt's use of a slot) no longer uses this importer."""
        with self._lock:
            importer.users -= 1
            importer.used_at = self._clock.monotonic()

    def drop(self, importer: ImporterHandle) -> None:
        """Close an importer. Do nothing if a turn uses it, or if it is closed."""
        with self._lock:
            if importer.users or importer not in self._all:
                return
            self._all.remove(importer)
        importer.close()

    def trim(self, idle_s: float | None = None) -> None:
        """Close unused importers: dead, idle for *idle_s* seconds, or beyond a limit."""
        now, known = self._clock.monotonic(), self.all
        kept_keys = list(dict.fromkeys(one.key for one in reversed(known)))[: self._kept]
        # A carried trainable exists only in its importer, which stays.
        unused = [one for one in known if not one.users and (one.is_dead or not one.key.spec.is_carried)]
        sizes = [one.measure_memory() if len(known) > 1 else 0 for one in unused]
        total = sum(sizes)
        for importer, size in zip(unused, sizes, strict=True):
            is_too_much = importer.key not in kept_keys or (importer is not known[-1] and total > self._most_bytes)
            is_idle = idle_s is not None and now - importer.used_at > idle_s
            if is_too_much or is_idle or importer.is_dead:
                self.drop(importer)
                total -= size

    def end(self) -> None:
        """Make all importers and their zygotes kill their trials and exit. Return immediately."""
        for importer in self.all:
            importer.end()

    def close(self) -> None:
        """Close all unused importers."""
        for importer in self.all:
            self.drop(importer)


class _Forked(NamedTuple):
    """A zygote, its importer, and the importer's number of imports when it forked the zygote."""

    zygote: ZygoteHandle
    importer: ImporterHandle
    imports: int


class SlotZygotes:
    """One slot's zygotes, one for each recently used program. Thread-safe.

    Args:
        environment: the slot's environment variables, in addition to the worker's.
        log: the file for their output.
        on_empty: called after the end of a process that one of them kept, after one attempt, for the next one.
    """

    def __init__(self, environment: Mapping[str, str], log: Path, on_empty: Callable[[], None] = lambda: None) -> None:
        self.environment = environment
        self._log = log
        self._on_empty = on_empty
        self._lock = threading.Lock()
        self._forked: dict[ImportKey, _Forked] = {}

    def of(self, importer: ImporterHandle, wait: Callable[[], None]) -> ZygoteHandle:
        """Return the slot's zygote of a ready importer; a new one if that has imported more since.

        Args:
            wait: waits until the previous turn is over. Called before a zygote is replaced, which that turn may still
                use.

        Raises:
            ZygoteDied: the importer is dead.
        """
        with self._lock:
            known = self._forked.get(importer.key)
        if known is not None:
            is_new = known.importer is importer and known.imports == importer.imports
            if is_new and not known.zygote.is_dead:
                return known.zygote
            wait()
            known.zygote.close()
        imports = importer.imports
        # The experiment's own variables replace those of the slot: a slot's number of cores is a default.
        variables = {**self.environment, **dict(importer.key.environment)}
        zygote = importer.fork(variables, self._log, self._on_empty)
        with self._lock:
            # The zygotes of closed importers are closed too.
            self._forked = {key: one for key, one in self._forked.items() if not one.zygote.is_closed}
            self._forked[importer.key] = _Forked(zygote, importer, imports)
        return zygote

    def find_keeping(self, importer: ImporterHandle) -> ZygoteHandle | None:
        """Return this importer's zygote if it keeps a process for the next trial, else None."""
        with self._lock:
            known = self._forked.get(importer.key)
        holds = known is not None and known.importer is importer and known.zygote.holds and not known.zygote.is_dead
        return known.zygote if known is not None and holds else None

    @property
    def all(self) -> list[ZygoteHandle]:
        """All zygotes."""
        with self._lock:
            return [one.zygote for one in self._forked.values()]

    def others_may_keep(self, but: ZygoteHandle | None) -> bool:
        """Whether any zygote except *but* may be keeping a process for further trials."""
        return any(zygote.holds for zygote in self.all if zygote is not but)

    def end_others(self, but: ZygoteHandle | None) -> None:
        """End the kept processes of all zygotes but *but*, to free the devices for the next trial.

        No trial may be running here.
        """
        for zygote in self.all:
            if zygote is not but and zygote.holds:
                # A dead one is replaced when it is used next.
                with contextlib.suppress(ZygoteDied):
                    zygote.drop()
