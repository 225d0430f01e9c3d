"""Runs a script as a trainable: a program that reports over a channel, or by printing."""

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from mqtune.core.errors import ConfigurationError, MqtuneError, ReportTooLarge
from mqtune.core.machine import end_of_file, signal_name
from mqtune.core.trial import AttemptEnd, Metrics
from mqtune.trainable.json_reports import JsonReports
from mqtune.trainable.process.channel import Channel
from mqtune.trainable.process.late_imports import check_batches
from mqtune.trainable.process.output import flush, write_all
from mqtune.trainable.process.program import Program
from mqtune.trainable.process.protocol import RELAY, STOP_SIGNAL, UNBUFFERED, Message, TrainableEnd
from mqtune.trainable.process.relay import CONTEXT, address_of
from mqtune.trainable.process.script_fork import ForkedScript, fork_script
from mqtune.trainable.process.session import Session, StopTrial
from mqtune.trainable.script_arguments import ArgumentTemplate, OutputPatterns, reader_of
from mqtune.trainable.spec import folder_above

if TYPE_CHECKING:
    from mqtune.checkpoints.checkpoint import Checkpoint, State

#: Argument names in Syne Tune's scripts.
_CONFIG_ARGUMENT: Final = "--st_config_json_filename"
_CHECKPOINT_ARGUMENT: Final = "--st_checkpoint_dir"
#: The metric in which Syne Tune's reporter gives the time of a report, in seconds since the epoch.
_PRINTED_AT: Final = "st_worker_timestamp"
_READ_BYTES: Final = 2**16
#: Maximum bytes in a pipe, unless an administrator has raised the limit.
_PIPE_BYTES: Final = 2**20
#: How many of its last bytes of output the error of a failed script shows.
_TAIL_BYTES: Final = 4_000
#: Poll interval if the kernel has no descriptor for the end of a process (macOS).
_CHECK_MS: Final = 20
#: Added to a signal's number in an exit code, as in shells.
_KILLED: Final = 128
_TAG: Final = b"[tune-metric]: "
_LINE: Final = re.compile(re.escape(_TAG) + rb"(\{.*\})")
#: Longer unfinished lines are dropped, so that endless output fills no memory.
_MAX_LINE_BYTES: Final = 2**20
#: Descriptors of this process's output: the trial's own files.
_STDOUT: Final = 1
_STDERR: Final = 2
#: The pipes of a script's output: for each read end, the descriptor of its log and the finder of its reports.
Streams = dict[int, tuple[int, "MetricLines"]]
#: How many bytes of a malformed line a message shows.
_SHOWN_BYTES: Final = 1_000


