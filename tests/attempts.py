"""An attempt without a worker: a session in this process, or a whole trial process, with the worker's ends of its pipes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from waiting import DEADLINE_S

from mqtune.checkpoints import open_store
from mqtune.core.codec import decode_value
from mqtune.services.late_imports.known import LateImports
from mqtune.trainable import (
    CLEARED,
    FRAME,
    FRAME_CHECKPOINT,
    FRAME_END,
    FRAME_REPORT,
    FRAME_SAVED,
    NOTE,
    PAUSE,
    RECORD,
    SAVE,
    STOP,
    STOP_SIGNAL,
    Channel,
    Executed,
    Life,
    Program,
    Session,
    StartMessage,
    TrainableEnd,
    TrainableSpec,
    command,
    reporting,
)
from mqtune.trainable.process import runner
from mqtune.worker import Gone, ImporterHandle, ImportKey, ZygoteDied, ZygoteHandle


def program_of(spec: TrainableSpec, code_root: Path, **fields: Any) -> Program:
    """A program whose trials share the folder of this process."""
    return Program(spec, code_root, **{"home": Path.cwd(), **fields})


def import_key(spec: TrainableSpec, code_root: Path, start_method: str = "fork", **fields: Any) -> ImportKey:
    """The key of an importer of such a program."""
    return ImportKey(program_of(spec, code_root, spawns=start_method == "spawn", **fields))


def ready(make: Callable[[LateImports], ImporterHandle], folder: Path) -> ImporterHandle:
    """Return an importer that is ready, made anew without each package behind which it can't fork, as a worker does."""
    late_imports = LateImports(folder, usual=())
    while True:
        importer = make(late_imports)
        try:
            importer.get_ready(late_imports, timeout_s=DEADLINE_S)
        except ZygoteDied as error:
            refused = importer.find_blamed_module(error)
            importer.close()
            if refused is None:
                raise
            late_imports.refuse(importer.key.spec, *refused)
        else:
            return importer


def forked(importer: ImporterHandle, folder: Path, environment: Mapping[str, str] | None = None) -> ZygoteHandle:
    """Return a new zygote, once its importer is ready."""
    importer.get_ready(LateImports(folder), timeout_s=DEADLINE_S)
    return importer.fork(environment or {}, folder / "zygote.log")


def gone(zygote: ZygoteHandle) -> Gone:
    """Wait until nothing is left of the process of a zygote's trial."""
    while True:
        poll = select.poll()
        poll.register(zygote.fileno(), select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000), "the zygote does not say that its trial has ended"
        if (found := zygote.hear_end()) is not None:
            return found


#: The metrics that mqtune adds to every report.
COUNTED: Final = frozenset({"training_iteration", "time_this_iter_s", "time_total_s"})


def own_metrics(row: dict[str, Any]) -> dict[str, Any]:
    """The metrics that a trainable has reported itself."""
    return {name: row[name] for name in row if name not in COUNTED}


def whole_frames(data: bytes) -> list[tuple[int, bytes]]:
    """The kinds and bodies of frames; none may be cut."""
    found = []
    while data:
        length, kind = FRAME.unpack_from(data)
        assert len(data) >= FRAME.size + length, "half a frame"
        found.append((kind, data[FRAME.size : FRAME.size + length]))
        data = data[FRAME.size + length :]
    return found


def start_message(**fields: Any) -> StartMessage:
    """The message that starts an attempt of nothing in particular, but for these fields."""
    return {
        "config": {},
        "timestamp": 0.0,
        "epoch_s": time.time() - time.monotonic(),
        "stdout": os.devnull,
        "stderr": os.devnull,
        "trial": "t1",
        "attempt": 1,
        "claim": "",
        "experiment": "exp",
        "checkpoint": "",
        "checkpoint_data": None,
        "store": "",
        "sync": "stream",
        "folder": "",
        "working_dir": "",
        "seat": 0,
        "seats": 1,
        "address": "",
        "environment": {},
        "options": {"metric": "loss"},
        **fields,  # type: ignore[typeddict-item]
    }


