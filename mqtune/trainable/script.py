"""Runs a trainable that is a script: a program of its own, which reports through this process or by printing."""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqtune.core.errors import ConfigurationError, MqtuneError, ReportTooLarge
from mqtune.core.machine import end_of_file
from mqtune.core.trial import AttemptEnd, Metrics
from mqtune.trainable.process import warm_script
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.protocol import RELAY, STOP_SIGNAL, UNBUFFERED, Ending, Message
from mqtune.trainable.process.relay import CONTEXT, address_of
from mqtune.trainable.process.session import Session, StopTrial
from mqtune.trainable.process.warm_script import ForkedScript

if TYPE_CHECKING:
    from mqtune.checkpoints.checkpoint import Checkpoint, State

#: The names that Syne Tune's scripts know these by.
_CONFIG_ARGUMENT: Final = "--st_config_json_filename"
_CHECKPOINT_ARGUMENT: Final = "--st_checkpoint_dir"
#: When it was printed, in a report of Syne Tune's reporter, in seconds since the epoch.
_PRINTED_AT: Final = "st_worker_timestamp"
_READ_BYTES: Final = 2**16
#: The most that a pipe holds, unless an administrator has raised it.
_PIPE_BYTES: Final = 2**20
#: How much of its last output the error of a failed script shows.
_TAIL_BYTES: Final = 4_000
#: How often the script is looked at where the kernel has no descriptor that tells of its end (macOS).
_LOOK_MS: Final = 20
#: A shell's way to tell of a signal in an exit code: this and its number.
_KILLED: Final = 128
_TAG: Final = b"[tune-metric]: "
_LINE: Final = re.compile(re.escape(_TAG) + rb"(\{.*\})")
#: A line without an end is not kept beyond this, so that output of one endless line fills no memory; a report that
#: Syne Tune's reporter would print has at most 50 kB.
_MAX_LINE_BYTES: Final = 2**20
#: How much of a malformed line is shown.
_SHOWN_BYTES: Final = 1_000


def arguments_of(config: Mapping[str, object]) -> list[str]:
    """Return a config as arguments ``--name value``: text as it is, numbers, booleans and None as Python writes them.

    Lists and dicts become JSON. No shell is involved, so spaces, quotes and newlines arrive unchanged.

    Raises:
        ConfigurationError: a value can't be an argument.
    """
    arguments = []
    for name, value in config.items():
        text = json.dumps(value) if isinstance(value, list | dict) else str(value)
        if isinstance(value, bytes) or "\0" in text:
            raise ConfigurationError(
                f"the config's {name!r} is {value!r}, which can't be an argument of a script; give text without NUL"
            )
        arguments += [f"--{name}", text]
    return arguments


class Scripts:
    """A process beside scripts, each of which is a process of its own; see ``mqtune.trainable.process.life.Body``."""

    asks_inside = False
    #: It is nothing that a user has asked for.
    says_why = False

    def __init__(self, path: Path, current: Session) -> None:
        self._path = path
        self._session = current
        self._home = os.open(".", os.O_RDONLY)
        self._is_completed = False

    def begin(self) -> None:
        """Nothing is to be done before the first script."""

    def reset(self, current: Session) -> str:
        """Begin another attempt; nothing keeps a script from it."""
        self._session = current
        return ""

    def run(self) -> Ending:
        """Run the script to its end."""
        self._is_completed = False
        self._session.enter()
        ending = ScriptRun(self._path, self._session).run()
        self._is_completed = ending.end is AttemptEnd.COMPLETED
        return ending

    def left(self) -> str:
        """Leave the attempt's folder, and look whether the script has completed: else it may go on in a process that it has left."""
        os.fchdir(self._home)
        return "" if self._is_completed else "its script has not completed"

    def clean_up(self, _error: BaseException | None) -> None:
        """Nothing of a script's is in this process."""


