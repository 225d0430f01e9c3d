"""Output of trials, from files on this machine or from a worker through Redis."""

from __future__ import annotations

import contextlib
import os
import reprlib
import secrets
import time
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, cast, get_args

import redis

from mqtune.core.codec import decode_value, encode_value
from mqtune.core.errors import AccessDenied, LogUnavailable
from mqtune.core.keys import ExperimentKeys, control_channel, is_name, worker_key
from mqtune.core.machine import open_regular
from mqtune.core.submission import DRIVER
from mqtune.core.tasks import is_task
from mqtune.core.trial import TrialId
from mqtune.journal.server.connection import database_of, timing_of
from mqtune.journal.server.retry import RetryingCaller

LogStream = Literal["stdout", "stderr"]

#: The hint on a worker's control channel that an experiment has questions about output.
LOGS: Final = "logs"
#: The largest answer. Redis sends it within a millisecond.
CHUNK_BYTES: Final = 256 * 1024
#: Lifetime of questions and answers in Redis, in milliseconds.
_KEPT_MS: Final = 60_000
#: The first and the longest pause between two checks for an answer, in seconds.
_POLL_S: Final = (0.002, 0.05)
#: The file with the mark of an output folder. With it a reader recognizes a folder on a shared disk.
_MARK: Final = ".mqtune-logs"
_MARK_BYTES: Final = 100
_OFFSETS: Final = range(-(2**62), 2**62)


class LogChunk(NamedTuple):
    """A part of an output file, and its offset there.

    ``size`` is the current size of the whole file, and ``is_open`` says whether the file may still grow.
    """

    data: bytes
    offset: int
    size: int
    is_open: bool


class LogQuestion(NamedTuple):
    """A request for an attempt's output from *offset* on. A negative offset counts from the end.

    ``trial`` is a trial or a task. The answer is stored under ``token``.
    """

    token: str
    trial: TrialId
    attempt: int
    stream: LogStream
    offset: int


def read_chunk(path: Path, offset: int, *, is_open: bool) -> LogChunk:
    """Return at most ``CHUNK_BYTES`` of a file from *offset* on.

    A negative offset counts from the end.

    Raises:
        OSError: the file can't be read, or is not a regular file.
    """
    file = open_regular(path)
    try:
        size = os.fstat(file).st_size
        begin = max(0, size + offset) if offset < 0 else offset
        return LogChunk(os.pread(file, CHUNK_BYTES, begin), begin, size, is_open)
    finally:
        os.close(file)


def output_path(root: Path, experiment: str, trial: str, attempt: int, stream: LogStream) -> Path:
    """Return the path of an attempt's output file in a log folder. *trial* may be a task."""
    return root / experiment / trial / f"{attempt}.{stream}"


def mark_of(folder: Path) -> str:
    """Return the mark of a folder. Empty if it is missing or can't be read from this machine."""
    try:
        with open(open_regular(folder / _MARK), "rb") as file:
            return file.read(_MARK_BYTES).decode(errors="replace")
    except OSError:
        return ""


def made_mark(folder: Path) -> str:
    """Return the mark of a folder, writing one if necessary. Empty if that is impossible."""
    if mark := mark_of(folder):
        return mark
    aside = folder / f"{_MARK}.{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside.write_text(secrets.token_hex(16), encoding="ascii")
        # Another worker may have marked it just now. Its mark counts.
        with contextlib.suppress(FileExistsError):
            os.link(aside, folder / _MARK)
    except OSError:
        return ""
    finally:
        with contextlib.suppress(OSError):
            aside.unlink()
    return mark_of(folder)