class ScriptRun:
    """One attempt of a script, in the main thread.

    A .py file runs in a fork of this process, which has imported its packages, or in a new interpreter with
    ``start_method="spawn"``. Any other file must be executable. The script's output goes to the trial's own files, and
    its reports go to the session. When the trial has to end, its whole process group gets SIGTERM.
    """

    def __init__(self, path: Path, current: Session, program: Program) -> None:
        self._path = path
        self._session = current
        self._spawns = program.spawns
        self._folder: WatchedFolder | None = None
        self._spec = program.spec
        metric = cast("str | Sequence[str]", current.message["options"].get("metric", ()))
        metrics = [metric] if isinstance(metric, str) else metric
        patterns = [reader_of(self._spec.metrics, metrics) for _ in range(2)]
        self._lines = MetricLines(patterns[0])
        #: With patterns, stderr is read too. It has its own finder, as the order of lines in two pipes is unknown.
        self._error_lines = MetricLines(patterns[1], reads_tags=False) if patterns[1] else None
        self._stop: StopTrial | None = None
        #: Whether the stop signal may raise StopTrial now, and whether one came at another time.
        self._may_raise = False
        self._signalled = False
        self._words = self._arguments()

    def _arguments(self) -> list[str]:
        message = self._session.message
        config, template = message["config"], ArgumentTemplate(self._spec.arguments)
        if message["options"].get("pass_config") == "json":
            file = self._session.ensure_scratch() / "config.json"
            file.write_text(json.dumps(config), encoding="utf-8")
            arguments = [*template.fill({}), _CONFIG_ARGUMENT, str(file)]
        else:
            arguments = template.fill(config)
        # Only on request: a script without checkpoints would reject the argument, and on one machine there is always a
        # store.
        if message["store"] and message["options"].get("pass_checkpoint_dir"):
            start = self._session.get_checkpoint()
            inherited = None if start is None or start.is_dict else start.path
            folder = inherited or self._session.ensure_scratch() / "st_checkpoint"
            arguments += [_CHECKPOINT_ARGUMENT, str(folder)]
            if self._session.is_first:
                self._folder = WatchedFolder(folder)
        return arguments

    def run(self) -> TrainableEnd:
        """Run the script to its end, and return how it ended.

        Raises:
            StopTrial: the trial got an order to end, and the script has ended.
            ConfigurationError: the config can't be passed to the script, or the script can't be started.
        """
        # SIGTERM goes to the whole group. It should end the script, but not this process, which reports that end.
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(STOP_SIGNAL, self._on_signal)
        output, theirs = os.pipe()
        os.set_blocking(output, False)
        self._channel, inherited = Channel.pair()
        streams = {output: (_STDOUT, self._lines)}
        try:
            with self._errors_to_pipe(streams):
                process = self._start_script(theirs, inherited)
            return self._describe_end(self._run_to_end(process, streams))
        finally:
            for stream in streams:
                os.close(stream)
            self._channel.close()

    @contextmanager
    def _errors_to_pipe(self, streams: Streams) -> Iterator[None]:
        """With patterns, send stderr of a process started within the block into a pipe of *streams*."""
        if self._error_lines is None:
            yield
            return
        errors, theirs = os.pipe()
        os.set_blocking(errors, False)
        streams[errors] = (_STDERR, self._error_lines)
        flush()
        own = os.dup(_STDERR)
        os.dup2(theirs, _STDERR)
        os.close(theirs)
        try:
            yield
        finally:
            os.dup2(own, _STDERR)
            os.close(own)

    def _run_to_end(self, process: subprocess.Popen[bytes] | ForkedScript, streams: Streams) -> int:
        """Serve the script until it exits, and end it if the trial should end. Return its exit code."""
        try:
            code = self._serve(process, streams)
        except StopTrial as stop:
            self._stop = stop
            # A script that had exited before the order ended by itself.
            was_over = process.poll() is not None
            if not was_over:
                os.killpg(os.getpgrp(), signal.SIGTERM)
            code = self._serve(process, streams)
            if not was_over:
                self._save_last_files(code >= 0)
                raise
        self._save_last_files(code == 0)
        return code

    def _start_script(self, output: int, channel: Channel) -> subprocess.Popen[bytes] | ForkedScript:
        which = self._session.context
        values = (which.trial, which.attempt, which.experiment, which.folder, which.seat, which.seats, which.address)
        own = dict(zip(CONTEXT, map(str, values), strict=True))
        path = self._path.absolute()
        try:
            module = self._spec.module
            if path.suffix == ".py" and not self._spawns:
                return fork_script(
                    path, self._words, own, output, channel, module=module, root=folder_above(path, module)
                )
            # With -P, Python does not search the current folder, which may have another module of that name.
            program = ["-P", "-m", module] if module else [str(path)]
            command = [*([sys.executable] if path.suffix == ".py" else []), *program, *self._words]
            environment = {**UNBUFFERED, **os.environ, **own, RELAY: address_of(channel.fileno())}
            if module:
                before = os.environ.get("PYTHONPATH")
                environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder_above(path, module)), before]))
            return subprocess.Popen(
                command, env=environment, pass_fds=[channel.fileno()], stdin=subprocess.DEVNULL, stdout=output
            )
        except OSError as error:
            raise ConfigurationError(
                f"script {self._path} can't be started: {error}; check that its first line names its interpreter, such "
                "as #!/bin/sh; if its config is too long for a command line, use Process(pass_config='json')"
            ) from None
        finally:
            os.close(output)
            channel.close()

    def _serve(self, process: subprocess.Popen[bytes] | ForkedScript, streams: Streams) -> int:
        """Serve the script's requests until it exits. Return its exit code, negative for a signal."""
        end = os.pidfd_open(process.pid) if hasattr(os, "pidfd_open") else -1
        poll = select.poll()
        for stream in streams:
            poll.register(stream, select.POLLIN)
        poll.register(self._channel.fileno(), select.POLLIN)
        if end >= 0:
            poll.register(end, select.POLLIN)
        try:
            while True:
                with self._interruptible():
                    ready = {fd for fd, _ in poll.poll(None if end >= 0 else _CHECK_MS)}
                code = process.poll()
                for stream in streams.keys() & ready:
                    if not self._forward_output(stream, *streams[stream]):
                        poll.unregister(stream)
                if self._channel.fileno() in ready and not self._answer_request():
                    poll.unregister(self._channel.fileno())
                if code is not None:
                    break
            # The last output fits into the pipe. A leftover process of the script may write forever.
            for stream, (log, lines) in streams.items():
                for _ in range(0, _PIPE_BYTES, _READ_BYTES):
                    if not self._forward_output(stream, log, lines):
                        break
                self._send_printed(lines.finish())
        finally:
            if end >= 0:
                os.close(end)
        return code

    def _forward_output(self, stream: int, log: int, lines: MetricLines) -> bool:
        """Copy output of the script to its log, and send the reports in it. Return False at its end."""
        try:
            data = os.read(stream, _READ_BYTES)
        except BlockingIOError:
            return True
        write_all(log, data)
        self._send_printed(lines.feed(data))
        return bool(data)

    def _send_printed(self, items: Iterable[Metrics | str]) -> None:
        """Send printed reports, until the trial gets an order to end.

        Print the texts among *items*, which explain unreadable reports.
        """
        for metrics in items:
            if self._stop is not None:
                return
            if isinstance(metrics, str):
                sys.stderr.write(f"{metrics}\n")
                continue
            printed_at = metrics.get(_PRINTED_AT)
            now = time.time()
            try:
                self._send_report(metrics, None, printed_at if isinstance(printed_at, float) else now)
            except (TypeError, ReportTooLarge) as error:
                sys.stderr.write(f"no report: {reprlib.repr(metrics)} was printed: {error}\n")

    def _send_report(self, metrics: Metrics, checkpoint: State | Path | None, before: float) -> None:
        if checkpoint is None and self._folder is not None:
            checkpoint = self._folder.take(self._session.draft, before)
        with self._interruptible():
            self._session.report(metrics, checkpoint)

    def _save_last_files(self, ended_well: bool) -> None:
        """Save files written after the last report, unless a kill may have cut them short."""
        if ended_well and self._folder is not None:
            rest = self._folder.take(self._session.draft)
            if rest is not None:
                self._session.save(rest)

    def _answer_request(self) -> bool:
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
        if told is not None and self._stop is None:
            raise told
        return True

    def _carry_out(self, request: Message) -> Message:
        current = self._session
        match request["do"]:
            case "report":
                if self._stop is not None:
                    raise StopTrial(self._stop.action)
                # The script waits for the answer, so no file in its folder is half written.
                checkpoint = None if request["checkpoint"] is None else _checkpoint_content(request["checkpoint"])
                self._send_report(request["metrics"], checkpoint, math.inf)
            case "imported":
                check_batches(request["batches"])
                current.imported += request["batches"]
            case "save":
                current.save(_checkpoint_content(request["checkpoint"]))
            case "save_wanted":
                return {"save_wanted": current.is_save_wanted()}
            case "action":
                return {"action": self._stop.action if self._stop is not None else "stop"}
            case "draft":
                return {"folder": str(current.draft())}
            case "fetch":
                with self._interruptible():
                    return {"checkpoint": _describe_checkpoint(current.get_checkpoint())}
        return {}

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let the stop signal raise StopTrial within the block.

        Elsewhere it could cut a message short, or leave the script running.
        """
        self._may_raise = True
        try:
            if self._signalled:
                self._on_signal()
            yield
        finally:
            self._may_raise = False

    def _on_signal(self, *_: object) -> None:
        self._signalled = True
        if self._may_raise and self._stop is None:
            self._signalled = False
            self._session.on_stop_signal()

    def _describe_end(self, code: int) -> TrainableEnd:
        if code == 0:
            return TrainableEnd(AttemptEnd.COMPLETED)
        try:
            tail = end_of_file(Path(self._session.message["stderr"]), _TAIL_BYTES).strip()
        except OSError:
            tail = ""
        output = f"; its last errors were:\n{tail}" if tail else ", and printed no errors"
        if code > 0:
            text = f"script {self._path} exited with code {code}{output}"
            return TrainableEnd(AttemptEnd.FAILED, "Exited", text, code=code)
        text = f"script {self._path} was killed by {signal_name(-code)}{output}"
        return TrainableEnd(AttemptEnd.FAILED, "Killed", text, code=_KILLED + -code)


def _checkpoint_content(checkpoint: Message) -> State | Path:
    data: State | None = checkpoint["data"]
    return Path(checkpoint["path"]) if data is None else data


def _describe_checkpoint(checkpoint: Checkpoint | None) -> Message | None:
    if checkpoint is None:
        return None
    return {
        "id": checkpoint.id,
        "path": None if checkpoint.is_dict else str(checkpoint.path),
        "data": checkpoint.data if checkpoint.is_dict else None,
        "counters": dict(checkpoint.counters),
    }


class MetricLines:
    """Finds reports in a stream of a script's output, which comes in pieces of any size.

    A line ends with a newline or, as in progress bars, with a carriage return.

    Args:
        patterns: the reader of reports in lines without a tag.
        reads_tags: whether to read reports in Syne Tune's format, too: ``[tune-metric]: {"loss": 0.1}``.
    """

    def __init__(self, patterns: OutputPatterns | JsonReports | None = None, *, reads_tags: bool = True) -> None:
        self._patterns = patterns or None
        self._reads_tags = reads_tags
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Metrics | str]:
        """Read a piece of output. Yield each complete report, or a text on why it can't be read."""
        data = self._rest + data
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        rest = data[end:]
        self._rest = rest if len(rest) <= _MAX_LINE_BYTES else b""
        yield from self._reports_in(data[:end])
        if not self._rest and self._has_tag(rest):
            yield f"no report: a line of more than {_MAX_LINE_BYTES:,} bytes was printed: {_beginning(rest)}"

    def finish(self) -> Iterator[Metrics | str]:
        """Yield the reports at the end of the output. The last line needs no newline."""
        rest, self._rest = self._rest, b""
        yield from self._reports_in(rest)
        if self._patterns is not None:
            yield from self._patterns.finish()

    def _reports_in(self, text: bytes) -> Iterator[Metrics | str]:
        if self._patterns is None and not self._has_tag(text):
            return
        for line in text.splitlines():
            if self._has_tag(line):
                yield _report_in(line)
            elif self._patterns is not None:
                yield from self._patterns.read(line.decode(errors="replace"))

    def _has_tag(self, text: bytes) -> bool:
        return self._reads_tags and _TAG in text


