"""Output of trials: from a file, the attempt's worker, or its last part from the journal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from mqtune.core.errors import ConfigurationError, CopyIncomplete, LogUnavailable
from mqtune.core.seats import is_seat, seat_in, seat_name
from mqtune.core.submission import DRIVER
from mqtune.core.text import names_in_words
from mqtune.core.trial import Attempt, TrialId
from mqtune.journal.exchange.logs import CHUNK_BYTES, LogChunk, LogExchange, LogStream, mark_of, output_path, read_chunk
from mqtune.results.labelling import is_in_folder_alone
from mqtune.results.results import Results

if TYPE_CHECKING:
    from mqtune.services.submissions.board import SubmissionState

Ask = Callable[[str, TrialId, int, LogStream, int], LogChunk]

#: In seconds, between reads of followed output.
_LOOK_S: Final = 0.2
#: Pause between reads of the journal's copy: these seconds, and this many times the duration of a read.
_LOOK_AT_COPY_S: Final = 1.0
_COPY_SHARE: Final = 20.0
_BELOW_ROOT: Final = 2
#: A worker keeps the first and the last part of a long file.
_CUT: Final = "\n… mqtune: output was cut out of the file before it was read here …\n".encode()


def attempt_of(attempts: list[Attempt], trial: TrialId, number: int | None) -> Attempt:
    """Return the attempt with this number, by default the last one.

    Raises:
        ConfigurationError: it does not exist.
    """
    chosen = len(attempts) if number is None else number
    if not 0 < chosen <= len(attempts):
        raise ConfigurationError(f"trial {trial} has no attempt {chosen}; it has {len(attempts)}, from 1 on")
    return attempts[chosen - 1]


def with_seat(attempt: Attempt, trial: TrialId, seat: int) -> Attempt:
    """Return the attempt with the worker and the output of one of its seats.

    Raises:
        ConfigurationError: it has no such seat.
    """
    if not seat:
        return attempt
    if (seat_found := attempt.further_seat(seat)) is not None:
        where = replace(attempt, worker=seat_found.worker, host=seat_found.host, log_mark=seat_found.log_mark)
        return replace(
            where,
            stdout_path=seat_found.stdout_path,
            stderr_path=seat_found.stderr_path,
            stdout_tail="",
            stderr_tail="",
        )
    named = f"trial {trial} attempt {attempt.number}"
    if attempt.started_at is None:
        raise ConfigurationError(f"{named} has not begun")
    raise ConfigurationError(f"{named} has no seat {seat}; it has {1 + len(attempt.seats)}, from 0 on")


class AttemptOutput:
    """The output of one attempt on one stream.

    Args:
        trial: the trial's id, or the name of one of the attempt's seats.
        attempt: the attempt in its current state, in that seat.
        stream: "stdout" or "stderr".
        ask: requests output from the attempt's worker, or None without a connection.

    Raises:
        ConfigurationError: *stream* is neither.
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
        #: From the journal.
        self.tail = (attempt.stdout_tail if is_stdout else attempt.stderr_tail).encode()

    @property
    def is_here(self) -> bool:
        """Whether its file is on this machine, or in a folder that both machines share.

        Any account that may append to the journal chooses the path there. So it must be the path of this attempt's
        output, in a log folder that a worker has marked. Nothing else is read.
        """
        file = Path(self._path)
        if len(file.parents) <= _BELOW_ROOT or ".." in file.parts:
            return False
        root = file.parents[_BELOW_ROOT]
        expected = output_path(root, self._experiment, self._trial, self._attempt.number, self._stream)
        mark = self._attempt.log_mark
        if file != expected or not mark or mark_of(root) != mark:
            return False
        # A folder on the way may be a link to another one.
        return file.is_file() and file.parent.resolve() == root.resolve() / self._experiment / self._trial

    def chunk(self, offset: int) -> LogChunk:
        """Return a part of it from an offset on. A negative offset counts from the end.

        Raises:
            LogUnavailable: it is not on this machine, and its worker can't send it.
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
        """Return all present output from an offset on, read in chunks."""
        chunk = self.chunk(offset)
        chunks, end = [chunk.data], chunk.size
        while chunk.data and chunk.offset + len(chunk.data) < min(end, chunk.size):
            chunk = self.chunk(chunk.offset + len(chunk.data))
            chunks.append(chunk.data)
        return b"".join(chunks)

    def follow(self, offset: int, is_over: Callable[[LogChunk], bool]) -> Iterator[bytes]:
        """Yield chunks from an offset on as they are printed, until *is_over* returns True for one."""
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
                time.sleep(_LOOK_S)
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
    """Yield a trial's output, from any process, until its attempt has ended.

    It is read from its file, if that is on this machine or in a shared folder. Otherwise the worker is asked over the
    broker, also after the attempt's end. If the worker can't be asked, the last part in this machine's journal is
    yielded.

    Args:
        experiment: the experiment's name, or its folder on this machine.
        trial: the trial's id, for seat 0. ``0001~1`` is seat 1.
        stream: "stdout" or "stderr".
        attempt: the attempt's number, by default the last one's.
        offset: the number of bytes to skip; if negative, the number of bytes at the end to yield.
        follow: whether to continue until the attempt has ended.
        broker: URL of the worker's Redis, or None for an experiment that ran on this machine alone.

    Raises:
        ConfigurationError: the experiment, trial, attempt or seat does not exist.
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
            is_over = _end_of_copy(experiment, id_, record) if output.is_here else lambda chunk: not chunk.is_open
            yield from output.follow(offset, is_over)
        except LogUnavailable:
            if not output.tail and exchange is None and is_in_folder_alone(Results.load(experiment).folder):
                raise LogUnavailable(
                    f"experiment {experiment!s} was imported, archived or simulated, and so has no output of trial {id_}"
                ) from None
            if not output.tail:
                raise
            yield output.tail