class LogExchange(RetryingCaller):
    """Carries questions about one experiment's output to workers, and their answers back.

    Both are in keys of the experiment. So only accounts of its drivers can ask and read, and only accounts of its
    workers can answer. The hint that wakes a worker has only the experiment's name.
    """

    def __init__(self, client: redis.Redis, experiment: str) -> None:
        self._timing = timing_of(client)
        super().__init__(client, patience_s=self._timing.log_answer_s)
        self._experiment = experiment
        self._keys = ExperimentKeys(experiment)

    # The reader's side.

    def ask(self, worker: str, trial: TrialId, attempt: int, stream: LogStream, offset: int) -> LogChunk:
        """Ask the worker that ran an attempt for a part of its output, and return the answer.

        Raises:
            LogUnavailable: the worker is not connected, doesn't answer, or no longer has the output.
            AccessDenied: the account lacks the permission.
            BrokerUnavailable: no server answers.
        """
        token = secrets.token_hex(8)
        question = encode_value(list(LogQuestion(token, trial, attempt, stream, offset)))
        wake = encode_value([[self._experiment, "", 0, LOGS]])
        channel = control_channel(worker, database_of(self._client))

        def put() -> bool:
            with self._client.pipeline() as pipe:
                pipe.get(worker_key(worker))
                pipe.rpush(self._keys.asked(worker), question)
                pipe.pexpire(self._keys.asked(worker), _KEPT_MS)
                pipe.publish(channel, wake)
                return pipe.execute()[0] is not None

        try:
            is_connected = self._retrying(put)
        except AccessDenied as error:
            raise AccessDenied(
                f"{error}; only accounts of drivers, or of operators for all experiments, may read output of trials"
            ) from None
        if not is_connected:
            raise LogUnavailable(f"worker {worker}, which ran trial {trial} attempt {attempt}, is not connected")
        began = woken = time.monotonic()
        wait_s, longest_s = _POLL_S
        while (answer := self._retrying(lambda: self._client.lpop(self._keys.log(token)))) is None:
            now = time.monotonic()
            if now - began > self._timing.log_answer_s:
                raise LogUnavailable(f"worker {worker} did not answer within {self._timing.log_answer_s:.0f} s")
            if now - woken > self._timing.wake_again_s:
                woken = now
                self._retrying(partial(self._client.publish, channel, wake))
            # The answer appears in a key, which is polled less and less often.
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, longest_s)
        return _chunk_of(answer, worker)

    def last_attempt(self, trial: TrialId) -> tuple[int, str]:
        """Return the number of a trial's last attempt, and the name of its worker.

        Return 0 and an empty text if the trial does not exist. For ``DRIVER``, return the last run of the submission
        with the experiment's name.

        Raises:
            BrokerUnavailable: no server answers.
        """
        keys = self._keys
        key, number = (keys.submission, "run") if trial == DRIVER else (keys.trial(trial), "attempt")
        values = self._retrying(lambda: self._client.hmget(key, number, "worker"))
        attempt, worker = (b"" if value is None else value for value in values)
        return (int(attempt) if attempt.isdigit() else 0), worker.decode(errors="replace")

    # The worker's side.

    def take(self, worker: str) -> LogQuestion | None:
        """Take the next question to a worker. Return None if there are no more. Skip malformed ones."""
        while (packed := self._client.lpop(self._keys.asked(worker))) is not None:
            try:
                token, trial, attempt, stream, offset = decode_value(packed)
                is_right = is_name(token) and is_task(trial) and type(attempt) is int and stream in get_args(LogStream)
                if is_right and type(offset) is int and offset in _OFFSETS:
                    return LogQuestion(token, trial, attempt, stream, offset)
            except (ValueError, TypeError):
                continue
        return None

    def answer(self, question: LogQuestion, outcome: LogChunk | str) -> None:
        """Answer a question, with a part of the file or with the reason why it is unavailable."""
        answer = list(outcome) if isinstance(outcome, LogChunk) else outcome
        with self._client.pipeline() as pipe:
            pipe.rpush(self._keys.log(question.token), encode_value(answer))
            pipe.pexpire(self._keys.log(question.token), _KEPT_MS)
            pipe.execute()


def _chunk_of(packed: bytes, worker: str) -> LogChunk:
    try:
        answer = decode_value(packed)
        if isinstance(answer, str):
            raise LogUnavailable(f"worker {worker}: {answer}")
        data, offset, size, is_open = answer
        kinds = [type(part) for part in (data, offset, size, is_open)]
        if kinds != [bytes, int, int, bool] or len(data) > CHUNK_BYTES or offset < 0:
            raise TypeError
    except (ValueError, TypeError):
        raise LogUnavailable(f"worker {worker} answered {reprlib.repr(packed)}, which can't be read") from None
    return LogChunk(cast("bytes", data), offset, size, is_open)