class Worker:
    """The worker's ends of an attempt.

    Args:
        folder: for the attempt's files and the checkpoint store.
        message: more of the start message.
    """

    def __init__(self, folder: Path, **message: Any) -> None:
        self.folder = folder
        self.store = folder / "store"
        open_store(str(self.store)).create()
        self._reports, self.write_end = os.pipe()
        self.control_end, self._control = os.pipe()
        os.set_blocking(self._reports, False)
        os.set_blocking(self.control_end, False)
        self._data = b""
        self.message = start_message(
            **{
                "store": str(self.store),
                "folder": str(folder / "attempt"),
                "stdout": str(folder / "stdout"),
                "stderr": str(folder / "stderr"),
                **message,
            }
        )

    def read(self) -> bool:
        """Take what was sent; False when nothing more will come."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._reports, 2**16):
                self._data += data
            return False
        return True

    def frames(self) -> list[tuple[int, bytes]]:
        """All sent frames, which must be whole."""
        self.read()
        return whole_frames(self._data)

    def rows(self) -> list[dict[str, Any]]:
        """The metrics of all reports, with mqtune's own."""
        return [decode_value(body)[1] for kind, body in self.frames() if kind == FRAME_REPORT]

    def reports(self) -> list[dict[str, Any]]:
        """The metrics of all reports, without mqtune's own."""
        return [own_metrics(row) for row in self.rows()]

    def values(self, name: str = "loss") -> list[Any]:
        """One metric of all reports."""
        return [metrics.get(name) for metrics in self.rows()]

    def checkpoints(self) -> list[str]:
        """The checkpoint of each report, or nothing."""
        reports = [decode_value(body) for kind, body in self.frames() if kind == FRAME_REPORT]
        return [report[2] if len(report) > 2 else "" for report in reports]

    def saved(self) -> list[str]:
        """The checkpoints that came without a report."""
        return [body.decode() for kind, body in self.frames() if kind == FRAME_SAVED]

    def dicts(self) -> dict[str, bytes]:
        """The checkpoints in memory."""
        return dict(decode_value(body) for kind, body in self.frames() if kind == FRAME_CHECKPOINT)

    def end(self) -> dict[str, Any]:
        ((_, body),) = [frame for frame in self.frames() if frame[0] == FRAME_END]
        return decode_value(body)

    def write(self, kind: bytes, number: int = 0) -> None:
        os.write(self._control, RECORD.pack(kind, number))

    def clear(self, sequence: int) -> None:
        self.write(CLEARED, sequence)

    def want_saved(self, wish: int) -> None:
        self.write(SAVE, wish)

    def _pipes(self) -> list[int]:
        return [self.write_end, self.control_end]

    def _close_pipes(self) -> None:
        """Close the trial's ends, which it has too."""
        for fd in self._pipes():
            os.close(fd)
        self.write_end = self.control_end = -1

    def close(self) -> None:
        for fd in (self._reports, self.write_end, self.control_end, self._control):
            with contextlib.suppress(OSError):
                os.close(fd)


def called(trainable: Callable[..., Any], current: Session) -> TrainableEnd:
    """Run a trainable to its end in this process."""
    ours, theirs = Channel.pair()
    with contextlib.closing(ours), contextlib.closing(theirs):
        program = program_of(TrainableSpec("trainable", module="nowhere"), Path())
        life = Life(ours, program, Executed(trainable, ()))
        life.session = current
        try:
            return runner.call(life.begin)
        finally:
            # Otherwise this process would count as a child of the trial in later tests.
            os.environ.pop(NOTE, None)