def follow_driver(name: str, broker: str, *, offset: int = 0, follow: bool = True) -> Iterator[bytes]:
    """Yield the output of a submitted script, both streams, until it has ended.

    The output is the newest run's. With *follow*, a line announces a run on another worker, if the last one is gone.
    Another line says if a worker may not run the script. If a worker can't be asked, the end of the output that it left
    on the server is yielded.

    Args:
        name: the submission's name.
        broker: URL of the Redis, with a driver's account.
        offset: the number of bytes to skip; if negative, the number of bytes at the end to yield.
        follow: whether to continue until the submission has ended.

    Raises:
        ConfigurationError: nothing was submitted under this name.
        LogUnavailable: no output can be read, only without *follow*.
        BrokerUnavailable: no server answers.
    """
    from mqtune.journal.server.connection import CONNECT_TIMEOUT_S, connect  # noqa: PLC0415 - as above
    from mqtune.services.submissions.board import Submissions  # noqa: PLC0415

    with contextlib.closing(connect(broker, role="driver")) as client:
        submissions, exchange = Submissions(client, patience_s=CONNECT_TIMEOUT_S), LogExchange(client, name)

        def look() -> SubmissionState:
            state = submissions.state(name)
            if state is None:
                raise ConfigurationError(
                    f"nothing was submitted as {name!r}; its trials have output: mqtune logs {name} 1"
                )
            return state

        run, at, has_any, refusal = 0, offset, False, ""
        while True:
            state = look()
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
                for data in output.follow(at, _end_of_run(look, run)):
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
            state = look()
            if state.has_ended and state.run == run:
                return
            time.sleep(_LOOK_AT_COPY_S)


def _end_of_run(look: Callable[[], SubmissionState], run: int) -> Callable[[LogChunk], bool]:
    """Return a function that tells whether a run has no more output."""

    def is_over(chunk: LogChunk) -> bool:
        return not chunk.is_open or not run or look().run != run

    return is_over


def _from_copy(experiment: str | Path, trial: str, number: int | None) -> tuple[TrialId, Attempt] | None:
    try:
        trials = Results.load(experiment).experiment.trials
    except (ConfigurationError, CopyIncomplete):
        return None
    for name in _names_of(trial):
        id_, seat = seat_in(name)
        if id_ in trials:
            return name, with_seat(attempt_of(trials[id_].attempts, id_, number), id_, seat)
    return None


def _names_of(given: str) -> list[TrialId]:
    """Return the possible seat names: 1 is trial 0001, and 1~2 is its seat 2."""
    if not is_seat(given):
        return []
    trial, seat = seat_in(given)
    return [seat_name(TrialId(id_), seat) for id_ in (trial, trial.zfill(4))]


def _from_server(exchange: LogExchange, trial: str, number: int | None) -> tuple[TrialId, Attempt]:
    """Return an attempt in Redis, which has only the last one."""
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
    raise ConfigurationError(f"there is no trial {trial!r} in that experiment, or it ended more than a week ago")


def _end_of_copy(experiment: str | Path, trial: TrialId, attempt: Attempt) -> Callable[[LogChunk], bool]:
    """Return a function that tells whether an attempt has ended, by rare reads of the copy."""
    due = time.monotonic()
    ended = attempt.end is not None

    def is_over(_: LogChunk) -> bool:
        nonlocal due, ended
        # The last bytes may be missing, so one more read follows.
        was_over, now = ended, time.monotonic()
        if not ended and now >= due:
            log = _from_copy(experiment, trial, attempt.number)
            ended = log is None or log[1].end is not None
            due = time.monotonic() + max(_LOOK_AT_COPY_S, _COPY_SHARE * (time.monotonic() - now))
        return was_over

    return is_over