class ScriptRun:
    """One attempt of a script; all of it runs in the main thread.

    A file that ends in .py is run by this process's Python: in a fork of this process if its first imports are done here, or if the
    file has changed; any other must be executable. Its output goes to the trial's own files, and its reports to the session. When
    the trial is told to end, its whole process group gets SIGTERM.
    """

    def __init__(self, path: Path, current: Session) -> None:
        self._path = path
        self._session = current
        self._folder: WatchedFolder | None = None
        self._lines = MetricLines()
        self._told: StopTrial | None = None
        #: Whether the stop signal may raise now, and whether it came while it might not.
        self._may_raise = False
        self._signalled = False
        self._given = self._arguments()

    def _arguments(self) -> list[str]:
        message = self._session.message
        config = message["config"]
        if message["options"].get("pass_config") == "json":
            file = self._session.scratch / "config.json"
            file.write_text(json.dumps(config), encoding="utf-8")
            arguments = [_CONFIG_ARGUMENT, str(file)]
        else:
            arguments = arguments_of(config)
        # A script without checkpoints would refuse the argument, and on one machine there is always a store.
        if message["store"] and message["options"].get("pass_checkpoint_dir"):
            start = self._session.get_checkpoint()
            inherited = None if start is None or start.is_dict else start.path
            folder = inherited or self._session.scratch / "st_checkpoint"
            arguments += [_CHECKPOINT_ARGUMENT, str(folder)]
            if self._session.is_first:
                self._folder = WatchedFolder(folder)
        return arguments

    def run(self) -> Ending:
        """Run the script to its end, and return how it ended.

        Raises:
            StopTrial: the trial was told to end, and the script has ended.
            ConfigurationError: the config can't be passed to the script, or it can't be started.
        """
        # SIGTERM goes to the group: it ends the script, and this process reports how that ended.
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(STOP_SIGNAL, self._on_signal)
        output, theirs = os.pipe()
        os.set_blocking(output, False)
        self._channel, inherited = Channel.pair()
        try:
            return self._ending(self._see_through(self._start(theirs, inherited), output))
        finally:
            os.close(output)
            self._channel.close()

    def _see_through(self, process: subprocess.Popen[bytes] | ForkedScript, output: int) -> int:
        """Serve the script to its end, or have it end when that is told; return its exit code."""
        try:
            code = self._serve(process, output)
        except StopTrial as stop:
            self._told = stop
            # A script that had exited before ended by itself.
            was_over = process.poll() is not None
            if not was_over:
                os.killpg(os.getpgrp(), signal.SIGTERM)
            code = self._serve(process, output)
            if not was_over:
                self._save_rest(code >= 0)
                raise
        self._save_rest(code == 0)
        return code

    def _start(self, output: int, channel: Channel) -> subprocess.Popen[bytes] | ForkedScript:
        which = self._session.context
        values = (which.trial, which.attempt, which.experiment, which.folder, which.seat, which.seats, which.address)
        own = dict(zip(CONTEXT, map(str, values), strict=True))
        path = self._path.absolute()
        try:
            here = warm_script.warm or warm_script.as_it_was(path)
            if here is not None:
                return here.start(self._given, own, output, channel, self._channel)
            command = [*([sys.executable] if path.suffix == ".py" else []), str(path), *self._given]
            environment = {**UNBUFFERED, **os.environ, **own, RELAY: address_of(channel.fileno())}
            return subprocess.Popen(
                command, env=environment, pass_fds=[channel.fileno()], stdin=subprocess.DEVNULL, stdout=output
            )
        except OSError as error:
            raise ConfigurationError(
                f"script {self._path} can't be started: {error}; a script needs a first line such as #!/bin/sh, and "
                "a config that is too long for a command line Process(pass_config='json')"
            ) from None
        finally:
            os.close(output)
            channel.close()

    def _serve(self, process: subprocess.Popen[bytes] | ForkedScript, output: int) -> int:
        """Carry out the script's requests, until it has exited; return its exit code, negative for a signal."""
        end = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1
        poll = select.poll()
        poll.register(output, select.POLLIN)
        poll.register(self._channel.fileno(), select.POLLIN)
        if end >= 0:
            poll.register(end, select.POLLIN)
        try:
            while True:
                with self._interruptible():
                    ready = {fd for fd, _ in poll.poll(None if end >= 0 else _LOOK_MS)}
                code = process.poll()
                if output in ready and not self._pass_on(output):
                    poll.unregister(output)
                if self._channel.fileno() in ready and not self._answer():
                    poll.unregister(self._channel.fileno())
                if code is not None:
                    break
            # The last output fits into the pipe; a process that the script has left may write to it for ever.
            for _ in range(0, _PIPE_BYTES, _READ_BYTES):
                if not self._pass_on(output):
                    break
            self._take(self._lines.finish())
        finally:
            if end >= 0:
                os.close(end)
        return code

    def _pass_on(self, output: int) -> bool:
        """Copy the script's output to the log, and send the reports in it; return False at its end."""
        try:
            data = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return True
        # A full disk should not end the trial.
        with suppress(OSError):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(1, rest) :]
        self._take(self._lines.feed(data))
        return bool(data)

    def _take(self, found: Iterable[Metrics | str]) -> None:
        """Send the reports that were printed, but not those that come after the trial was told to end."""
        for metrics in found:
            if self._told is not None:
                return
            if isinstance(metrics, str):
                sys.stderr.write(f"{metrics}\n")
                continue
            printed_at = metrics.get(_PRINTED_AT)
            now = time.time()
            try:
                self._report(metrics, None, printed_at if isinstance(printed_at, float) else now)
            except (TypeError, ReportTooLarge) as error:
                sys.stderr.write(f"no report: {reprlib.repr(metrics)} was printed: {error}\n")

    def _report(self, metrics: Metrics, checkpoint: State | Path | None, before: float) -> None:
        if checkpoint is None and self._folder is not None:
            checkpoint = self._folder.take(self._session.draft, before)
        with self._interruptible():
            self._session.report(metrics, checkpoint)

    def _save_rest(self, ended_well: bool) -> None:
        """Save the files that the script wrote after its last report, unless it was killed while it may have written them."""
        if ended_well and self._folder is not None:
            rest = self._folder.take(self._session.draft)
            if rest is not None:
                self._session.save(rest)

    def _answer(self) -> bool:
        """Answer one request; return False when the channel is closed."""
        received = self._channel.receive()
        if received is None:
            return False
        request = received[0]
        told = None
        try:
            answer = {"is": "done", **self._carry_out(request)}
        except StopTrial as stop:
            told, answer = stop, {"is": "told", "action": stop.action}
        except (TypeError, RuntimeError, OSError, MqtuneError) as error:
            answer = {"is": "error", "type": type(error).__name__, "text": str(error)}
        self._channel.send(answer)
        if told is not None and self._told is None:
            raise told
        return True

    def _carry_out(self, request: Message) -> Message:
        current = self._session
        match request["do"]:
            case "report":
                if self._told is not None:
                    raise StopTrial(self._told.action)
                # The script waits meanwhile, so all files in its folder were written before.
                checkpoint = None if request["checkpoint"] is None else _content(request["checkpoint"])
                self._report(request["metrics"], checkpoint, math.inf)
            case "save":
                current.save(_content(request["checkpoint"]))
            case "save_wanted":
                return {"save_wanted": current.save_wanted}
            case "action":
                return {"action": self._told.action if self._told is not None else "stop"}
            case "draft":
                return {"folder": str(current.draft())}
            case "fetch":
                with self._interruptible():
                    return {"checkpoint": _description(current.get_checkpoint())}
        return {}

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let the stop signal raise within the block; elsewhere it could cut a message short, or leave the script running."""
        self._may_raise = True
        try:
            if self._signalled:
                self._on_signal()
            yield
        finally:
            self._may_raise = False

    def _on_signal(self, *_: object) -> None:
        self._signalled = True
        if self._may_raise and self._told is None:
            self._signalled = False
            self._session.tell()

    def _ending(self, code: int) -> Ending:
        if code == 0:
            return Ending(AttemptEnd.COMPLETED)
        try:
            tail = end_of_file(Path(self._session.message["stderr"]), _TAIL_BYTES).strip()
        except OSError:
            tail = ""
        output = f"; its last errors were:\n{tail}" if tail else ", and printed no errors"
        if code > 0:
            text = f"script {self._path} exited with code {code}{output}"
            return Ending(AttemptEnd.FAILED, "Exited", text, code=code)
        name = signal.Signals(-code).name if -code in signal.valid_signals() else str(-code)
        text = f"script {self._path} was killed by {name}{output}"
        return Ending(AttemptEnd.FAILED, "Killed", text, code=_KILLED + -code)


def _content(checkpoint: Message) -> State | Path:
    """Return the content of the checkpoint in a request: a dict, or the path of a folder."""
    data: State | None = checkpoint["data"]
    return Path(checkpoint["path"]) if data is None else data


def _description(checkpoint: Checkpoint | None) -> Message | None:
    if checkpoint is None:
        return None
    return {
        "id": checkpoint.id,
        "path": None if checkpoint.is_dict else str(checkpoint.path),
        "data": checkpoint.data if checkpoint.is_dict else None,
        "counters": dict(checkpoint.counters),
    }


class MetricLines:
    """Finds reports in a script's output, which comes in pieces of any size.

    Each is a line such as Syne Tune's reporter prints: ``[tune-metric]: {"loss": 0.1}``.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Metrics | str]:
        """Take a piece of output; yield the metrics of each report that is complete now, or why it can't be read."""
        data = self._rest + data
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        self._rest = rest if len(rest) <= _MAX_LINE_BYTES else b""
        if _TAG in data[:end]:
            yield from _reports_in(data[:end])
        if not self._rest and _TAG in rest:
            yield f"no report: a line of more than {_MAX_LINE_BYTES:,} bytes was printed: {_beginning(rest)}"

    def finish(self) -> Iterator[Metrics | str]:
        """Yield the report in the last line, which need not end in a newline."""
        rest, self._rest = self._rest, b""
        yield from _reports_in(rest)


