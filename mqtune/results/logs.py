"""The output of trials: from its file, from the trial's worker, or a part from the journal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from mqtune.core.errors import ConfigurationError, CopyIncomplete, LogUnavailable
from mqtune.core.submission import DRIVER
from mqtune.core.tasks import is_task, task_in, task_name
from mqtune.core.text import counted, names_in_words
from mqtune.core.trial import Attempt, TrialId
from mqtune.journal.exchange.logs import CHUNK_BYTES, LogChunk, LogExchange, LogStream, mark_of, output_path, read_chunk
from mqtune.results.labelling import is_in_folder_alone
from mqtune.results.results import Results

if TYPE_CHECKING:
    from mqtune.services.submissions.board import SubmissionState

Ask = Callable[[str, TrialId, int, LogStream, int], LogChunk]

#: Seconds between reads of output that is followed.
_POLL_S: Final = 0.2
#: Between reads of the journal's copy at least these seconds pass, and at least this many times a read's duration.
_POLL_COPY_S: Final = 1.0
_COPY_SHARE: Final = 20.0
#: The folders between a file of output and its worker's log folder: trial and experiment.
_BELOW_ROOT: Final = 2
#: A worker keeps the first and the last part of a long file.
_CUT: Final = "\n… mqtune: output was cut out of the file before it was read here …\n".encode()


def attempt_of(attempts: list[Attempt], trial: TrialId, number: int | None) -> Attempt:
    """Return the attempt with this number, by default the last one.

    Raises:
        ConfigurationError: the attempt does not exist.
    """
    chosen = len(attempts) if number is None else number
    if not 0 < chosen <= len(attempts):
        raise ConfigurationError(
            f"trial {trial} has no attempt {chosen}; it has {counted(len(attempts), 'attempt')}, numbered from 1"
        )
    return attempts[chosen - 1]


def with_task(attempt: Attempt, trial: TrialId, number: int) -> Attempt:
    """Return a copy of the attempt with the worker, paths and output of one of its tasks.

    Raises:
        ConfigurationError: the attempt has no such task.
    """
    if not number:
        return attempt
    if (further_task := attempt.further_task(number)) is not None:
        return replace(
            attempt,
            worker=further_task.worker,
            host=further_task.host,
            log_mark=further_task.log_mark,
            stdout_path=further_task.stdout_path,
            stderr_path=further_task.stderr_path,
            stdout_tail="",
            stderr_tail="",
        )
    named = f"trial {trial} attempt {attempt.number}"
    if attempt.started_at is None:
        raise ConfigurationError(f"{named} has not begun")
    count = counted(1 + len(attempt.further_tasks), "seat")
    raise ConfigurationError(f"{named} has no seat {number}; it has {count}, numbered from 0")


class AttemptOutput:
    """The output of one attempt on one stream.

    Args:
        trial: the trial's id, or the name of one of the attempt's tasks.
        attempt: the attempt in its current state; for a task, as returned by ``with_task``.
        stream: "stdout" or "stderr".
        ask: requests output from the attempt's worker. None without a connection.

    Raises:
        ConfigurationError: *stream* is neither "stdout" nor "stderr".
    """

    def __init__(
        self, experiment: str, trial: TrialId, attempt: Attempt, stream: LogStream, ask: Ask | None = None
    ) -> None:
        if stream not in get_args(LogStream):
            raise ConfigurationError(f"stream={stream!r} is neither 'stdout' nor 'stderr'")
        self._experiment = experiment
        self._trial = trial
        self._attempt = attempt
        self._stream = stream
        self._ask = ask
        is_stdout = stream == "stdout"
        self._path = attempt.stdout_path if is_stdout else attempt.stderr_path
        #: The last part of the output, from the journal.
        self.tail = (attempt.stdout_tail if is_stdout else attempt.stderr_tail).encode()

    @property
    def is_here(self) -> bool:
        """Whether the output's file can be read here: on this machine, or in a shared folder.

        The path comes from the journal, to which an account may have appended any path. So only a path is read that is
        the right one for this attempt, in a log folder with the mark of the attempt's worker.
        """
        file = Path(self._path)
        if len(file.parents) <= _BELOW_ROOT or ".." in file.parts:
            return False
        root = file.parents[_BELOW_ROOT]
        expected = output_path(root, self._experiment, self._trial, self._attempt.number, self._stream)
        mark = self._attempt.log_mark
        if file != expected or not mark or mark_of(root) != mark:
            return False
        # A folder of the path may be a link to another one.
        return file.is_file() and file.parent.resolve() == root.resolve() / self._experiment / self._trial

    def chunk(self, offset: int) -> LogChunk:
        """Return a part of the output from an offset on. A negative offset counts from the end.

        Raises:
            LogUnavailable: the file is not on this machine, and the worker can't send it.
            BrokerUnavailable: no server answers.
        """
        attempt = self._attempt
        if self.is_here:
            try:
                return read_chunk(Path(self._path), offset, is_open=attempt.end is None)
            except OSError as error:
                raise LogUnavailable(f"{self._path} can't be read: {error}") from None
        if not attempt.worker:
            return LogChunk(b"", 0, 0, attempt.end is None)
        if self._ask is None:
            raise LogUnavailable(f"worker {attempt.worker} can't be asked without a broker")
        return self._ask(attempt.worker, self._trial, attempt.number, self._stream, offset)

    def all(self, offset: int) -> bytes:
        """Return all output from an offset on that is present now."""
        chunk = self.chunk(offset)
        chunks, end = [chunk.data], chunk.size
        while chunk.data and chunk.offset + len(chunk.data) < min(end, chunk.size):
            chunk = self.chunk(chunk.offset + len(chunk.data))
            chunks.append(chunk.data)
        return b"".join(chunks)

    def follow(self, offset: int, is_over: Callable[[LogChunk], bool]) -> Iterator[bytes]:
        """Yield output from an offset on as it is printed. End when *is_over* returns True.

        *is_over* is called with each chunk without data. A line says where the worker has cut output out of the file.
        """
        chunk = self.chunk(offset)
        while True:
            at = chunk.offset + len(chunk.data)
            if chunk.data:
                yield chunk.data
            elif chunk.size < chunk.offset:
                yield _CUT
                at = max(0, chunk.size - CHUNK_BYTES)
            elif is_over(chunk):
                return
            else:
                time.sleep(_POLL_S)
            chunk = self.chunk(at)


def follow_log(
    experiment: str | Path,
    trial: str,
    stream: LogStream = "stdout",
    *,
    attempt: int | None = None,
    offset: int = 0,
    follow: bool = True,
    broker: str | None = None,
) -> Iterator[bytes]:
    """Yield a trial's output until its attempt has ended. It works in any process.

    The output is read from its file, if that is on this machine or in a shared folder. Otherwise the worker is asked
    over the broker, also after the attempt's end. If the worker does not answer, the last part of the output is
    yielded, which this machine's copy of the journal has.

    Args:
        experiment: the experiment's name, or its folder on this machine.
        trial: the trial's id, which means its task 0. ``0001~1`` is task 1.
        stream: "stdout" or "stderr".
        attempt: the attempt's number, by default the last one's.
        offset: the number of bytes to skip; if negative, the number of bytes at the end to yield.
        follow: whether to continue until the attempt has ended.
        broker: URL of the worker's Redis, or None for an experiment that ran on this machine alone.

    Raises:
        ConfigurationError: the experiment, trial, attempt or task does not exist.
        LogUnavailable: no output can be read.
        BrokerUnavailable: no server answers.
    """
    with ExitStack() as stack:
        exchange = None
        if broker is not None:
            from mqtune.journal.server.connection import connect  # noqa: PLC0415 - only this needs a connection

            client = connect(broker, role="driver")
            stack.callback(client.close)
            exchange = LogExchange(client, Path(experiment).name)
        log = _from_copy(experiment, trial, attempt)
        if log is None:
            if exchange is None:
                # This error lists the known names.
                Results.load(experiment)
                raise ConfigurationError(f"experiment {experiment!s} has no trial {trial!r}")
            log = _from_server(exchange, trial, attempt)
        id_, record = log
        output = AttemptOutput(Path(experiment).name, id_, record, stream, None if exchange is None else exchange.ask)
        try:
            if not follow:
                yield output.all(offset)
                return
            is_over = _end_in_copy(experiment, id_, record) if output.is_here else lambda chunk: not chunk.is_open
            yield from output.follow(offset, is_over)
        except LogUnavailable:
            if not output.tail and exchange is None and is_in_folder_alone(Results.load(experiment).folder):
                raise LogUnavailable(
                    f"experiment {experiment!s} was imported, archived or simulated: trial {id_} has no output"
                ) from None
            if not output.tail:
                raise
            yield output.tail


def follow_driver(name: str, broker: str, *, offset: int = 0, follow: bool = True) -> Iterator[bytes]:
    """Yield the output of a submitted script (both streams) until it has ended.

    The output is the newest run's. With *follow*, the output of a later run on another worker follows behind a line
    that announces it, and another line names workers that may not run the script. If the worker does not answer, the
    end of the output is yielded, which the worker left on the server.

    Args:
        name: the submission's name.
        broker: URL of the Redis, with a driver's account.
        offset: the number of bytes to skip; if negative, the number of bytes at the end to yield.
        follow: whether to continue until the submission has ended.

    Raises:
        ConfigurationError: nothing was submitted under this name.
        LogUnavailable: no output can be read. With *follow*, this is not raised but waited for.
        BrokerUnavailable: no server answers.
    """
    from mqtune.journal.server.connection import CONNECT_TIMEOUT_S, connect  # noqa: PLC0415 - as above
    from mqtune.services.submissions.board import Submissions  # noqa: PLC0415

    with contextlib.closing(connect(broker, role="driver")) as client:
        submissions, exchange = Submissions(client, patience_s=CONNECT_TIMEOUT_S), LogExchange(client, name)

        def read_state() -> SubmissionState:
            state = submissions.state(name)
            if state is None:
                raise ConfigurationError(
                    f"nothing was submitted as {name!r}; for a trial's output, give its id too: mqtune logs {name} 1"
                )
            return state

        run, at, has_any, refusal = 0, offset, False, ""
        while True:
            state = read_state()
            if follow and state.refusal not in ("", refusal):
                workers = names_in_words(state.refused_by)
                yield f"\n… mqtune: {workers} may not run it: {state.refusal}; it waits for another worker …\n".encode()
            refusal = state.refusal
            if state.run != run:
                if run:
                    yield f"\n… mqtune: run {state.run} begins, on {state.worker} …\n".encode()
                run, at, has_any = state.run, at if run == 0 else 0, False
            output = AttemptOutput(
                name, TrialId(DRIVER), Attempt(run, 0.0, worker=state.worker), "stdout", exchange.ask
            )
            try:
                if not follow:
                    yield output.all(at)
                    return
                at = output.chunk(at).offset if run else at
                for data in output.follow(at, partial(_is_over, read_state, run)):
                    at, has_any = at + len(data), True
                    yield data
            except LogUnavailable:
                if state.state != "running" and state.output and not has_any:
                    has_any = True
                    yield state.output.encode()
                elif not follow:
                    raise
                if not follow:
                    return
            state = read_state()
            if state.has_ended and state.run == run:
                return
            time.sleep(_POLL_COPY_S)


def _is_over(read_state: Callable[[], SubmissionState], run: int, chunk: LogChunk) -> bool:
    """Return whether a run of a submission prints no more output."""
    return not chunk.is_open or not run or read_state().run != run


def _from_copy(experiment: str | Path, trial: str, number: int | None) -> tuple[TrialId, Attempt] | None:
    try:
        trials = Results.load(experiment).experiment.trials
    except (ConfigurationError, CopyIncomplete):
        return None
    for name in _names_of(trial):
        id_, task = task_in(name)
        if id_ in trials:
            return name, with_task(attempt_of(trials[id_].attempts, id_, number), id_, task)
    return None


def _names_of(given: str) -> list[TrialId]:
    """Return the tasks that a user may mean: 1 is trial 0001, and 1~2 is its task 2."""
    if not is_task(given):
        return []
    trial, number = task_in(given)
    return [task_name(TrialId(id_), number) for id_ in (trial, trial.zfill(4))]


def _from_server(exchange: LogExchange, trial: str, number: int | None) -> tuple[TrialId, Attempt]:
    """Return a trial's last attempt, the only one in Redis."""
    for id_ in _names_of(trial):
        last, worker = exchange.last_attempt(id_)
        if last:
            if number not in (None, last):
                raise ConfigurationError(
                    f"trial {id_}: Redis has only attempt {last}; look for attempt {number} on the driver's machine"
                )
            if not worker:
                raise ConfigurationError(f"trial {id_} attempt {last} has not begun")
            return id_, Attempt(last, 0.0, worker=worker)
    raise ConfigurationError(
        f"Redis knows no trial {trial!r} of that experiment: it does not exist, or ended more than a week ago"
    )


def _end_in_copy(experiment: str | Path, trial: TrialId, attempt: Attempt) -> Callable[[LogChunk], bool]:
    """Return a function that returns whether the attempt has ended in the journal's copy.

    The function reads the copy rarely, so it may notice the end late.
    """
    due = time.monotonic()
    ended = attempt.end is not None

    def is_over(_: LogChunk) -> bool:
        nonlocal due, ended
        # The last bytes may have been printed after the last chunk, so one more chunk is read.
        was_over, now = ended, time.monotonic()
        if not ended and now >= due:
            log = _from_copy(experiment, trial, attempt.number)
            ended = log is None or log[1].end is not None
            due = time.monotonic() + max(_POLL_COPY_S, _COPY_SHARE * (time.monotonic() - now))
        return was_over

    return is_over