def _report_in(line: bytes) -> Metrics | str:
    matched = _LINE.search(line)
    try:
        metrics: Metrics = json.loads(matched[1] if matched else line.partition(_TAG)[2])
        if matched:
            return metrics
        problem = "there is no {…} after the tag"
    except ValueError as error:
        problem = str(error)
    return f"no report: {_beginning(line)} can't be read as metrics: {problem}"


def _beginning(line: bytes) -> str:
    return repr(line[:_SHOWN_BYTES].decode(errors="replace"))


class WatchedFolder:
    """Copies a script's checkpoint folder whenever it has new and complete files.

    Args:
        path: the folder, which need not exist yet. Its present content does not count as new.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._copied = self._file_states()

    def take(self, draft: Callable[[], Path], before: float = math.inf) -> Path | None:
        """Return a copy of the folder. Return None if nothing is new, or if files may be half written.

        Args:
            draft: returns a new empty folder for the copy.
            before: a time in seconds since the epoch. If a file was written later, return None.
        """
        seen = self._file_states()
        if not seen or seen == self._copied:
            return None
        # A time in the future doesn't count: the clock was set back since, or it is another machine's.
        if before * 1e9 < max(changed_ns for _, changed_ns in seen.values()) <= time.time_ns():
            return None
        copy = draft()
        try:
            shutil.copytree(self.path, copy, dirs_exist_ok=True)
            complete = self._file_states() == seen
        except (FileNotFoundError, shutil.Error):
            complete = False
        if not complete:
            shutil.rmtree(copy, ignore_errors=True)
            return None
        self._copied = seen
        return copy

    def _file_states(self) -> dict[str, tuple[int, int]]:
        files = {}
        for folder, _, names in os.walk(self.path):
            for name in names:
                file = os.path.join(folder, name)
                try:
                    state = os.stat(file)
                except FileNotFoundError:
                    continue
                files[file] = (state.st_size, state.st_mtime_ns)
        return files