def _reports_in(text: bytes) -> Iterator[Metrics | str]:
    for line in text.splitlines():
        if _TAG in line:
            yield _report_in(line)


def _report_in(line: bytes) -> Metrics | str:
    found = _LINE.search(line)
    try:
        metrics: Metrics = json.loads(found[1] if found else line.partition(_TAG)[2])
        if found:
            return metrics
        problem = "there is no {…} after the tag"
    except ValueError as error:
        problem = str(error)
    return f"no report: {_beginning(line)} can't be read as metrics: {problem}"


def _beginning(line: bytes) -> str:
    return repr(line[:_SHOWN_BYTES].decode(errors="replace"))


class WatchedFolder:
    """Watches the folder that a script writes its checkpoints into, and copies it only if nothing is written meanwhile.

    Args:
        path: the folder, which need not exist yet; its present content does not count as new.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._taken = self._look()

    def take(self, draft: Callable[[], Path], before: float = math.inf) -> Path | None:
        """Return a copy of the folder; None if nothing is new since the last copy, or files may be half written.

        Args:
            draft: returns a new empty folder for the copy.
            before: a time, in seconds since the epoch; files that were written later are too new.
        """
        seen = self._look()
        if not seen or seen == self._taken:
            return None
        # A time in the future comes from before the clock was set back, or from another machine's clock.
        if before * 1e9 < max(changed_ns for _, changed_ns in seen.values()) <= time.time_ns():
            return None
        copy = draft()
        try:
            shutil.copytree(self.path, copy, dirs_exist_ok=True)
            complete = self._look() == seen
        except (FileNotFoundError, shutil.Error):
            complete = False
        if not complete:
            shutil.rmtree(copy, ignore_errors=True)
            return None
        self._taken = seen
        return copy

    def _look(self) -> dict[str, tuple[int, int]]:
        """Return the size and the time of the last change, in nanoseconds, of each file."""
        found = {}
        for folder, _, names in os.walk(self.path):
            for name in names:
                file = os.path.join(folder, name)
                try:
                    state = os.stat(file)
                except FileNotFoundError:
                    continue
                found[file] = (state.st_size, state.st_mtime_ns)
        return found