class AttemptHere(Worker):
    """An attempt in this process."""

    def __init__(self, folder: Path, **message: Any) -> None:
        super().__init__(folder, **message)
        self.session = Session(self.message, [self.write_end, self.control_end])

    def run(self, trainable: Callable[..., Any], config: dict[str, Any] | None = None) -> TrainableEnd:
        """Run a trainable to its end."""
        self.session.message["config"] = config or {}
        handlers = {number: signal.getsignal(number) for number in (STOP_SIGNAL, signal.SIGTERM)}
        outer, reporting.current = reporting.current, self.session
        signal.signal(STOP_SIGNAL, self.session.on_stop_signal)
        try:
            return called(trainable, self.session)
        finally:
            reporting.current = outer
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Tell the attempt to stop; to be called by the trainable."""
        self._tell(STOP)

    def pause(self) -> None:
        self._tell(PAUSE)

    def _tell(self, kind: bytes) -> None:
        self.write(kind)
        os.kill(os.getpid(), STOP_SIGNAL)


class TrialProcess(Worker):
    """An attempt in a process of its own, as a zygote would start it."""

    def __init__(
        self, folder: Path, spec: TrainableSpec, code_root: Path, *, program: Program | None = None, **message: Any
    ) -> None:
        super().__init__(folder, **message)
        self._channel, theirs = Channel.pair()
        self.process = subprocess.Popen(
            command("spare", theirs.fileno()),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stderr=sys.stderr.fileno(),
        )
        theirs.close()
        program = program or program_of(spec, code_root, spawns=True)
        self._channel.send({"do": "begin", "program": program.encode(), "ahead": True})

    def leave(self) -> None:
        """Have the process end without an attempt."""
        self._channel.end()
        self.process.wait(DEADLINE_S)

    def start(self, config: dict[str, Any]) -> None:
        self._channel.send({**self.message, "config": config}, self._pipes())
        self._close_pipes()

    def tell(self, kind: bytes) -> None:
        self.write(kind)
        os.kill(self.process.pid, STOP_SIGNAL)

    def wait_for(self, condition: Callable[[TrialProcess], object]) -> None:
        """Wait until what was sent so far meets a condition."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition(self):
            left = deadline - time.monotonic()
            assert left > 0, f"never sent what was waited for; errors: {self.stderr()}"
            select.select([self._reports], [], [], min(left, 0.05))
            assert self.read() or condition(self), f"ended without what was waited for; errors: {self.stderr()}"

    def wait(self) -> dict[str, Any]:
        """Wait for the end, and return what the process said of it."""
        deadline = time.monotonic() + DEADLINE_S
        while self.read():
            left = deadline - time.monotonic()
            assert left > 0, f"did not end; errors: {self.stderr()}"
            select.select([self._reports], [], [], left)
        self.exit_code = self._exit()
        return self.end()

    def _exit(self) -> int | None:
        return self.process.wait(DEADLINE_S)

    def stdout(self) -> str:
        return Path(self.message["stdout"]).read_text()

    def stderr(self) -> str:
        file = Path(self.message["stderr"])
        return file.read_text() if file.exists() else ""

    def close(self) -> None:
        super().close()
        self._channel.close()
        # It is the leader of its group once it has begun.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(DEADLINE_S)


class ForkedTrial(TrialProcess):
    """An attempt in a process that a zygote has forked."""

    def __init__(self, folder: Path, spec: TrainableSpec, code_root: Path, **message: Any) -> None:
        Worker.__init__(self, folder, **message)
        self._key = import_key(spec, code_root)
        self.importer = ready(self._import, folder)

    def _import(self, late_imports: LateImports) -> ImporterHandle:
        refused = late_imports.refused(self._key.spec)
        return ImporterHandle(self._key, {}, self.folder / "zygote.log", refused=refused)

    def get_zygote(self) -> ZygoteHandle:
        return self.importer.fork({}, self.folder / "zygote.log")

    def start(self, config: dict[str, Any]) -> None:
        self.zygote = self.get_zygote()
        self.zygote.send_start({**self.message, "config": config}, self._pipes())
        self._close_pipes()
        self.pid = self.zygote.wait_started()

    def tell(self, kind: bytes) -> None:
        self.write(kind)
        self.zygote.tell(self.pid)

    def _exit(self) -> int | None:
        status = gone(self.zygote).status
        return None if status is None else os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        Worker.close(self)
        self.importer.close()
